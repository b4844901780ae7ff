"""The gateway's systemd user service: a drop-in that shows at each start what a crash cut off, and
lets it go on. The plugin does so by itself; this is for who wants it in the service's log, and does
not want to be asked."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .errors import UsageError
from .paths import Paths, write_private
from .starter import own_command

UNITS = Path(".config/systemd/user")
NAME = "clawstop.conf"
MARK = "# made by `clawstop install --service`; `clawstop uninstall` takes it away"
RELOAD = ("systemctl", "--user", "daemon-reload")
WAIT = 60  # seconds: a gateway is up after 10 to 25
LIMIT = 180  # that, the verdicts, and what goes on: the host's own unit gives a start 30 seconds


def write(paths: Paths, home: Path, *, dry_run: bool) -> Iterator[str]:
    """A line for each step."""
    unit = _unit(paths, home)
    words = f"{_quoted(own_command())} {_of(paths)} --wait-gateway {WAIT} --yes"
    text = f"{MARK}\n[Service]\nTimeoutStartSec={LIMIT}\nExecStartPost=-{words}\n"
    file = unit.with_name(f"{unit.name}.d") / NAME
    if file.is_file() and file.read_text(encoding="utf-8") == text:
        return
    yield f"write {file}"
    if not dry_run:
        file.parent.mkdir(exist_ok=True)
        write_private(file, text)
    yield from _reload(dry_run)


def remove(paths: Paths, home: Path, *, dry_run: bool) -> Iterator[str]:
    """The same for what is taken away: ours, and of this OpenClaw."""
    texts = {file: file.read_text(errors="replace") for file in _drop_ins(home)}
    ours = [file for file, text in texts.items() if text.startswith(MARK) and _of(paths) in text]
    for file in ours:
        yield f"remove {file}"
        if not dry_run:
            file.unlink()
            if not any(file.parent.iterdir()):
                file.parent.rmdir()
    if ours:
        yield from _reload(dry_run)


def _unit(paths: Paths, home: Path) -> Path:
    """The service of this OpenClaw: of several profiles each has its own."""
    units = sorted((home / UNITS).glob("openclaw-gateway*.service"))
    if not units:
        raise UsageError(
            f"there is no openclaw-gateway service in {home / UNITS}; make it with "
            "`openclaw gateway install`, then run this again"
        )
    folders = {unit: _folder(unit, home) for unit in units}
    mine = os.path.realpath(paths.openclaw)
    named = [
        unit for unit, folder in folders.items() if folder and os.path.realpath(folder) == mine
    ]
    found = named or [unit for unit, folder in folders.items() if folder is None]
    if len(found) != 1:
        names = ", ".join(unit.name for unit in units)
        raise UsageError(f"none of these services is known to be of {paths.openclaw}: {names}")
    return found[0]


def _folder(unit: Path, home: Path) -> Path | None:
    """The state folder that a service names, itself or by its profile."""
    text = unit.read_text(encoding="utf-8", errors="replace")
    if told := re.search(r"OPENCLAW_STATE_DIR=([^\s\"']+)", text):
        return Path(told[1].replace("%h", str(home)))
    if told := re.search(r"(?:OPENCLAW_PROFILE=|--profile[= ]\"?)([\w.-]+)", text):
        return home / (".openclaw" if told[1] == "default" else f".openclaw-{told[1]}")
    return None


def _of(paths: Paths) -> str:
    """The words in a drop-in that say whose it is."""
    return _quoted(["--state-dir", str(paths.openclaw), "recover"])


def _drop_ins(home: Path) -> list[Path]:
    found = (home / UNITS).glob(f"openclaw-gateway*.service.d/{NAME}")
    return [file for file in sorted(found) if file.is_file()]


def _quoted(words: list[str]) -> str:
    """As systemd reads it: a percent sign and a dollar have a meaning there."""
    return shlex.join(words).replace("%", "%%").replace("$", "$$")


def _reload(dry_run: bool) -> Iterator[str]:
    yield f"run {shlex.join(RELOAD)}"
    if not dry_run and shutil.which(RELOAD[0]):  # without a session it cannot, and need not
        subprocess.run(RELOAD, check=False, capture_output=True, timeout=30)
