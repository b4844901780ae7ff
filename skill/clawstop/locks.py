"""The host's lock on a transcript, taken as the host takes it.

`<transcript>.lock` is made only where there is none, and says who holds it: pid, when, and the
process's start time. One whose holder is dead, or whose pid is somebody else's by now, holds
nothing, and goes; so does one that has said nothing for half a minute. A host of 2026.7 also takes
away the lock of a process whose arguments do not name it: so the engine is started with its name.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from . import processes
from .errors import Held, TranscriptError
from .paths import read_plain
from .processes import Ident

SILENT = 30.0  # seconds after which a lock that names nobody is the host's to take away, and ours
PATIENCE = 3.0  # seconds; a run that was ended lets go of its lock within 0.1
POLL = 0.02
LARGEST = 64 * 1024  # bytes; one says who holds it, and no more


def is_stale(transcript: Path) -> bool:
    """Whether somebody who is dead holds it: a run was at work there."""
    holder = _holder(_lock_of(transcript))
    return holder is not None and not _alive(holder)


def _lock_of(transcript: Path) -> Path:
    return transcript.with_name(transcript.name + ".lock")


@contextlib.contextmanager
def held(transcript: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of a transcript; Held when somebody who lives does not let go."""
    file = _lock_of(transcript)
    mine = _self()
    deadline = time.monotonic() + patience
    while not _taken(file, mine):
        holder = _holder(file)
        if not _alive(holder) if holder else _silent(file):
            _break(file, holder)
        elif time.monotonic() > deadline:
            who = f"process {holder['pid']}" if holder else "somebody"
            raise Held(f"{who} still holds {transcript.name}")
        else:
            time.sleep(POLL)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _holder(file) == mine:  # nobody took it from us
                file.unlink()


def _taken(file: Path, mine: dict[str, Any]) -> bool:
    """Make the lock, with its content, in one step: one that says nothing is nobody's to break."""
    new = file.with_name(file.name + ".new")
    try:
        new.unlink(missing_ok=True)  # after a crash it may be the lock itself, by another name
        new.write_bytes(json.dumps(mine).encode())
        try:
            os.link(new, file)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            with file.open("xb") as out:
                out.write(new.read_bytes())
    except FileExistsError:
        return False
    except OSError as error:
        raise TranscriptError(f"cannot lock {file.stem}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
    return True


def _self() -> dict[str, Any]:
    """What our lock says. A host tells no start time but on Linux, where it counts in ticks."""
    moment = datetime.datetime.now(datetime.UTC)
    now = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    ident = processes.ident_of(os.getpid())
    start = {"starttime": ident.start} if ident and isinstance(ident.start, int) else {}
    return {"pid": os.getpid(), "createdAt": now, **start}


def _holder(file: Path) -> dict[str, Any] | None:
    """Who holds it; None when that cannot be read, as while it is being written."""
    try:
        holder = json.loads(read_plain(file, LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return holder if isinstance(holder, dict) and isinstance(holder.get("pid"), int) else None


def _alive(holder: dict[str, Any]) -> bool:
    pid, start = holder["pid"], holder.get("starttime")
    if not 0 < pid < 2**31:
        return False
    if isinstance(start, int):
        return not processes.gone(Ident(pid, start))  # its number may be somebody else's
    return psutil.pid_exists(pid)


def _silent(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime > SILENT
    except OSError:
        return False


def _break(file: Path, holder: dict[str, Any] | None) -> None:
    """Take away the lock of a dead holder, and no other's that came in its place."""
    aside = file.with_name(f"{file.name}.{os.getpid()}.stale")
    with contextlib.suppress(OSError):
        os.rename(file, aside)
        if _holder(aside) != holder:  # somebody was faster
            os.link(aside, file)
        aside.unlink()
