"""The state database as a file: its tables, its versions, and what happens when it is damaged."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

from .errors import StoreError
from .paths import write_private

log = logging.getLogger("clawstop.schema")

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sessions (
    key TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    released INTEGER NOT NULL DEFAULT 0,    -- the newest latch number that a release has answered
    parent TEXT,                            -- the session that spawned it
    born INTEGER                            -- the parent's generation that did
) WITHOUT ROWID;
CREATE INDEX sessions_by_parent ON sessions (parent);
CREATE TABLE latches (
    scope TEXT PRIMARY KEY, number INTEGER NOT NULL, stop TEXT NOT NULL, since REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE runs (
    id TEXT NOT NULL, session TEXT NOT NULL, generation INTEGER NOT NULL,
    cause TEXT NOT NULL, started REAL NOT NULL, ended REAL, PRIMARY KEY (session, id)
) WITHOUT ROWID;
CREATE INDEX runs_by_session ON runs (session, ended);
CREATE TABLE stops (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, bumped TEXT NOT NULL,
    created REAL NOT NULL, finished REAL
) WITHOUT ROWID;
CREATE TABLE messages (id TEXT PRIMARY KEY, seen REAL NOT NULL) WITHOUT ROWID;
"""
# What the host calls a session's transcript; what a run left behind that may start a run later: its
# background processes, and its scheduled jobs with the stop that turned them off.
TRACES = """
ALTER TABLE sessions ADD COLUMN host_id TEXT;
CREATE INDEX sessions_by_host_id ON sessions (host_id);
CREATE TABLE execs (
    session TEXT NOT NULL, id TEXT NOT NULL, generation INTEGER NOT NULL, made REAL NOT NULL,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, generation INTEGER NOT NULL,
    about TEXT NOT NULL, made REAL NOT NULL, stop TEXT
) WITHOUT ROWID;
"""
# What is frozen: its processes are stopped and its tools wait, until it is stopped or released.
FROZEN = """
CREATE TABLE frozen (scope TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX runs_alive ON runs (started) WHERE ended IS NULL;
"""
# When the message came that a run answers, and the stop that ended it; the generation for which a
# session's memory was rolled back; the rollback of each stop, and what it did once it was made; a
# restore under way.
MEMORY = """
ALTER TABLE runs ADD COLUMN asked REAL;
ALTER TABLE runs ADD COLUMN stop TEXT;
ALTER TABLE sessions ADD COLUMN clean INTEGER;
CREATE TABLE rollbacks (
    stop TEXT NOT NULL, session TEXT NOT NULL, cut TEXT NOT NULL, generation INTEGER NOT NULL,
    made REAL NOT NULL, move TEXT, PRIMARY KEY (stop, session)
) WITHOUT ROWID;
CREATE INDEX rollbacks_by_session ON rollbacks (session);
CREATE TABLE restores (id TEXT PRIMARY KEY, about TEXT NOT NULL, made REAL NOT NULL) WITHOUT ROWID;
"""
# A person's messages until a run has them: what a crash would lose.
PROMPTS = """
CREATE TABLE prompts (
    session TEXT NOT NULL, id TEXT NOT NULL, sender TEXT NOT NULL, text TEXT NOT NULL,
    route TEXT NOT NULL, came REAL NOT NULL, PRIMARY KEY (session, id)
) WITHOUT ROWID;
"""
# Which run has a message, which gateway took it in; what a crash has cut off.
CUTS = """
ALTER TABLE prompts ADD COLUMN run TEXT;
ALTER TABLE prompts ADD COLUMN gateway TEXT NOT NULL DEFAULT '';
CREATE TABLE cuts (session TEXT PRIMARY KEY, about TEXT NOT NULL) WITHOUT ROWID;
"""
# Each takes the database from one version to the next. They only add: an older clawstop opens a
# newer database and leaves alone what it does not know, unless that says it would lose something.
MIGRATIONS = (SCHEMA, TRACES, FROZEN, MEMORY, PROMPTS, CUTS)
OLDEST_READER = 1  # the oldest version that may write a database of the newest one
BUSY_SECONDS = 5.0  # nobody but one engine writes; a longer wait means something is broken


def open_database(file: Path, now: int) -> sqlite3.Connection:
    """Open, migrate or make the database. A damaged one is moved aside, and `was_lost` says so
    until `found_again` is called: a crash in between changes nothing."""
    try:
        return _opened(file)
    except sqlite3.OperationalError as error:
        raise StoreError(f"cannot use {file}: {error}") from error
    except sqlite3.DatabaseError:
        # The new generations begin at a number that was never reached by counting.
        write_private(_mark(file), str(now))
        aside = f"{file.name}.corrupt-{now}"
        log.error("state database is corrupt: moved to %s, everything is latched", aside)
        for suffix in ("-wal", "-shm", ""):
            part = file.with_name(file.name + suffix)
            if part.exists():
                part.rename(file.with_name(aside + suffix))
        return _opened(file)


def was_lost(file: Path) -> bool:
    return _mark(file).exists()


def found_again(file: Path) -> None:
    _mark(file).unlink()


def _mark(file: Path) -> Path:
    return file.with_name(f"{file.name}.lost")


def _opened(file: Path) -> sqlite3.Connection:
    first = int(_mark(file).read_text()) if was_lost(file) else 1
    db = sqlite3.connect(file, isolation_level=None, timeout=BUSY_SECONDS)
    try:
        file.chmod(0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        _migrate(db, first)
    except BaseException:
        db.close()
        raise
    return db


def _migrate(db: sqlite3.Connection, first_generation: int) -> None:
    found = db.execute("PRAGMA user_version").fetchone()[0]
    known = len(MIGRATIONS)
    if found and db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise sqlite3.DatabaseError("quick_check failed")
    if found > known:
        oldest = db.execute("SELECT value FROM meta WHERE key = 'oldest_reader'").fetchone()[0]
        if int(oldest) > known:
            raise StoreError(
                f"the state database has schema {found}, this clawstop knows {known}; "
                "update clawstop"
            )
    if found >= known:
        return
    db.execute("BEGIN IMMEDIATE")
    for script in MIGRATIONS[found:]:
        for statement in script.split(";\n"):
            db.execute(statement)
    if not found:
        values = {"generation": str(first_generation), "latch": "0"}
        db.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
    reader = ("oldest_reader", str(OLDEST_READER))
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", reader)
    db.execute(f"PRAGMA user_version = {known}")
    db.execute("COMMIT")
