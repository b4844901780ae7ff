"""What a rollback took away, a file each in `agents/<id>/interrupt-logs/`.

One header line, then the removed lines byte for byte, whatever they contain. So by hand it is

    tail -n +2 BACKUP >> TRANSCRIPT

The first tool of this kind wrote such files too, with a header of its own, and some people keep
them without any; both are read here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from . import tail, turns
from .errors import TranscriptError
from .paths import private_folder, sync_folder, user

CHUNK = 1 << 20
KEPT = 10  # that are never too old: a clock may be wrong
LEFT_OVER = 3600.0  # seconds after which what a crash has left goes
# Never through a link, and never waiting for whoever is at the other end of a pipe.
PLAIN = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
OURS = "clawstop"  # the key that a header of ours begins with
NAME = re.compile(r"rollback-\d{8}-\d{6}(-\d+)?\.jsonl")


@dataclass(frozen=True)
class Backup:
    file: Path
    header: dict[str, Any]  # empty where there is none
    start: int  # where the removed lines begin
    size: int  # of the file

    @property
    def removed(self) -> int:
        return self.size - self.start

    @property
    def ours(self) -> bool:
        return OURS in self.header

    def chunks(self, skip: int = 0) -> Iterator[bytes]:
        """The removed lines, but for the first `skip` bytes."""
        with _opened(self.file) as data:
            data.seek(self.start + skip)
            while chunk := data.read(CHUNK):
                yield chunk

    def check(self) -> None:
        """TranscriptError when it is not what was written."""
        if not self.ours:
            return
        digest = hashlib.sha256()
        for chunk in self.chunks():
            digest.update(chunk)
        told = self.header.get("removed")
        if not isinstance(told, dict) or told.get("sha256") != digest.hexdigest():
            raise TranscriptError(
                f"{self.file.name} was changed after it was written; if that is what you want, "
                "append it by hand: tail -n +2 BACKUP >> TRANSCRIPT"
            )


def folder(agent_folder: Path) -> Path:
    return agent_folder / "interrupt-logs"


def write(
    where: Path,
    header: dict[str, Any],
    removed: Callable[[], Iterator[bytes]],
    clock: Callable[[], float] = time.time,
) -> Backup:
    """Write a backup, durable when this returns. `removed` gives the bytes, and is asked twice."""
    private_folder(where)
    digest, size, lines = hashlib.sha256(), 0, 0
    for chunk in removed():
        digest.update(chunk)
        size += len(chunk)
        lines += chunk.count(b"\n")
    about = {"bytes": size, "lines": lines, "sha256": digest.hexdigest()}
    now = clock()
    whole = {OURS: 1, "at": round(now, 3), **header, "removed": about}
    first = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    handle, temporary = tempfile.mkstemp(dir=where, prefix=".rollback-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(first)
            for chunk in removed():
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        file = _named(Path(temporary), time.strftime("rollback-%Y%m%d-%H%M%S", time.localtime(now)))
    finally:
        Path(temporary).unlink(missing_ok=True)
    sync_folder(where)
    return Backup(file, whole, len(first), len(first) + size)


def _named(temporary: Path, name: str) -> Path:
    """Give it a name that nobody has: two of one second are two."""
    number = 1
    while True:
        file = temporary.with_name(f"{name}.jsonl" if number == 1 else f"{name}-{number}.jsonl")
        try:
            os.link(temporary, file)
        except FileExistsError:
            number += 1
        except OSError:  # a file system without links
            if file.exists():
                number += 1
                continue
            os.rename(temporary, file)
            return file
        else:
            return file


def read(file: Path) -> Backup:
    try:
        with _opened(file) as data:
            first = data.readline()
            size = os.fstat(data.fileno()).st_size
    except OSError as error:
        raise TranscriptError(f"cannot read the backup {file}: {error.strerror}") from error
    header: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        header = json.loads(first)
    if isinstance(header, dict) and (OURS in header or "removed_count" in header):
        if OURS in header and not _makes_sense(header):
            raise TranscriptError(f"the first line of {file.name} makes no sense")
        return Backup(file, header, len(first), size)
    if not turns.parse(first):
        raise TranscriptError(f"{file} is not a backup of a transcript")
    return Backup(file, {}, 0, size)


def _opened(file: Path) -> BinaryIO:
    """A plain file of ours, or OSError."""
    data = os.fdopen(os.open(file, os.O_RDONLY | PLAIN), "rb")
    info = os.fstat(data.fileno())
    if not stat.S_ISREG(info.st_mode) or info.st_uid != user():
        data.close()
        raise PermissionError(errno.EPERM, "not a plain file of yours", str(file))
    return data


def _makes_sense(header: dict[str, Any]) -> bool:
    """Whether a header of ours says what it must: anybody of this user can have written it."""
    removed, kept, branch = (header.get(key, {}) for key in ("removed", "kept", "branch"))
    if not all(isinstance(part, dict) for part in (removed, kept, branch)):
        return False
    ends = all(isinstance(branch.get(key), str | None) for key in ("from", "to"))
    numbers = (header.get("at"), removed.get("lines"), kept.get("bytes", 0))
    return ends and all(isinstance(one, int | float) for one in numbers)


def newest(where: Path) -> Iterator[Backup]:
    """Every backup of ours, newest first."""
    files = [file for file in where.glob("rollback-*.jsonl") if NAME.fullmatch(file.name)]
    found = []
    for file in files:
        with contextlib.suppress(TranscriptError):
            found.append(read(file))
    mine = (one for one in found if one.ours)
    yield from sorted(mine, key=lambda one: one.header["at"], reverse=True)


def of(where: Path, receipt: str, session: str) -> Backup | None:
    """The one that a stop has made of a session, if it came that far."""
    for backup in newest(where):
        if (backup.header.get("receipt"), backup.header.get("session")) == (receipt, session):
            return backup
    return None


def prune(where: Path, keep: int, newer_than: float) -> int:
    """Drop our own backups, all but the last `keep`, and those from before; how many went."""
    old = [
        backup
        for number, backup in enumerate(newest(where))
        if number >= keep or (number >= KEPT and backup.header["at"] < newer_than)
    ]
    for backup in old:
        backup.file.unlink(missing_ok=True)
    for left in where.glob(".rollback-*"):  # by a crash
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_OVER:
                left.unlink()
    return len(old)


def first_entry(backup: Backup) -> turns.Entry | None:
    """The first of the removed entries."""
    with _opened(backup.file) as data:
        data.seek(backup.start)
        for line in data:
            if entry := turns.parse(line):
                return entry
    return None


def is_there(fd: int, at: int, backup: Backup) -> bool:
    """Whether a file holds all the removed lines, from `at` on."""
    for chunk in backup.chunks():
        if tail.read(fd, at, len(chunk)) != chunk:
            return False
        at += len(chunk)
    return True


def is_prefix(fd: int, at: int, backup: Backup) -> bool:
    """Whether what a file holds from `at` on is how the removed lines begin."""
    for chunk in backup.chunks():
        there = tail.read(fd, at, len(chunk))
        if there != chunk[: len(there)]:
            return False
        if len(there) < len(chunk):
            return True
        at += len(chunk)
    return os.fstat(fd).st_size == at
