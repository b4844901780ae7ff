"""The lines of a file from its end: a file may be huge, and what is wanted is near the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

BLOCK = 64 * 1024  # bytes read first; doubled from then on, so that one long line is no trouble
LARGEST = 16 * 1024 * 1024


def lines(fd: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
    """(offset, line) before `end`, newest first. A line has its newline, the last one perhaps not;
    an empty file has none."""
    at = os.fstat(fd).st_size if end is None else end
    parts: list[bytes] = []  # of the line whose beginning is not read yet, last part first
    block = BLOCK
    while at:
        size = min(block, at)
        at -= size
        data = read(fd, at, size)
        block = min(block * 2, LARGEST)
        while (cut := data.rfind(b"\n", 0, -1 if not parts else None)) >= 0:
            yield at + cut + 1, data[cut + 1 :] + b"".join(reversed(parts))
            parts, data = [], data[: cut + 1]
        parts.append(data)
    if parts:
        yield 0, b"".join(reversed(parts))


def read(fd: int, at: int, size: int) -> bytes:
    """Exactly this many bytes; fewer only where the file ends."""
    parts = []
    while size and (part := _pread(fd, size, at)):
        parts.append(part)
        at, size = at + len(part), size - len(part)
    return b"".join(parts)


def _pread(fd: int, size: int, at: int) -> bytes:
    if sys.platform != "win32":
        return os.pread(fd, size, at)
    os.lseek(fd, at, os.SEEK_SET)
    return os.read(fd, size)
