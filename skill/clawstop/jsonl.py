"""Transcripts that are files: one JSON line an entry, and the last line is where the talk is.

A rollback cuts the end off; what it cuts is in a backup before. Every step is one system call that
either was or was not, so that a crash leaves the file as it was or as it shall be; done again, it
finishes. Reading is from the end. The host's lock is held, and what it wrote after we looked is
never cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import backups, locks, tail, turns
from .backups import PLAIN, Backup
from .errors import GoneOn, TranscriptError
from .paths import user
from .turns import Cut, Entry

SAMPLE = 64 * 1024  # bytes at the end of the kept part that are hashed: a file may hold a gigabyte
CHUNK = 1 << 20


@dataclass(frozen=True)
class Part:
    """The end of a transcript, from the first entry of a task on."""

    file: Path
    first: Entry
    size: int  # of the whole file

    @property
    def offset(self) -> int:
        return self.first.offset


def find(file: Path, cut: Cut) -> Part | None:
    """What a rollback would take away; None: nothing."""
    with _opened(file, os.O_RDONLY) as fd:
        return _find(fd, file, cut)


def remove(file: Path, cut: Cut, where: Path, about: dict[str, Any]) -> Backup | None:
    """Roll back; gives the backup, None when there was nothing to take away.

    `about` is the header's: session, generation, receipt. The same receipt twice is one rollback.
    """
    with locks.held(file), _opened(file, os.O_RDWR) as fd:
        earlier = backups.of(where, about["receipt"], about["session"])
        if earlier is not None:
            _finish(fd, file, earlier)  # or GoneOn
            return earlier
        part = _find(fd, file, cut)
        if part is None:
            return None
        kept = {"bytes": part.offset, "sha256": sample(fd, part.offset)}
        header = {**about, "file": str(file), "kept": kept}
        backup = backups.write(where, header, lambda: _chunks(fd, part.offset, part.size))
        _truncate(fd, file, part.offset, part.size)
        return backup


def place(file: Path, backup: Backup, *, force: bool = False) -> int:
    """Where in the file the removed lines are put back: its end. GoneOn when something else has
    been written since, unless forced: the tree then holds both, and goes on where it was."""
    with _opened(file, os.O_RDONLY) as fd:
        size = os.fstat(fd).st_size
        if backup.ours:
            kept = backup.header.get("kept") or {}
            base = int(kept.get("bytes", -1))
            same = 0 <= base <= size and sample(fd, base) == kept.get("sha256")
            if same and backups.is_prefix(fd, base, backup):
                return base  # nothing else came since; some of it may be back already
        else:
            last = next((one for one in _entries(fd, size) if one.kind != "session"), None)
            first = backups.first_entry(backup)
            same = first is None or (first.parent or "") == (last.id if last else "")
            if same:
                return size
        already = size - backup.removed
        if already >= 0 and backups.is_prefix(fd, already, backup):
            return already
        if force:
            _check_parent(fd, size, backup)
            return size
        if not same:
            raise GoneOn(f"{file.name} is not what it was when {backup.file.name} was made")
        raise GoneOn(f"the conversation in {file.name} has gone on since")


def put_back(file: Path, backup: Backup, base: int) -> None:
    """Append the removed lines at `base`, as `place` gave it. Done again, it goes on.

    The backup is checked meanwhile: one that was edited leaves the file as it was.
    """
    with ThreadPoolExecutor(1) as beside, locks.held(file), _opened(file, os.O_RDWR) as fd:
        size = os.fstat(fd).st_size
        if size < base or not backups.is_prefix(fd, base, backup):
            raise GoneOn(f"the conversation in {file.name} has gone on since")
        if size == base and base and tail.read(fd, base - 1, 1) != b"\n":
            raise GoneOn(f"{file.name} ends in the middle of a line")
        checking = beside.submit(backup.check)
        try:
            with _same_time(fd):
                try:
                    _append(fd, size, backup, size - base)
                    os.fsync(fd)
                    checking.result()
                except BaseException:
                    os.ftruncate(fd, size)
                    raise
        except (OSError, TranscriptError) as error:
            raise TranscriptError(f"{error}; {file.name} is as it was") from error


def take_again(file: Path, backup: Backup, base: int) -> None:
    """Undo `put_back`: the backup has all of it."""
    backup.check()
    with locks.held(file), _opened(file, os.O_RDWR) as fd:
        size = os.fstat(fd).st_size
        if size == base:
            return
        if size != base + backup.removed or not backups.is_prefix(fd, base, backup):
            raise GoneOn(f"the conversation in {file.name} has gone on since")
        _truncate(fd, file, base, size)


def last(file: Path) -> Entry | None:
    """The newest entry."""
    with _opened(file, os.O_RDONLY) as fd:
        return next(_entries(fd, os.fstat(fd).st_size), None)


@contextlib.contextmanager
def newest(file: Path) -> Iterator[Iterator[bytes]]:
    """Its lines, newest first."""
    with _opened(file, os.O_RDONLY) as fd:
        yield (line for _, line in tail.lines(fd))


def sample(fd: int, end: int) -> str:
    """The hash of what lies before `end`: of its last part, and of how long it is."""
    begin = max(0, end - SAMPLE)
    digest = hashlib.sha256(f"{end}\n".encode())
    digest.update(tail.read(fd, begin, end - begin))
    return digest.hexdigest()


def _finish(fd: int, file: Path, backup: Backup) -> None:
    """The rollback was cut off after its backup: do the rest, if it is still to do."""
    kept = backup.header["kept"]["bytes"]
    size = os.fstat(fd).st_size
    if not backups.is_there(fd, kept, backup):
        return  # it was cut
    if size != kept + backup.removed:
        raise GoneOn(f"the conversation in {file.name} has gone on since")
    _truncate(fd, file, kept, size)


def _truncate(fd: int, file: Path, offset: int, size: int) -> None:
    here, there = os.fstat(fd), os.stat(file)
    if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        raise TranscriptError(f"{file.name} was replaced meanwhile; try again")
    if here.st_size != size:
        raise TranscriptError(f"{file.name} was written to meanwhile; try again")
    with _same_time(fd):
        os.ftruncate(fd, offset)
        os.fsync(fd)


@contextlib.contextmanager
def _same_time(fd: int) -> Iterator[None]:
    """A host of 2026.7 puts a conversation away whose file is newer than its last run."""
    before = os.fstat(fd)
    try:
        yield
    finally:
        if os.utime in os.supports_fd:
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))


def _find(fd: int, file: Path, cut: Cut) -> Part | None:
    size = os.fstat(fd).st_size  # before the look: what comes in meanwhile is not cut
    first = cut.find(turns.branch(_entries(fd, size)))
    return Part(file, first, size) if first else None


def _check_parent(fd: int, size: int, backup: Backup) -> None:
    """What the removed lines go on from must be there, or the model would see nothing before."""
    first = backups.first_entry(backup)
    wanted = first.parent if first else None
    if wanted and not any(entry.id == wanted for entry in _entries(fd, size)):
        raise TranscriptError("what it goes on from is not there; restore the later stop first")


def _entries(fd: int, end: int) -> Iterator[Entry]:
    for offset, line in tail.lines(fd, end):
        if entry := turns.parse(line, offset):
            yield entry


def _chunks(fd: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end:
        chunk = tail.read(fd, begin, min(CHUNK, end - begin))
        if not chunk:
            raise TranscriptError("the transcript became shorter meanwhile; try again")
        yield chunk
        begin += len(chunk)


def _append(fd: int, end: int, backup: Backup, skip: int) -> None:
    """The removed lines but for the first `skip` bytes, at the end; by the kernel where it can."""
    os.lseek(fd, end, os.SEEK_SET)
    if sys.platform == "linux":
        with backup.file.open("rb") as source:
            at = backup.start + skip
            while sent := os.sendfile(fd, source.fileno(), at, CHUNK):
                at += sent
        return
    for chunk in backup.chunks(skip):
        view = memoryview(chunk)
        while view:
            view = view[os.write(fd, view) :]


@contextlib.contextmanager
def _opened(file: Path, flags: int) -> Iterator[int]:
    """A plain file of ours, by its own name: a link could mean anything."""
    try:
        fd = os.open(file, flags | PLAIN)
    except (OSError, ValueError) as error:
        raise TranscriptError(f"cannot open the transcript {file}: {error}") from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != user():
            raise TranscriptError(f"{file} is not a plain file of yours; left alone")
        yield fd
    finally:
        os.close(fd)
