"""How clawstop is started: absolute, and without PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from . import cookies
from .paths import Paths

MARK = "# written by `clawstop install`"


def package_folder() -> Path:
    """What `import clawstop` is found in."""
    return Path(__file__).resolve().parent.parent


def own_command() -> list[str]:
    """This Python, this code."""
    folder = package_folder()
    if (folder / "__main__.py").is_file():  # a checkout or a ClawHub download
        return [sys.executable, "-X", "utf8", str(folder)]
    return [sys.executable, "-X", "utf8", "-m", "clawstop"]


def engine_command() -> list[str]:
    """The same for the engine. The host's name is for the host: see locks.py."""
    return [*own_command(), "engine", "openclaw"]


def environment(paths: Paths) -> dict[str, str]:
    """For an engine with a state folder of its own: nothing in it leads to the person's OpenClaw,
    and it is no run's process."""
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OPENCLAW_") and name != cookies.VARIABLE
    }
    return {**outside, "OPENCLAW_STATE_DIR": str(paths.openclaw)}


def launcher() -> Path:
    """The command `clawstop` for people and agents: starts without the bootstrap."""
    return Path.home() / ".local" / "bin" / "clawstop"


def is_ours(file: Path) -> bool:
    return file.is_file() and MARK in file.read_text(encoding="utf-8", errors="replace")


def short_command() -> list[str]:
    """What an agent is told to type."""
    return [str(launcher())] if is_ours(launcher()) else own_command()
