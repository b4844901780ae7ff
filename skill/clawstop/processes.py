"""Processes: who they are, and which of them carry a cookie. This module signals nobody, and
`ownership.py` says whose they are.

A process is (pid, start time); a pid alone names whoever holds the number now. An `Ident` carries
its own clock: an int is Linux start ticks since boot, a float is psutil's creation time.

Linux reads /proc directly. macOS and Windows, and `portable=True`, go through psutil, which is
imported only then. On macOS the system hides the environment of its own binaries, so a look there
is partial.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple

from clawstop import cookies
from clawstop.cookies import Owner

if TYPE_CHECKING:
    import psutil

Match = Callable[[Owner], bool]
Proves = Callable[[int, "Stat", list[Owner]], bool]  # see `look_at`

LINUX = sys.platform == "linux"

_COOKIE = cookies.VARIABLE.encode() + b"="
_COMMAND_CHARS = 200  # a receipt line is for reading
_FIRST_READ = 16 * 1024  # holds nearly every environment, and stays below malloc's mmap threshold
_NEXT_READ = 128 * 1024  # few calls for the rare large one
_EXEC_PAUSE = 0.001  # execve of a cached binary shows no environment for about this long
_EXEC_LOOKS = 50  # and from a cold disk for some tens of that
_DYING = (FileNotFoundError, ProcessLookupError)  # how procfs says so; other errors are real
_ZOMBIE = (b"Z", b"X")
_BUSY = (b"R", b"D")
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)  # Windows has none, and no /proc either
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags of /proc/PID/stat
_EXITING = 0x00000004  # PF_EXITING: its memory is given back, its death is a moment away


@dataclass(frozen=True, order=True)
class Ident:
    """The identity of a process, within one boot of the machine."""

    pid: int
    start: int | float


class Sameness(Enum):
    SAME = "same"
    DIFFERENT = "different"  # gone, or the pid belongs to another process by now
    UNKNOWN = "unknown"  # it exists, but we may not see when it started


@dataclass(frozen=True)
class Owned:
    """A living process that is proven to belong to an owner."""

    ident: Ident
    owner: Owner
    proof: str
    parent: int
    command: str
    wrapper: bool = False  # it leaves by itself when what it wraps does
    threads: int = 0  # how many it had; 0 when that is not known


@dataclass
class Missed:
    """Who died or changed under a look. They may have forked, so somebody may be left.

    `owned` says that one of them is known to have carried a matching cookie. `others` were looked
    at and are somebody else's.
    """

    pids: set[int] = field(default_factory=set)
    owned: bool = False
    others: set[int] = field(default_factory=set)


def ident_of(pid: int, *, portable: bool = False) -> Ident | None:
    """Return the identity of whoever holds this pid now; None when nobody does or it is hidden."""
    try:
        life = _life(pid, portable)
    except PermissionError:
        return None
    return Ident(pid, life.start) if life else None


def compare(ident: Ident) -> Sameness:
    """Say whether the pid still belongs to this process. Only SAME may ever be signalled."""
    try:
        life = _life(ident.pid, isinstance(ident.start, float))
    except PermissionError:
        return Sameness.UNKNOWN
    return Sameness.SAME if life and life.start == ident.start else Sameness.DIFFERENT


def gone(ident: Ident) -> bool:
    """Say whether the process is proven dead. A zombie is; one that cannot be seen is not."""
    try:
        life = _life(ident.pid, isinstance(ident.start, float))
    except PermissionError:
        return False
    return life is None or life.start != ident.start or life.dead


def ancestors(pid: int, *, portable: bool = False) -> list[Ident]:
    """Return the process itself, its parent, and so on up to init, as far as they can be seen."""
    line: dict[int, Ident] = {}
    try:
        while pid not in line and (life := _life(pid, portable)):
            line[pid] = Ident(pid, life.start)
            pid = life.parent
    except PermissionError:
        pass
    return list(line.values())


def everybody() -> list[int]:
    """The pids of all processes that can be seen."""
    if LINUX:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    import psutil

    return list(psutil.pids())


def listed(missed: set[int], known: Collection[int], *, portable: bool = False) -> Iterator[Found]:
    """Every living process that carries a cookie of anybody, newest first, one at a time, so that
    each can be stopped before the next is looked for.

    None of the `known`, never pid 0 or 1, never the caller. What cannot be read (another user's,
    hidden, dying) is left out; who died under the look is `missed`. OSError when nothing can be
    looked at, as without descriptors.
    """
    never = {0, 1, os.getpid(), *known}
    return _scan_psutil(missed, never) if portable or not LINUX else _scan_proc(missed, never)


class _Life(NamedTuple):
    start: int | float
    parent: int
    dead: bool


class Found(NamedTuple):
    """A living process that was looked at closely, and whose cookies it carries."""

    ident: Ident | None  # None: it was gone before its identity could be read
    parent: int
    command: str
    owners: list[Owner]
    threads: int = 0


# -- Linux -------------------------------------------------------------------------------------


class Stat(NamedTuple):
    """What proc(5) says in /proc/PID/stat, as far as it matters here."""

    state: bytes
    parent: int
    session: int
    flags: int
    threads: int
    start: int
    env_end: int

    @property
    def dead(self) -> bool:
        # A leader that left its threads behind is shown as a zombie too, and is very much alive.
        return self.state in _ZOMBIE and self.threads <= 1


def _scan_proc(missed: set[int], never: set[int]) -> Iterator[Found]:
    names = {str(pid) for pid in never}
    began = _ticks()
    starting = []
    # Newest first: what forks on and on is read the instant after it was listed.
    for name in reversed(os.listdir("/proc")):
        if not name.isdigit() or name in names:
            continue
        try:
            environ = _read(f"/proc/{name}/environ")
        except PermissionError:
            continue
        except _DYING:
            environ = b""
        if environ and _COOKIE not in environ:
            continue
        pid = int(name)
        blank = "" if environ else _why_blank(pid, missed)
        if blank == "starting":
            starting.append(pid)
        elif blank != "nobody":
            found = look_at(pid, missed, _has_cookie, environ, began)
            if found or environ:
                yield found or Found(None, 0, "", _owners(environ))
    for pid in starting:
        for _ in range(_EXEC_LOOKS):
            if _why_blank(pid, missed) != "starting":
                break
            time.sleep(_EXEC_PAUSE)
        if found := look_at(pid, missed, _has_cookie):
            yield found


def _ticks() -> int:
    """Now, as start times count; rounded down, so that who is older was there before."""
    if sys.platform != "linux":  # nobody comes here
        return 0
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")) - 1


def _why_blank(pid: int, missed: set[int]) -> Literal["nobody", "starting", "hidden"]:
    """Say why an environment read as empty."""
    try:
        stat = _stat(pid)
    except _DYING:
        missed.add(pid)
        return "nobody"
    if stat.flags & _KERNEL_THREAD:
        return "nobody"
    if stat.dead or (stat.flags & _EXITING and stat.threads <= 1):
        missed.add(pid)
        return "nobody"
    # inside execve, which waits for nothing but the disk, it is not in place yet
    return "starting" if not stat.env_end and stat.state in _BUSY else "hidden"


def look_at(
    pid: int, missed: set[int], proves: Proves, environ: bytes | None = None, read_since: int = 0
) -> Found | None:
    """Look at one process closely; None when it is dying, hidden, or `proves` says no.

    `proves` gets a descriptor of its folder in /proc, its stat, and whose cookies it carries. All
    of that is of one process, even if the pid is recycled meanwhile. An `environ` of this pid that
    was read since some tick saves reading it again: it is of whoever is older than that.
    """
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | _DIRECTORY)
    except PermissionError:  # hidepid
        return None
    except _DYING:
        missed.add(pid)
        return None
    try:
        stat = _stat(pid, folder)
        if not environ or stat.start >= read_since:
            environ = _environ_or_none(folder, stat)
        if stat.dead or (environ is not None and not stat.env_end and stat.state in _BUSY):
            missed.add(pid)
            return None
        owners = _owners(environ or b"")
        if not proves(folder, stat, owners):
            return None
        command = _read("cmdline", folder).rstrip(b"\0").replace(b"\0", b" ")
        command = command or b"[" + _read("comm", folder).strip() + b"]"
        text = _readable(command.decode(errors="replace"))
        return Found(Ident(pid, stat.start), stat.parent, text, owners, stat.threads)
    except PermissionError:
        return None
    except _DYING:
        missed.add(pid)
        return None
    finally:
        os.close(folder)


def read_below(folder: int, name: str) -> bytes:
    """A file in the folder of a process in /proc, by the descriptor that `look_at` gives."""
    return _read(name, folder)


def children(pid: int, threads: int = 0) -> list[int]:
    """The pids of a process's children; none when it is gone. Linux.

    Each thread has its own; `threads`, if it is known to be one, saves asking which there are.
    """
    if not _tells_children():
        return [one for one in everybody() if (life := _seen(one)) and life.parent == pid]
    found: list[int] = []
    try:
        names = [str(pid)] if threads == 1 else os.listdir(f"/proc/{pid}/task")
        for thread in names:
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except _DYING:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """Everybody below a process, as far as they can be seen."""
    below = None if LINUX else families_portably()
    found = [pid]
    for one in found:
        found += children(one) if below is None else below.get(one, [])
    return found[1:]


@functools.cache
def _tells_children() -> bool:
    """Most kernels do; on others everybody is asked for their parent."""
    return os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")


def _seen(pid: int) -> _Life | None:
    try:
        return _life(pid, False)
    except PermissionError:
        return None


def _has_cookie(folder: int, stat: Stat, owners: list[Owner]) -> bool:
    return bool(owners)


def _environ_or_none(folder: int, stat: Stat) -> bytes | None:
    """None of one that may not be read (setuid, not dumpable): something else may prove it."""
    try:
        return _environ(folder, stat)
    except PermissionError:
        return None


def _environ(folder: int, stat: Stat) -> bytes:
    if stat.state not in _ZOMBIE:
        return _read("environ", folder)
    tasks = os.open("task", os.O_RDONLY | _DIRECTORY, dir_fd=folder)
    try:
        for thread in os.listdir(tasks):
            try:
                environ = _read(f"{thread}/environ", tasks)
            except (*_DYING, PermissionError):
                continue
            if environ:
                return environ
        return b""
    finally:
        os.close(tasks)


def _readable(command: str) -> str:
    """One short line: a command may hold line ends, and words for a terminal."""
    start = command[:_COMMAND_CHARS]
    return start if start.isprintable() else "".join(c if c.isprintable() else " " for c in start)


def _owners(environ: bytes) -> list[Owner]:
    texts = (entry[len(_COOKIE) :] for entry in environ.split(b"\0") if entry.startswith(_COOKIE))
    owners = (cookies.parse(text.decode("ascii", errors="replace")) for text in texts)
    return [owner for owner in owners if owner is not None]


def _stat(pid: int, folder: int | None = None) -> Stat:
    line = _read("stat" if folder is not None else f"/proc/{pid}/stat", folder)
    # The name in brackets may hold spaces and brackets itself; the fields after it are proc(5)'s.
    f = line[line.rindex(b")") + 2 :].split()
    return Stat(f[0], int(f[1]), int(f[3]), int(f[6]), int(f[17]), int(f[19]), int(f[48]))


def _read(path: str, folder: int | None = None) -> bytes:
    fd = os.open(path, os.O_RDONLY, dir_fd=folder)
    try:
        data = os.read(fd, _FIRST_READ)
        if len(data) < _FIRST_READ:  # procfs gives all it has: a short read is the end
            return data
        parts = [data]
        while data := os.read(fd, _NEXT_READ):
            parts.append(data)
        return b"".join(parts)
    finally:
        os.close(fd)


# -- everywhere --------------------------------------------------------------------------------


def _scan_psutil(missed: set[int], never: set[int]) -> Iterator[Found]:
    import psutil

    blank: list[int] = []
    for pid in reversed(psutil.pids()):
        if pid not in never and (found := _look_psutil(pid, missed, blank)):
            yield found
    if blank:  # hidden from us, or inside exec: those have their environment a moment later
        time.sleep(_EXEC_PAUSE * 10)
    for pid in tuple(blank):
        if found := _look_psutil(pid, missed, blank):
            yield found


def look_portably(pid: int, missed: set[int]) -> Found | None:
    """Like `look_at`, through psutil, and for whoever it is."""
    return _look_psutil(pid, missed, None)


def families_portably() -> dict[int, list[int]]:
    """Parent -> children, of everybody who can be seen."""
    import psutil

    found: dict[int, list[int]] = {}
    for pid in psutil.pids():
        try:
            found.setdefault(psutil.Process(pid).ppid(), []).append(pid)
        except (psutil.Error, OSError):
            continue
    return found


def _look_psutil(pid: int, missed: set[int], blank: list[int] | None) -> Found | None:
    """With `blank` only who carries a cookie; in it come those whose environment is empty."""
    import psutil

    if pid in (0, 1, os.getpid()):
        return None
    try:
        process = psutil.Process(pid)
        ident = Ident(pid, process.create_time())
        environ = _environ_psutil(process)
        if not environ and blank is not None:
            blank.append(pid)
        owner = cookies.parse(environ.get(cookies.VARIABLE, ""))
        if owner is None and blank is not None:
            return None
        parent, command = process.ppid(), " ".join(process.cmdline()) or f"[{process.name()}]"
        if process.status() == psutil.STATUS_ZOMBIE or not process.is_running():
            missed.add(pid)  # is_running compares identities: nothing above was a successor's
            return None
    except psutil.NoSuchProcess:
        missed.add(pid)
        return None
    except (psutil.Error, OSError):
        return None
    # psutil keeps undecodable bytes as surrogates, which no receipt could be written with
    text = _readable(command.encode(errors="replace").decode())
    return Found(ident, parent, text, [owner] if owner else [])


def _environ_psutil(process: psutil.Process) -> dict[str, str]:
    import psutil

    try:
        return process.environ()
    except psutil.AccessDenied:  # the system's own binaries on macOS; a child of ours may be one
        return {}


def _life(pid: int, portable: bool) -> _Life | None:
    """Return what is known of the holder of a pid, None when there is none; PermissionError."""
    if pid <= 0:
        return None
    if LINUX and not portable:
        try:
            stat = _stat(pid)
        except _DYING:
            if _exists(pid):
                raise PermissionError(f"process {pid} is hidden (hidepid)") from None
            return None
        return _Life(stat.start, stat.parent, stat.dead)
    import psutil

    try:
        process = psutil.Process(pid)
        dead = process.status() == psutil.STATUS_ZOMBIE
        return _Life(process.create_time(), process.ppid(), dead)
    except psutil.NoSuchProcess:
        return None
    except (psutil.Error, OSError) as error:
        raise PermissionError(str(error)) from error


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
