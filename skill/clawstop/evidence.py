"""What the host left on disk about its conversations, read and never changed: the last entries of
each, and what was noted of it. Newer hosts keep a database, older ones a file for each session.

Reading is from the end, and of many sessions one after the other: nothing is kept.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from . import jsonl, locks, turns
from .errors import TranscriptError
from .paths import Paths, read_object
from .scopes import agent_of
from .turns import Entry
from .verdicts import Evidence, Tail

ENTRIES = 60  # of a session that are looked at: a batch of tools and what the host notes beside it
DATABASE = Path("agent") / "openclaw-agent.sqlite"
STATUSES = frozenset({"running", "done", "failed", "killed", "timeout"})
MARK = "restart-resume.json"  # a session that another tool will go on with


def sessions(paths: Paths) -> Iterator[Evidence]:
    """Every session of every agent."""
    folder = paths.openclaw / "agents"
    for agent in sorted(folder.iterdir()) if folder.is_dir() else ():
        yield from of_agent(agent)


def of(paths: Paths, session: str, agent: str) -> Evidence:
    """One session; empty where nothing is known of it."""
    folder = paths.openclaw / "agents"
    known = {one.name for one in folder.iterdir()} if folder.is_dir() else set()
    if agent not in known:  # a name that was only told never becomes a path
        return Evidence(session)
    return next(of_agent(folder / agent, session), Evidence(session))


def is_hosted(agent: Path) -> bool:
    """Whether conversations are in the database of the agent whose folder this is. In 2026.6 and
    2026.7 only keys and an index are, and conversations in files beside it."""
    if not (agent / DATABASE).is_file():
        return False
    try:
        with contextlib.closing(_opened(agent / DATABASE)) as db:
            return bool(db.execute(TABLE).fetchone())
    except sqlite3.Error:
        return True  # what cannot be read is not for us to cut


def of_agent(agent: Path, only: str = "") -> Iterator[Evidence]:
    """Of the agent whose folder this is."""
    if is_hosted(agent):
        yield from _hosted(agent / DATABASE, only)
    else:
        yield from _files(agent / "sessions", only)


def marked(agent: str, workspaces: Iterable[Path]) -> dict[str, str]:
    """Sessions of this agent that another tool says it will resume: session -> the file that says
    so. A workspace speaks for its own agent only."""
    found = {}
    for workspace in workspaces:
        for file in (workspace / "state" / MARK, workspace / MARK):
            told = read_object(file) or {}
            key = told.get("sessionKey")
            if told.get("pending") is True and isinstance(key, str) and agent_of(key) == agent:
                found[key] = str(file)
    return found


# -- in the host's database

TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'session_nodes'"
NODES = "SELECT session_key, current_session_id, status, entry_json FROM session_nodes"
EVENTS = (
    "SELECT COALESCE(event_json, '?') FROM transcript_events WHERE session_id = ? "  # or packed
    "ORDER BY seq DESC LIMIT ?"
)


_ENDED = re.compile(r'"endedAt":(\d{1,15})')


def _hosted(database: Path, only: str) -> Iterator[Evidence]:
    try:
        with contextlib.closing(_opened(database)) as db:
            where, given = (" WHERE session_key = ?", (only,)) if only else ("", ())
            for key, id, status, noted in db.execute(NODES + where, given):
                lines = (line for (line,) in db.execute(EVENTS, (id, ENTRIES)))
                ended = _ENDED.search(noted or "")  # far cheaper than reading all of the note
                entry = {
                    "status": status,
                    "abortedLastRun": '"abortedLastRun":true' in (noted or ""),
                    "endedAt": int(ended[1]) if ended else 0,
                }
                yield told(str(key), entry, lines)
    except (sqlite3.Error, TypeError, ValueError) as error:  # of a newer host, or damaged
        yield Evidence(only, problem=f"{database} cannot be read: {error}")


def _opened(database: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)
    db.execute("PRAGMA query_only = 1")
    return db


# -- in files


def _files(folder: Path, only: str) -> Iterator[Evidence]:
    noted = read_object(folder / "sessions.json") or {}
    for key, entry in noted.items():
        if isinstance(entry, dict) and only in ("", key):
            yield _file(folder, str(key), entry)


def _file(folder: Path, key: str, entry: dict[str, Any]) -> Evidence:
    name = Path(str(entry.get("sessionFile") or f"{entry.get('sessionId')}.jsonl")).name
    file = folder / name
    try:
        locked = locks.is_stale(file)
        if not file.is_file():  # a first turn may not have one yet
            return told(key, entry, (), locked=locked)
        with jsonl.newest(file) as lines:
            return told(key, entry, islice(lines, ENTRIES), locked=locked)
    except (TranscriptError, OSError, ValueError) as error:
        return Evidence(key, problem=str(error))


# -- both


def told(
    session: str, entry: Mapping[str, Any], lines: Iterable[bytes | str], *, locked: bool = False
) -> Evidence:
    """From what the host noted of a session, and its last lines, newest first."""
    status, ended = entry.get("status"), entry.get("endedAt")
    return Evidence(
        session,
        _tail(lines),
        status if isinstance(status, str) and status in STATUSES else "",
        entry.get("abortedLastRun") is True,
        ended / 1000 if isinstance(ended, int | float) and abs(ended) < 1e15 else 0.0,
        locked,
    )


def _tail(lines: Iterable[bytes | str]) -> Tail:
    """From lines, newest first. Reads no further than the agent's last word."""
    damaged = False

    def entries() -> Iterator[Entry]:
        nonlocal damaged
        seen = False
        for line in lines:
            entry = turns.parse(line)
            if entry is not None:
                seen = True
                yield entry
            elif not seen and line.strip():  # further up it is somebody else's trouble
                damaged = True

    found = Tail.of(turns.branch(entries()))
    return replace(found, damaged=True) if damaged else found
