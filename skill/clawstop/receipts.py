"""Receipts: one JSON line a stop, each holding the hash of the one before.

The chain shows that nothing was taken out or changed in the middle; it cannot show that the newest
lines were cut off. Old receipts are dropped by count and age: then the file's first line is an
anchor, with the hash that the oldest one kept goes on from.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import jsonlines

from . import tail
from .paths import write_private

FIRST = "0" * 64
SHORT_ID = 8  # characters of an id that a person is told, and that find it again
SLACK = 1.1  # the file grows a tenth above what is kept before it is written anew


def digest(receipt: dict[str, Any]) -> str:
    """The hash of a receipt, over everything in it but the hash itself."""
    body = {key: value for key, value in receipt.items() if key != "hash"}
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines() if file.exists() else []


def _backwards(file: Path) -> Iterator[bytes]:
    """The lines, newest first, read from the end: a stop waits for this."""
    if not file.exists():
        return
    with file.open("rb") as data:
        for _, line in tail.lines(data.fileno()):
            yield line


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object in a line; None for a torn line and for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read(file: Path) -> Iterator[dict[str, Any]]:
    """Every receipt, oldest first; a line that is none is passed over."""
    if not file.exists():
        return
    with file.open(encoding="utf-8", errors="replace") as text, jsonlines.Reader(text) as lines:
        for line in lines.iter(type=dict, skip_invalid=True, skip_empty=True):
            if "anchor" not in line:
                yield line


def latest(file: Path) -> Iterator[dict[str, Any]]:
    """Every receipt, newest first, parsed only as far as it is asked for."""
    for line in _backwards(file):
        receipt = _parse(line)
        if receipt is not None and "anchor" not in receipt:
            yield receipt


def find(file: Path, stop: str, *, short: bool = False) -> dict[str, Any] | None:
    """The newest receipt of a stop, by its id; `short`: or by the beginning of it that a person was
    told."""
    for line in _backwards(file):
        if stop.encode() in line:  # parsing them all would hold up the gate
            receipt = _parse(line)
            id = str(receipt.get("id")) if receipt is not None else ""
            if id == stop or (short and id.startswith(stop)):
                return receipt
    return None


def append(file: Path, receipt: dict[str, Any]) -> dict[str, Any]:
    """Write a receipt, durable when this returns. Only the engine, under its lock, calls this."""
    parsed = (_parse(line) for line in _backwards(file))
    newest = next((line for line in parsed if line is not None), {})
    whole = {**receipt, "prev": str(newest.get("hash", newest.get("anchor", FIRST)))}
    whole["hash"] = digest(whole)
    line = _dump(whole)
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(fd).st_size
        os.lseek(fd, max(size - 1, 0), os.SEEK_SET)  # where it appends does not change
        if os.read(fd, 1) not in (b"", b"\n"):
            line = b"\n" + line  # close a torn line, so that this one can be read
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, "no space left for the receipt", str(file))
        os.fsync(fd)
    finally:
        os.close(fd)
    return whole


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def prune(file: Path, keep: int, newer_than: float) -> int:
    """Drop all but the last `keep` receipts, and those from before `newer_than`; how many went.

    The newest receipt always stays, so that the chain goes on. A line that is no receipt stays
    with the one before it.
    """
    lines = _lines(file)
    parsed = [_parse(line) for line in lines]
    places = [at for at, line in enumerate(parsed) if line is not None and "anchor" not in line]
    old = list(takewhile(lambda at: _when(parsed[at], newer_than) < newer_than, places[:-1]))
    excess = places[:-keep] if len(places) > keep * SLACK else []
    last = max([-1, *old[-1:], *excess[-1:]])
    if last < 0:
        return 0
    dropped = sum(at <= last for at in places)
    anchor = {"anchor": (parsed[last] or {}).get("hash", FIRST)}
    rest = b"".join(line + b"\n" for line in lines[last + 1 :])
    write_private(file, _dump(anchor) + rest)
    return dropped


def _when(receipt: dict[str, Any] | None, unknown: float) -> float:
    at = (receipt or {}).get("at")
    return float(at) if isinstance(at, int | float) else unknown


def verify(file: Path) -> list[str]:
    """What is wrong with the chain; empty when it holds."""
    problems = []
    first = next((line for line in map(_parse, _lines(file)) if line is not None), {})
    last = str(first.get("anchor", FIRST))
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
