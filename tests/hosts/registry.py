"""Owns a ClawHub registry on loopback with one skill in it: what a publish would put there."""

from __future__ import annotations

import io
import subprocess
import zipfile
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from .loopback import Handler, Loopback

SLUG = "clawstop"


def ships(folder: Path) -> list[str]:
    """The tracked files that ClawHub takes: none with a dot in front, none that is ignored."""

    def listed(*more: str) -> set[str]:
        command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", *more]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return set(filter(None, done.stdout.split("\0")))

    wanted = listed() - listed("-i", "-X", ".clawhubignore")
    return sorted(n for n in wanted if not any(part.startswith(".") for part in n.split("/")))


def bundle(folder: Path) -> bytes:
    """A zip with SKILL.md at its root, as ClawHub serves it: no run bits."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ships(folder):
            archive.writestr(zipfile.ZipInfo(name), (folder / name).read_bytes())
    return out.getvalue()


class Registry:
    def __init__(self, archive: bytes, version: str) -> None:
        about = {"archive": archive, "version": version}
        self._loopback = Loopback(type("RegistryHandler", (_Handler,), about))
        self.url = self._loopback.url

    def close(self) -> None:
        self._loopback.close()


class _Handler(Handler):
    archive: ClassVar[bytes]
    version: ClassVar[str]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == f"/api/v1/skills/{SLUG}":
            skill: dict[str, object] = {"slug": SLUG, "displayName": SLUG, "tags": {}, "stats": {}}
            latest = {"version": self.version, "createdAt": 0, "changelog": ""}
            skill |= {"createdAt": 0, "updatedAt": 0}
            self.reply(200, {"skill": skill, "latestVersion": latest, "owner": None})
        elif path == "/api/v1/download":
            self.send_response(200)
            self.send_header("content-type", "application/zip")
            self.send_header("content-length", str(len(self.archive)))
            self.end_headers()
            self.wfile.write(self.archive)
        else:
            self.reply(404, {"error": "not found"})
