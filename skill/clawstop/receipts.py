"""Receipts: one JSON line a stop, each holding the hash of the one before.

The chain shows that nothing was taken out or changed in the middle; it cannot show that the newest
lines were cut off.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonlines

FIRST = "0" * 64


def digest(receipt: dict[str, Any]) -> str:
    """The hash of a receipt, over everything in it but the hash itself."""
    body = {key: value for key, value in receipt.items() if key != "hash"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Every receipt, oldest first; a line that is none is passed over."""
    if not file.exists():
        return
    with file.open(encoding="utf-8", errors="replace") as text, jsonlines.Reader(text) as lines:
        yield from lines.iter(type=dict, skip_invalid=True, skip_empty=True)


def find(file: Path, stop: str) -> dict[str, Any] | None:
    return next((receipt for receipt in read(file) if receipt.get("id") == stop), None)


def append(file: Path, receipt: dict[str, Any]) -> dict[str, Any]:
    """Write a receipt, durable when this returns. Only the engine, under its lock, calls this."""
    last = FIRST
    for earlier in read(file):
        last = str(earlier.get("hash", FIRST))
    whole = {**receipt, "prev": last}
    whole["hash"] = digest(whole)
    line = json.dumps(whole, ensure_ascii=False, separators=(",", ":")) + "\n"
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(fd).st_size
        os.lseek(fd, max(size - 1, 0), os.SEEK_SET)  # where it appends does not change
        if os.read(fd, 1) not in (b"", b"\n"):
            line = "\n" + line  # close a torn line, so that this one can be read
        data = line.encode()
        if os.write(fd, data) != len(data):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, "no space left for the receipt", str(file))
        os.fsync(fd)
    finally:
        os.close(fd)
    return whole


def verify(file: Path) -> list[str]:
    """What is wrong with the chain; empty when it holds."""
    problems = []
    last = FIRST
    for number, receipt in enumerate(read(file), 1):
        if receipt.get("prev") != last:
            problems.append(
                f"receipt {number} ({receipt.get('id')}) does not follow the one before"
            )
        if receipt.get("hash") != digest(receipt):
            problems.append(
                f"receipt {number} ({receipt.get('id')}) was changed after it was written"
            )
        last = str(receipt.get("hash"))
    return problems
