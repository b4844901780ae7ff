"""Cages: cgroups (v2) below the gateway's own, one for each cookie and named by it.

A process is put into its cage at birth, by the shell that the gateway starts (`shell.js`), and
cannot leave it by any fork, exec, setsid or clean environment; only root can move it. So it is
known whose it is when its cookie is gone. Linux only; wherever no cgroup may be made there are no
cages, and everything else still holds.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import cookies, processes
from .cookies import Owner
from .paths import is_private, write_private

_PREFIX = "clawstop-"
GONE = (errno.ENOENT, errno.ENODEV)  # a cgroup that is taken away before, or while, it is read


class Cage(NamedTuple):
    path: Path
    owner: Owner


def home(pid: int) -> Path | None:
    """Where a process lives in the one hierarchy of cgroups v2; None when there is none."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::/")), None)
    for fields in (line.split() for line in mounts):
        if "-" in fields and fields[fields.index("-") + 1] == "cgroup2" and own is not None:
            top, mount = fields[3], fields[4]
            inside = own.removeprefix(top) if top != "/" else own
            return Path(mount, inside.lstrip("/"))
    return None


def folder_for(gateway: int, state: str) -> Path | None:
    """Make the folder of this gateway's cages; None where that is not allowed."""
    where = home(gateway)
    if where is None:
        return None
    # A gateway that an agent's run has started lives in that run's cage: it is taken out.
    outside = next((up.parent for up in where.parents if up.name.startswith(_PREFIX)), None)
    if outside:
        where = outside
        _move_out(gateway, outside)
    folder = where / f"{_PREFIX}{state}"
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    writable = os.access(where / "cgroup.procs", os.W_OK)
    return folder if writable and os.access(folder / "cgroup.procs", os.W_OK) else None


def _move_out(pid: int, outside: Path) -> None:
    join(outside, pid)
    for child in processes.children(pid):
        _move_out(child, outside)


def folders(file: Path) -> list[Path]:
    """Where cages of this state folder are, or were: a gateway may come back in another place."""
    if not is_private(file):
        return []
    return [Path(line) for line in file.read_text(encoding="utf-8").splitlines() if line]


def remember(file: Path, folder: Path) -> None:
    known = [one for one in folders(file) if one.is_dir()]
    if folder not in known:
        write_private(file, "".join(f"{one}\n" for one in [*known, folder]))


def join(cage: Path, pid: int) -> bool:
    """Put a process into a cage, which is made if need be."""
    with contextlib.suppress(OSError):
        cage.mkdir(exist_ok=True)
    return _write(cage / "cgroup.procs", b"%d" % pid)


def cages(folders: Sequence[Path]) -> Iterator[Cage]:
    for folder in folders:
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            continue
        for name in names:
            owner = cookies.parse(name)
            if owner:
                yield Cage(folder / name, owner)


def members(cage: Path) -> Iterator[int]:
    """Everybody in it, also in the cgroups that somebody made inside it. Zombies do not count.
    OSError when that cannot be read."""
    for folder, _, _ in os.walk(cage):
        try:
            pids = Path(folder, "cgroup.procs").read_text().split()
        except OSError as error:
            if error.errno in GONE:
                continue
            raise
        yield from map(int, pids)


def holds(cage: Path, cgroup: bytes) -> bool:
    """Whether the text of a process's /proc/PID/cgroup says that it is in this cage."""
    # The kernel shows the path below some root; the cage's own name is never anybody else's.
    return any(
        line.startswith(b"0::") and cage.name.encode() in line.split(b"/")
        for line in cgroup.splitlines()
    )


def freeze(cage: Path, on: bool) -> bool:
    return _write(cage / "cgroup.freeze", b"1" if on else b"0")


def kill(cage: Path) -> bool:
    return _write(cage / "cgroup.kill", b"1")


def prune(folders: Sequence[Path], dead: Callable[[Owner], bool]) -> None:
    """Take away the empty cages of the dead, and folders without any."""
    for cage in cages(folders):
        if dead(cage.owner):
            for folder, _, _ in os.walk(cage.path, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
    for one in folders:
        with contextlib.suppress(OSError):
            os.rmdir(one)


def _write(file: Path, text: bytes) -> bool:
    try:
        fd = os.open(file, os.O_WRONLY)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
    except OSError:
        return False
    return True
