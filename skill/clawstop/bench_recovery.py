"""Benchmarks of what happens after a crash: telling how 10,000 conversations stand, beside the bare
cost of reading the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import statistics
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from . import evidence, tail
from .bench import Row, timed
from .verdicts import judge

SESSIONS = 10_000
FILES = 50  # of a megabyte each; a session more is another look at one of them
SIZE = 1 << 20
MOST = 64 * 1024 * 1024  # bytes of memory
ROUNDS = 3  # each takes seconds


def classify(folder: Path, batches: int) -> Row:
    """Conversations in files: the end of each is read."""
    sessions = _files(folder)
    names = [folder / f"{number % FILES}.jsonl" for number in range(SESSIONS)]

    def ours() -> None:
        for found in evidence.of_agent(sessions):
            judge(found)

    def bare() -> None:
        json.loads((sessions / "sessions" / "sessions.json").read_bytes())
        for name in names:
            fd = os.open(name, os.O_RDONLY)
            size = os.fstat(fd).st_size
            tail.read(fd, max(0, size - tail.BLOCK), tail.BLOCK)
            os.close(fd)

    return _compared("classify", ours, bare, "reading the same ends")


def classify_hosted(folder: Path, batches: int) -> Row:
    """Conversations in the host's database: its rows are read."""
    agent = _hosted(folder)

    def ours() -> None:
        for found in evidence.of_agent(agent):
            judge(found)

    def bare() -> None:
        with contextlib.closing(sqlite3.connect(agent / evidence.DATABASE)) as db:
            for _, id, *_ in db.execute(evidence.NODES):
                db.execute(evidence.EVENTS, (id, evidence.ENTRIES)).fetchmany(2)

    return _compared("classify_hosted", ours, bare, "the same queries")


def classify_memory(folder: Path, batches: int) -> Row:
    """The most memory that it takes for all of them."""
    sessions = _files(folder)
    tracemalloc.start()
    try:
        for found in evidence.of_agent(sessions):
            judge(found)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return Row("classify_memory", peak / 2**20, "MB", MOST / 2**20, "what it may take", bar=1.0)


def _compared(name: str, ours: Callable[[], None], bare: Callable[[], None], against: str) -> Row:
    bare()  # so that both find the files in memory
    pairs = [(timed(ours), timed(bare)) for _ in range(ROUNDS)]
    each = [statistics.median(column) * 1000 for column in zip(*pairs, strict=True)]
    return Row(name, each[0], "ms", each[1], against, bar=2.0)


def _entries(last: str) -> list[str]:
    """The end of a turn, as a host writes it."""
    rows: list[tuple[str, object]] = [
        ("user", "please go on with the report"),
        ("assistant", [{"type": "toolCall", "id": "c1", "name": "exec", "arguments": {}}]),
        ("toolResult", [{"type": "text", "text": "x" * 2000}]),
    ]
    if last == "done":
        rows.append(("assistant", [{"type": "text", "text": "It is done."}]))
    lines = []
    for number, (role, content) in enumerate(rows):
        message = {"role": role, "content": content, "stopReason": "stop", "toolCallId": "c1"}
        parent = f"e{number - 1}" if number else None
        about = {"type": "message", "id": f"e{number}", "parentId": parent, "message": message}
        lines.append(json.dumps({**about, "timestamp": "2026-01-01T00:00:00Z"}))
    return lines


def _files(folder: Path) -> Path:
    agent = folder / "agent-with-files"
    sessions = agent / "sessions"
    sessions.mkdir(parents=True)
    filler = json.dumps({"type": "custom", "id": "c", "parentId": None, "data": "y" * 1000}) + "\n"
    for number in range(FILES):
        text = "\n".join(_entries("done" if number % 2 else "cut")) + "\n"
        whole = '{"type":"session","version":3,"id":"s"}\n' + filler * (SIZE // len(filler)) + text
        for name in (folder / f"{number}.jsonl", sessions / f"{number}.jsonl"):
            name.write_text(whole)
    listed = {
        f"agent:bench:{number}": {"sessionId": str(number % FILES), "updatedAt": 1}
        for number in range(SESSIONS)
    }
    (sessions / "sessions.json").write_text(json.dumps(listed))
    return agent


def _hosted(folder: Path) -> Path:
    agent = folder / "agent-in-database"
    (agent / evidence.DATABASE).parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(agent / evidence.DATABASE)) as db, db:
        db.execute(
            "CREATE TABLE session_nodes (session_key TEXT PRIMARY KEY, current_session_id TEXT, "
            "status TEXT, entry_json TEXT)"
        )
        db.execute(
            "CREATE TABLE transcript_events (session_id TEXT, seq INTEGER, event_json TEXT, "
            "PRIMARY KEY (session_id, seq))"
        )
        for number in range(SESSIONS):
            status = "done" if number % 2 else "running"
            note = json.dumps({"skillsSnapshot": "z" * 6000, "endedAt": 1})
            row = (f"agent:bench:{number}", str(number), status, note)
            db.execute("INSERT INTO session_nodes VALUES (?, ?, ?, ?)", row)
            events = enumerate(_entries("done" if number % 2 else "cut"))
            db.executemany(
                "INSERT INTO transcript_events VALUES (?, ?, ?)",
                ((str(number), seq, line) for seq, line in events),
            )
    return agent


RECOVERY: tuple[Callable[[Path, int], Row], ...] = (classify, classify_hosted, classify_memory)
