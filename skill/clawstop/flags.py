"""Stop flags: a file `agent-stop-<session>.flag` that anything on this machine can write.

`<session>` is the host's session id, a session key, or a key with its odd characters written %XX.
A flag counts while it is fresh, if it is a plain file of the same user; it never ages into a latch:
the stop that it causes is the latch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .paths import user

log = logging.getLogger("clawstop.flags")

PREFIX, SUFFIX = "agent-stop-", ".flag"
MAX_AGE = 60.0  # seconds, and as long before its own time: clocks differ
MAX_SIZE = 16 * 1024
MAX_TIME = 1e15  # milliseconds, in the year 33658: a number beyond is none


@dataclass(frozen=True)
class Flag:
    session: str  # as the file's name has it
    reason: str
    at: float
    signal: str = "TERM"  # what processes are told to leave with

    @property
    def names(self) -> list[str]:
        """What the session may be called: as written, and with %XX decoded."""
        return list(dict.fromkeys([self.session, unquote(self.session, errors="replace")]))

    @property
    def stop(self) -> str:
        """The id of the stop that this flag asks for: the same flag seen twice is one stop."""
        text = f"{self.session} {self.at!r}"
        return "flag-" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def folders(private: Path, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where flags are looked for: our own folder, the one that is configured, the temp folder."""
    named = environ.get("INTERRUPT_FLAG_DIR")
    places = [private, *([Path(named)] if named else []), Path(tempfile.gettempdir())]
    return list(dict.fromkeys(places))


def fresh(
    places: Iterable[Path], now: float, environ: Mapping[str, str] = os.environ
) -> list[Flag]:
    """Every flag that counts now."""
    try:
        max_age = float(environ.get("INTERRUPT_FLAG_MAX_AGE") or MAX_AGE)
    except ValueError:
        max_age = MAX_AGE
    found = []
    for place in places:
        for name in _names(place, now - 2 * max_age):  # it cannot be fresh if its file is old
            flag = _read(place / name, name[len(PREFIX) : -len(SUFFIX)])
            if flag is not None and abs(now - flag.at) <= max_age:
                found.append(flag)
    return found


def _names(place: Path, oldest: float) -> list[str]:
    try:
        with os.scandir(place) as entries:
            return [
                entry.name
                for entry in entries
                if entry.name.startswith(PREFIX)
                and entry.name.endswith(SUFFIX)
                and entry.name.isprintable()  # a name in another encoding is nobody's
                and entry.stat(follow_symlinks=False).st_mtime > oldest
            ]
    except OSError:
        return []


def _read(file: Path, session: str) -> Flag | None:
    """The flag, or None for anything that is not one: a link, another user's, half written."""
    no_link = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor wait for a pipe
    try:
        fd = os.open(file, os.O_RDONLY | no_link)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != user() or info.st_size > MAX_SIZE:
            return None
        content: Any = json.loads(os.read(fd, MAX_SIZE))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    if not isinstance(content, dict) or content.get("sessionId", session) not in (
        session,
        unquote(session, errors="replace"),
    ):
        return None
    written = content.get("timestamp")
    at = info.st_mtime
    if isinstance(written, int | float) and not isinstance(written, bool):
        at = max(0, min(written, MAX_TIME)) / 1000
    reason = str(content.get("reason") or "")[:200].encode(errors="replace").decode()
    polite = content.get("signal") in ("SIGINT", "INT")
    return Flag(session, reason, at, "INT" if polite else "TERM")
