"""Going into a person's OpenClaw and out again, with the host's own commands.

Each function yields a line for every step, before it is taken.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import callers, ownership
from .bridges import Bridges
from .errors import ClawstopError, UsageError
from .paths import Paths, read_json, write_private
from .settings import resource

HOST_SECONDS = 180.0  # the host's CLI takes 3-10 s to start, and longer on a small machine
MARK = "# written by `clawstop install`"
FENCE = "plugins.entries.clawstop.config.fence"
PERMISSION = "plugins.entries.clawstop.hooks.allowConversationAccess"


def own_command() -> list[str]:
    """How to start clawstop, absolute and without PATH: this Python, this code."""
    folder = Path(__file__).resolve().parent.parent
    if (folder / "__main__.py").is_file():  # a checkout or a ClawHub download
        return [sys.executable, "-X", "utf8", str(folder)]
    return [sys.executable, "-X", "utf8", "-m", "clawstop"]


def engine_command() -> list[str]:
    """The same for the engine. The host's name is for the host: see locks.py."""
    return [*own_command(), "engine", "openclaw"]


def install(
    paths: Paths, binary: str | None, *, fence: str | None = None, dry_run: bool
) -> Iterator[str]:
    openclaw = _find(binary)
    plugin = resource("hooks", "openclaw")
    command = engine_command()
    yield f"write {paths.command}: {' '.join(command)}"
    if not dry_run:
        paths.prepare()
        if (read_json(paths.command) or {}).get("command") != command:
            write_private(paths.command, json.dumps({"command": command}))
    yield from _write_launcher(own_command(), dry_run)
    for arguments in (
        ["plugins", "install", "--link", str(plugin), "--force", "--accept-capabilities"],
        ["plugins", "enable", "clawstop"],
        ["config", "set", PERMISSION, "true"],
        *([["config", "set", FENCE, fence]] if fence else []),
    ):
        yield f"run openclaw {' '.join(arguments)}"
        if not dry_run:
            _run(openclaw, paths, arguments)
    yield "check that the plugin loads"
    if not dry_run:
        _run(openclaw, paths, ["plugins", "inspect", "clawstop"])
        yield "done; restart the gateway if it is running, then: clawstop doctor"


def chosen_fence(paths: Paths, binary: str | None) -> str:
    """What the person has chosen before, if they have."""
    try:
        return _run(_find(binary), paths, ["config", "get", FENCE]).strip()
    except ClawstopError:
        return ""


def uninstall(paths: Paths, binary: str | None, *, dry_run: bool) -> Iterator[str]:
    gateways = Bridges(paths.bridges).idents()
    callers.refuse_owned(os.getpid(), "uninstall", ownership.proofs(paths, gateways))
    openclaw = _find(binary)
    arguments = ["plugins", "uninstall", "clawstop", "--force"]
    yield f"run openclaw {' '.join(arguments)}"
    if not dry_run:
        _run(openclaw, paths, arguments)
    yield f"remove {paths.command}"
    if not dry_run:
        paths.command.unlink(missing_ok=True)
    if _ours(launcher()):
        yield f"remove {launcher()}"
        if not dry_run:
            launcher().unlink()
    if not dry_run:
        yield f"done; receipts are kept in {paths.root}; restart the gateway if it is running"


def launcher() -> Path:
    """The command `clawstop` for people and agents: starts without the bootstrap."""
    return Path.home() / ".local" / "bin" / "clawstop"


def _ours(file: Path) -> bool:
    return file.is_file() and MARK in file.read_text(encoding="utf-8", errors="replace")


def _write_launcher(command: list[str], dry_run: bool) -> Iterator[str]:
    file = launcher()
    if sys.platform == "win32":
        return
    if file.exists() and not _ours(file):
        yield f"leave {file}: it is not ours"
        return
    yield f"write {file}"
    if not dry_run:
        file.parent.mkdir(parents=True, exist_ok=True)
        python, skill = shlex.quote(command[0]), shlex.join(command[1:])
        # Without its environment it still goes through the bootstrap, where a stop always works.
        text = f'#!/bin/sh\n{MARK}\n[ -x {python} ] && exec {python} {skill} "$@"\n'
        text += f'exec python3 {skill} "$@"\n'
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            write_private(file, text)
            file.chmod(0o755)


def _find(binary: str | None) -> str:
    found = shutil.which(binary or "openclaw")
    if not found:
        raise UsageError(
            f"{binary or 'openclaw'} was not found; install OpenClaw first, or say where it is "
            "with --openclaw"
        )
    return found


def _run(openclaw: str, paths: Paths, arguments: list[str]) -> str:
    result = subprocess.run(
        [openclaw, *arguments],
        env={**os.environ, "OPENCLAW_STATE_DIR": str(paths.openclaw)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=HOST_SECONDS,
        check=False,
    )
    if result.returncode:
        raise ClawstopError(
            f"openclaw {' '.join(arguments)} failed:\n{(result.stdout + result.stderr).strip()}"
        )
    return result.stdout
