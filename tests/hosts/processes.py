"""Owns the look at /proc: which living processes carry a state folder, and how they are ended.

A process is (pid, start time); both are checked right before a signal, so that a recycled pid is
never hit. Run as a program it is a guard: when its stdin closes, because the test run is gone,
however it went, it ends what still carries the folder named on its command line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SWEEP_TIMEOUT = 10.0  # seconds; SIGKILL takes milliseconds, a loaded machine takes longer
SWEEP_POLL = 0.02  # seconds between two looks


@dataclass(frozen=True)
class Process:
    """A process as it was seen; `start` is its start time in clock ticks since boot."""

    pid: int
    start: int
    state: str
    parent: int
    command: str


def look(pid: int) -> Process | None:
    """The living process `pid`; None for none and for a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(errors="replace")
        command = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    # Fields after the name, which is in brackets and may hold anything.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, parent, start = fields[0], int(fields[1]), int(fields[19])
    if state in "ZX":
        return None
    words = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid, start, state, parent, words)


def carrying(folder: Path) -> list[Process]:
    """Living processes whose environment names `folder` or a path in it; never the caller's own."""
    own = _lineage()
    pids = (pid for pid in _pids() if pid not in own and _carries(pid, os.fsencode(folder)))
    return [process for process in map(look, pids) if process is not None]


def running(needle: str) -> list[Process]:
    """Living processes, whoever's, with `needle` in their command line; never the caller's own."""
    own = _lineage()
    seen = (look(pid) for pid in _pids() if pid not in own)
    return [process for process in seen if process is not None and needle in process.command]


def end(process: Process) -> None:
    """SIGKILL this very process; nothing when it is gone or its pid is somebody else's now."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            now = look(process.pid)  # after the open: the handle cannot change hands any more
            if now is not None and now.start == process.start:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def sweep(folder: Path) -> None:
    """End what carries `folder` until a look finds nothing."""
    deadline = time.monotonic() + SWEEP_TIMEOUT
    while found := carrying(folder):
        if time.monotonic() > deadline:
            raise TimeoutError(f"still alive after SIGKILL: {found}")
        for process in found:
            end(process)
        time.sleep(SWEEP_POLL)


class Guard:
    """Sweeps `folder` when this process is gone, killed or not; `close()` it after a clean end."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the test run is not the guard's
        )

    def close(self) -> None:
        self._process.communicate(timeout=2 * SWEEP_TIMEOUT)  # closes its stdin


def _pids() -> Iterable[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _carries(pid: int, folder: bytes) -> bool:
    try:
        environ = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    values = (entry.partition(b"=")[2] for entry in environ.split(b"\0"))
    return any(value == folder or value.startswith(folder + b"/") for value in values)


def _lineage() -> set[int]:
    """This process and its ancestors, which no test may end."""
    pid, line = os.getpid(), set[int]()
    while pid and pid not in line:
        line.add(pid)
        above = look(pid)
        pid = above.parent if above else 0
    return line


if __name__ == "__main__":
    sys.stdin.buffer.read()
    sweep(Path(sys.argv[1]))
