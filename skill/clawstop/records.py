"""Records: processes that are owned whatever their environment says. One small private file each.

`clawstop run` and `clawstop mark` write them, and the engine for what it saw below an owned
process while that lived. A record is one line: boot, pid, start, how it came about, cookie. It
names a process by its identity, so one of a process that is gone, or of an earlier boot, means
nobody.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

from . import cookies
from .cookies import Owner
from .paths import is_private
from .processes import Ident, gone

WRAPPER = "wrapper"  # `clawstop run` itself: it leaves when its command does
MARKED = "marked"
HOWS = (WRAPPER, "run", MARKED, "seen", "asked")


class Record(NamedTuple):
    owner: Owner
    how: str

    @property
    def decides(self) -> bool:
        """A person's word, which is above the cookie; what was merely seen is below it."""
        return self.how != "seen"


def boot() -> str:
    """The id of this boot of the machine, which start times count from."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux: start times are of the calendar there
        return "-"


def write(folder: Path, ident: Ident, record: Record) -> None:
    """There in one step. Not synced: what could lose it ends the process too."""
    cookie = cookies.format(record.owner)
    line = f"{boot()} {ident.pid} {ident.start!r} {record.how} {cookie}\n"
    file = folder / f"{ident.pid}-{ident.start!r}"
    half = folder / f".{file.name}.{os.getpid()}"
    with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(line)
    half.replace(file)


def read(folder: Path) -> dict[Ident, Record]:
    """Every record of this boot."""
    found = {}
    for file in _files(folder):
        one = _parse(file)
        if one:
            found[one[0]] = one[1]
    return found


def prune(folder: Path) -> None:
    """Forget who is gone."""
    for file in _files(folder):
        one = _parse(file)
        if one is None or gone(one[0]):
            with contextlib.suppress(OSError):
                file.unlink()


def _files(folder: Path) -> list[Path]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [folder / name for name in names if name[:1].isdigit()]


def _parse(file: Path) -> tuple[Ident, Record] | None:
    if not is_private(file):
        return None
    try:
        at, pid, start, how, cookie = file.read_text(encoding="ascii").split()
        number = float(start) if "." in start else int(start)
        ident = Ident(int(pid), number)
    except (OSError, ValueError):
        return None
    owner = cookies.parse(cookie)
    on_this = at == boot() or sys.platform != "linux"
    return (ident, Record(owner, how)) if owner and on_this and how in HOWS else None
