"""Records: processes that are owned whatever their environment says. One small private file each.

`clawstop run` and `clawstop mark` write them, and the engine for what it saw below an owned
process while that lived. A record is one line: boot, pid, start, how it came about, cookie. It
names a process by its identity, so one of a process that is gone, or of an earlier boot, means
nobody.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import NamedTuple

from . import cookies
from .cookies import Owner
from .paths import is_private
from .processes import LINUX, Ident, gone

HALF_SECONDS = 60.0  # a record is written in a millisecond
WRAPPER = "wrapper"  # `clawstop run` itself: it leaves when its command does
MARKED = "marked"
HOWS = (WRAPPER, "run", MARKED, "below", "seen", "asked")


class Record(NamedTuple):
    owner: Owner
    how: str

    @property
    def decides(self) -> bool:
        """A person's word is above the cookie, also for what was below such a process; what was
        merely seen below any other owned one is not."""
        return self.how != "seen"


@functools.cache
def boot() -> str:
    """The id of this boot of the machine, which start times count from."""
    if not LINUX:  # start times are of the calendar there
        return "-"
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


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
    """Every record of this boot. OSError when they cannot be read: that is not "none"."""
    now = boot()
    lines = [line for file in _files(folder) if (line := _parse(file))]
    return {line.ident: line.record for line in lines if line.boot == now}


def prune(folder: Path) -> None:
    """Forget who is gone, and what was half written when its writer died."""
    now = boot()
    for file in _files(folder, halves=True):
        line = None if file.name.startswith(".") else _parse(file)
        stale = line and (line.boot != now or gone(line.ident))
        half = file.name.startswith(".") and time.time() - file.stat().st_mtime > HALF_SECONDS
        if stale or half:
            file.unlink(missing_ok=True)


def _files(folder: Path, *, halves: bool = False) -> list[Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return [folder / name for name in names if name[:1].isdigit() or (halves and name[0] == ".")]


class _Line(NamedTuple):
    boot: str
    ident: Ident
    record: Record


def _parse(file: Path) -> _Line | None:
    """None for one that is gone, not ours alone, or no record."""
    if not is_private(file):
        return None
    try:
        at, pid, start, how, cookie = file.read_text(encoding="ascii").split()
        ident = Ident(int(pid), float(start) if "." in start else int(start))
    except (FileNotFoundError, ValueError):
        return None
    owner = cookies.parse(cookie)
    return _Line(at, ident, Record(owner, how)) if owner and how in HOWS else None
