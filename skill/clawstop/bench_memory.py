"""Benchmarks of rollbacks and restores, on transcripts of all sizes. See `bench.py`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from . import jsonl
from .bench import Row, medians, timed
from .turns import Cut

SMALL = 1 << 20
LARGE = 25 << 20  # for each batch: a gigabyte with 40
REMOVED = 1 << 20  # for each batch, of a restore: 40 MB
LINE = 10_000  # bytes of an ordinary entry
LAST = Cut(turns=1)
ABOUT = {"session": "agent:dev1:main", "generation": 1}


def rollback(folder: Path, batches: int) -> Row:
    """A turn at the end of a gigabyte, and at the end of a megabyte."""
    large = _transcript(folder / "large", LARGE * batches)
    small = _transcript(folder / "small", SMALL)
    sides = _rolling(large), _rolling(small)
    value, reference = medians(*sides, batches=max(1, batches // 2), size=1)
    against = "the same at the end of a transcript of 1 MB"
    return Row("rollback", value * 1000, "ms", reference * 1000, against, bar=1.5)


def rewriting(folder: Path, batches: int) -> Row:
    """The same, beside reading and writing every line, as the first tool of this kind did."""
    large = _transcript(folder / "large", LARGE * batches)

    def rewrite() -> None:
        with large.open(encoding="utf-8") as lines:
            kept = list(lines)[:-2]
        with large.with_suffix(".new").open("w", encoding="utf-8") as out:
            out.writelines(kept)

    reference = min(timed(rewrite) for _ in range(2))
    roll = _rolling(large)
    value = sorted(timed(roll) for _ in range(9))[4]
    against = "every line read and written again"
    return Row("rewriting", value * 1000, "ms", reference * 1000, against, bar=0.01)


def restore(folder: Path, batches: int) -> Row:
    """A long turn, put back."""
    file = _transcript(folder / "one", SMALL, REMOVED * batches)
    backup = jsonl.remove(file, LAST, folder / "logs", {**ABOUT, "receipt": "one"})
    assert backup is not None
    base = file.stat().st_size

    def put_back() -> None:
        jsonl.put_back(file, backup, jsonl.place(file, backup))

    def copy() -> None:
        shutil.copyfile(backup.file, folder / "copy")
        with (folder / "copy").open("rb+") as out:
            os.fsync(out.fileno())

    ours, bare = [], []
    for _ in range(max(2, batches // 4)):
        ours.append(timed(put_back))
        os.truncate(file, base)
        bare.append(timed(copy))
        (folder / "copy").unlink()
    value, reference = sorted(ours)[len(ours) // 2], sorted(bare)[len(bare) // 2]
    against = "a copy of the backup, as durable"
    return Row("restore", value * 1000, "ms", reference * 1000, against, bar=2.0)


def _rolling(file: Path) -> Callable[[], None]:
    """Take the last turn away; then, as that is not measured, have it back."""
    logs = file.with_suffix(".logs")
    end = _end(file)

    def roll() -> None:
        backup = jsonl.remove(file, LAST, logs, {**ABOUT, "receipt": os.urandom(8).hex()})
        assert backup is not None
        with file.open("ab") as out:
            out.write(end[-backup.removed :])
        backup.file.unlink()

    return roll


def _end(file: Path) -> bytes:
    with file.open("rb") as data:
        data.seek(-3 * LINE, os.SEEK_END)
        return data.read()


def _transcript(file: Path, size: int, last: int = LINE) -> Path:
    """Of about this size, with a last turn of two entries."""
    with file.open("wb") as out:
        out.write(json.dumps({"type": "session", "version": 3, "id": "s"}).encode() + b"\n")
        number = 0
        while out.tell() < size:
            number += 1
            out.write(_entry(number, "user", LINE))
            number += 1
            out.write(_entry(number, "assistant", LINE))
        out.write(_entry(number + 1, "user", LINE))
        out.write(_entry(number + 2, "assistant", last))
        out.flush()
        os.fsync(out.fileno())
    return file


def _entry(number: int, role: str, size: int) -> bytes:
    message = {
        "role": role,
        "content": [{"type": "text", "text": "x" * size}],
        "stopReason": "stop",
    }
    about = {"type": "message", "id": f"e{number}", "parentId": f"e{number - 1}"}
    return json.dumps({**about, "message": message}).encode() + b"\n"


MEMORY: tuple[Callable[[Path, int], Row], ...] = (rollback, rewriting, restore)
