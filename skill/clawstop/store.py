"""The truth: generations, latches, bound runs and unfinished stops, durable in SQLite.

Nothing else keeps truth. Every public method that changes something is one transaction, on disk
(WAL, full sync) when it returns. The rules that matter:

- A session's generation only grows. A run is bound to one generation and dead once it is older.
- A latch has a number that only grows. A session is latched while a latch that covers it is newer
  than the session's own last release. So a message releases one session under an agent-wide latch
  and leaves the others closed.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import schema, scopes
from .cuts import Cuts
from .errors import StoreError
from .prompts import Prompts

KEPT_DAYS = 30.0  # nothing of the host's comes back after a month

# One statement: every tool call waits for it, and each statement locks and unlocks the file anew.
_STANDING = """
SELECT
    (SELECT generation FROM runs WHERE id = ?1 AND session = ?2),
    s.generation,
    (SELECT value FROM meta WHERE key = 'generation'),
    (SELECT MAX(since) FROM latches
        WHERE scope IN (?2, ?3, ?4) AND number > COALESCE(s.released, 0))
FROM (SELECT 1) LEFT JOIN sessions AS s ON s.key = ?2
"""


@dataclass(frozen=True)
class Standing:
    """Where a run, or a session without one, stands at this instant."""

    session: str
    generation: int
    bound: int | None = None  # the run's generation; None when no run is asked about
    latched_since: float | None = None

    @property
    def dead(self) -> bool:
        return self.bound is not None and self.bound < self.generation

    @property
    def refusal(self) -> str | None:
        """Why nothing of this may act or speak; None when it may."""
        if self.latched_since is not None:
            clock = time.strftime("%H:%M", time.localtime(self.latched_since))
            return f"session {self.session} is stopped since {clock}; send it a message to go on"
        if self.dead:
            return (
                f"this run of {self.session} was stopped (generation {self.bound}, "
                f"now {self.generation}) and cannot act any more"
            )
        return None


class Store:
    def __init__(
        self, connection: sqlite3.Connection, clock: Callable[[], float] = time.time
    ) -> None:
        self._db = connection
        self._clock = clock
        self.prompts = Prompts(connection, self._transaction)
        self.cuts = Cuts(connection, self._transaction)
        self._frozen: list[str] | None = None

    @classmethod
    def open(cls, file: Path, clock: Callable[[], float] = time.time) -> Store:
        """Open or make the database. One that cannot be read is moved aside, and the new one
        starts with everything latched: what was closed stays closed."""
        store = cls(schema.open_database(file, int(clock())), clock)
        if schema.was_lost(file):
            request = {"trigger": "corrupt state database"}
            store.begin_stop("corrupt-state", request, [scopes.EVERYTHING], [])
            store.finish_stop("corrupt-state")
            schema.found_again(file)
        return store

    def close(self) -> None:
        self._db.close()

    # -- the database

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StoreError(f"state not saved: {error}") from error
            raise

    def _meta(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0])

    @property
    def first_generation(self) -> int:
        """The generation of a session that was never seen."""
        return int(self._meta("generation"))

    # -- sessions and runs

    def _ensure(self, session: str) -> int:
        """The session's generation; a session seen for the first time gets a row."""
        row = self._db.execute(
            "SELECT generation FROM sessions WHERE key = ?", (session,)
        ).fetchone()
        if row:
            return int(row[0])
        first = self.first_generation
        self._db.execute("INSERT INTO sessions (key, generation) VALUES (?, ?)", (session, first))
        return first

    def generation(self, session: str) -> int:
        row = self._db.execute(
            "SELECT generation FROM sessions WHERE key = ?", (session,)
        ).fetchone()
        return int(row[0]) if row else self.first_generation

    def bind(
        self,
        run: str,
        session: str,
        cause: str,
        reports: Sequence[str] = (),
        asked: float | None = None,
    ) -> Standing:
        """Bind a run to the generation of what caused it; a run is bound once and for ever.

        `cause` "message" is a person's message. Anything else belongs to the generation of what it
        reports (a child session, `exec:<id>`, `job:<id>`), or, when that cannot be named, to the
        oldest one still open. `asked` is when the message came in that it answers.
        """
        standing = self.standing(session, run)
        if standing.bound is not None:
            return standing
        with self._transaction():
            current = self._ensure(session)
            if standing.latched_since is not None:
                generation = current - 1  # it came too late, and a later release is not for it
            elif cause == "message":
                generation = current
            else:
                generation = min(current, self._caused_by(session, reports))
            self._db.execute(
                "INSERT INTO runs (id, session, generation, cause, started, asked) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (run, session, generation, cause, self._clock(), asked),
            )
        return self.standing(session, run)

    def _caused_by(self, session: str, reports: Sequence[str]) -> int:
        named = [self._reported(session, one) for one in reports]
        known = [generation for generation in named if generation is not None]
        if known:
            return min(known)
        row = self._db.execute(
            "SELECT MIN(generation) FROM runs WHERE session = ? AND ended IS NULL", (session,)
        ).fetchone()
        return int(row[0]) if row[0] is not None else self.generation(session)

    def _reported(self, session: str, reports: str) -> int | None:
        kind, _, id = reports.partition(":")
        if kind == "exec":
            query = "SELECT generation FROM execs WHERE session = ? AND id = ?"
            row = self._db.execute(query, (session, id)).fetchone()
        elif kind == "job":  # it may run in a session of its own: what counts is who made it
            query = (
                "SELECT MIN(j.generation < s.generation) FROM jobs AS j "
                "JOIN sessions AS s ON s.key = j.session WHERE j.id = ?"
            )
            dead = self._db.execute(query, (id,)).fetchone()[0]
            return None if dead is None else self.generation(session) - dead
        else:
            query = "SELECT born FROM sessions WHERE key = ? AND parent = ?"
            row = self._db.execute(query, (reports, session)).fetchone()
        return int(row[0]) if row and row[0] is not None else None

    def started_exec(self, session: str, run: str, id: str) -> None:
        """A run left a process in the background; when it ends, the host starts a run for it.

        The host draws ids again: the newest process of that name is meant.
        """
        generation = self._of_run(session, run)
        with self._transaction():
            self._db.execute(
                "INSERT INTO execs VALUES (?, ?, ?, ?) ON CONFLICT (session, id) DO UPDATE SET "
                "generation = excluded.generation, made = excluded.made "
                "WHERE excluded.generation > generation",
                (session, id, generation, self._clock()),
            )

    def made_job(self, session: str, run: str, id: str, about: str) -> None:
        """A run scheduled something that starts runs by itself."""
        generation = self._of_run(session, run)
        with self._transaction():
            self._ensure(session)
            self._db.execute(
                "INSERT OR IGNORE INTO jobs VALUES (?, ?, ?, ?, ?, NULL)",
                (id, session, generation, about, self._clock()),
            )

    def _of_run(self, session: str, run: str) -> int:
        bound = self.standing(session, run).bound
        return self.generation(session) if bound is None else bound

    def dead_execs(self, sessions: Iterable[str]) -> list[str]:
        """Ids of the background processes that dead runs of these sessions left."""
        inside = set(sessions)
        rows = self._db.execute(
            "SELECT e.id, e.session FROM execs AS e JOIN sessions AS s ON s.key = e.session"
            " WHERE e.generation < s.generation"
        )
        return [id for id, session in rows if session in inside]

    def dead_jobs(self, sessions: Iterable[str]) -> list[tuple[str, str, str]]:
        """(id, session, about) of jobs that dead runs of these sessions made and that are on."""
        inside = set(sessions)
        rows = self._db.execute(
            "SELECT j.id, j.session, j.about FROM jobs AS j JOIN sessions AS s ON s.key = j.session"
            " WHERE j.stop IS NULL AND j.generation < s.generation ORDER BY j.made"
        )
        return [row for row in rows if row[1] in inside]

    def jobs_off(self, stop: str, ids: Iterable[str]) -> None:
        with self._transaction():
            for id in ids:
                self._db.execute("UPDATE jobs SET stop = ? WHERE id = ?", (stop, id))

    def jobs_of(self, stop: str) -> list[dict[str, str]]:
        """The jobs that this stop turned off and that are still off, as a receipt lists them."""
        rows = self._db.execute("SELECT id, about FROM jobs WHERE stop = ? ORDER BY made", (stop,))
        return [{"id": id, "outcome": "off", "about": about} for id, about in rows]

    def jobs_on(self, ids: Iterable[str]) -> None:
        """A person wants them back: they belong to the present generation from now on."""
        with self._transaction():
            for id in ids:
                self._db.execute(
                    "UPDATE jobs SET stop = NULL, generation = "
                    "(SELECT generation FROM sessions WHERE key = jobs.session) WHERE id = ?",
                    (id,),
                )

    def adopt(self, child: str, parent: str) -> None:
        """Record, once, that a run of `parent` spawned the session `child`.

        The host does not say which run: it counts as the oldest that is alive. A child of a dead
        run or of a latched session is latched with it.
        """
        with self._transaction():
            self._ensure(child)
            current = self._ensure(parent)
            born = min(current, self._caused_by(parent, ()))
            fresh = self._db.execute(
                "UPDATE sessions SET parent = ?, born = ? WHERE key = ? AND parent IS NULL",
                (parent, born, child),
            ).rowcount
            if fresh and (born < current or self._latched_since(parent) is not None):
                self._latch([child], "inherited", self._clock())
                self._bump([child])
            elif fresh:  # what released its parent under an agent-wide latch is for it too
                self._db.execute(
                    "UPDATE sessions SET released = (SELECT released FROM sessions WHERE key = ?) "
                    "WHERE key = ?",
                    (parent, child),
                )

    def end_run(self, run: str, session: str, at: float | None = None) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET ended = ? WHERE id = ? AND session = ? AND ended IS NULL",
                (self._clock() if at is None else at, run, session),
            )
            self.prompts.answered(session, run)

    def bury(self, run: str, session: str) -> Standing:
        """A run that may not go on with what it came for is dead, and was never alive."""
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET generation = ? WHERE id = ? AND session = ?",
                (self._ensure(session) - 1, run, session),
            )
        self.end_run(run, session)
        return self.standing(session, run)

    def end_runs_but(self, alive: Iterable[tuple[str, str]]) -> None:
        """A gateway came up: of all (run, session), only these are still alive."""
        keep = set(alive)
        for run, session, _ in self.live_runs():
            if (run, session) not in keep:
                self.end_run(run, session)

    def live_runs(self) -> list[tuple[str, str, int]]:
        """(run, session, generation) of every run that has not ended."""
        return list(
            self._db.execute("SELECT id, session, generation FROM runs WHERE ended IS NULL")
        )

    def run(self, session: str, run: str) -> tuple[str, float]:
        """(cause, when it started) of a run on record."""
        query = "SELECT cause, started FROM runs WHERE session = ? AND id = ?"
        found = self._db.execute(query, (session, run)).fetchone()
        return (found[0], found[1]) if found else ("", 0.0)

    def noted(self, key: str) -> list[Any]:
        """A short list that outlives the engine: gateways that were seen, when they started."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return list(json.loads(row[0])) if row else []

    def note(self, key: str, value: Any, most: int) -> list[Any]:
        """Add to such a list; the oldest go."""
        kept = [*self.noted(key), value][-most:]
        with self._transaction():
            values = (key, json.dumps(kept))
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)
        return kept

    def unnote(self, key: str, value: Any) -> None:
        """Take it out of such a list."""
        kept = [one for one in self.noted(key) if one != value]
        with self._transaction():
            values = (key, json.dumps(kept))
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)

    def note_alive(self) -> None:
        """Runs are at work at this moment: what a crash is dated by."""
        with self._transaction():
            now = str(self._clock())
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('alive', ?)", (now,))

    @property
    def last_alive(self) -> float:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'alive'").fetchone()
        return float(row[0]) if row else 0.0

    def overdue(self, seconds: float) -> list[tuple[str, str]]:
        """(run, session) of every run that is not dead and has been alive for longer than this."""
        query = (
            "SELECT r.id, r.session FROM runs AS r JOIN sessions AS s ON s.key = r.session "
            "WHERE r.ended IS NULL AND r.started < ? AND r.generation = s.generation"
        )
        return list(self._db.execute(query, (self._clock() - seconds,)))

    def ended_by(self, stop: str, runs: Iterable[tuple[str, str]]) -> None:
        """These (run, session) were alive when the stop came."""
        with self._transaction():
            for run, session in runs:
                self._db.execute(
                    "UPDATE runs SET stop = ? WHERE id = ? AND session = ?", (stop, run, session)
                )

    def tasks(self, stop: str, bumped: Mapping[str, int], *, unseen: bool) -> dict[str, float]:
        """Session -> since when it worked on what this stop has ended; idle ones are left out.

        What a gateway reported as ended by this stop, or ended since; `unseen`, when there is none
        to ask, also what never was reported as ended. A message that waited for the run before it
        counts from that one's end. Without a message a run is a moment older than we knew of it.
        """
        query = (
            "SELECT MAX(COALESCE(r.asked, r.started - 5), COALESCE((SELECT MAX(o.ended) FROM runs "
            "AS o WHERE o.session = r.session AND o.id != r.id AND o.ended <= r.started), 0)) "
            "FROM runs AS r LEFT JOIN stops AS s ON s.id = ?1 "
            "WHERE r.session = ?2 AND r.generation = ?3 - 1 "
            "AND (r.stop = ?1 OR r.ended >= s.created OR (?4 AND r.ended IS NULL))"
        )
        begun = {
            session: [row[0] for row in self._db.execute(query, (stop, session, new, unseen))]
            for session, new in bumped.items()
        }
        return {session: min(times) for session, times in begun.items() if times}

    def ran_since(self, session: str, generation: int) -> bool:
        """Whether anything has run in the session in this generation, or later."""
        query = "SELECT 1 FROM runs WHERE session = ? AND generation >= ?"
        return bool(self._db.execute(query, (session, generation)).fetchone())

    # -- memory that is to be changed, or was

    def plan_rollback(self, stop: str, session: str, cut: dict[str, Any], generation: int) -> None:
        with self._transaction():
            self._ensure(session)
            self._db.execute(
                "INSERT OR IGNORE INTO rollbacks VALUES (?, ?, ?, ?, ?, NULL)",
                (stop, session, json.dumps(cut), generation, self._clock()),
            )

    def rollback_of(self, stop: str, session: str) -> dict[str, Any] | None:
        """What a stop did to the session's memory; None when it has not."""
        query = "SELECT move FROM rollbacks WHERE stop = ? AND session = ?"
        row = self._db.execute(query, (stop, session)).fetchone()
        return dict(json.loads(row[0])) if row and row[0] else None

    def waiting_rollback(self, session: str) -> tuple[str, dict[str, Any], int] | None:
        """(stop, cut, generation) of one that could not be made, if nothing has run there since."""
        query = (
            "SELECT stop, cut, generation FROM rollbacks WHERE session = ? AND move IS NULL "
            "ORDER BY made"
        )
        for stop, cut, generation in self._db.execute(query, (session,)).fetchall():
            if not self.ran_since(session, generation):
                return stop, dict(json.loads(cut)), generation
        return None

    def made_rollback(self, stop: str, session: str, move: dict[str, Any]) -> None:
        """Its memory is as before the task, until something runs or is restored there."""
        with self._transaction():
            generation = self._ensure(session)
            self._db.execute(
                "UPDATE rollbacks SET move = ? WHERE stop = ? AND session = ?",
                (json.dumps(move), stop, session),
            )
            self._db.execute("UPDATE sessions SET clean = ? WHERE key = ?", (generation, session))

    def drop_rollbacks(self, session: str) -> None:
        """There is nothing to take away, or not any more."""
        with self._transaction():
            self._db.execute("DELETE FROM rollbacks WHERE session = ? AND move IS NULL", (session,))

    def set_clean(self, session: str, clean: bool) -> None:
        """After a restore, or its undoing."""
        with self._transaction():
            generation = self._ensure(session) if clean else None
            self._db.execute("UPDATE sessions SET clean = ? WHERE key = ?", (generation, session))

    def still_clean(self, bumped: Mapping[str, int]) -> set[str]:
        """Those of a stop whose memory an earlier one has rolled back, with nothing run since."""
        rows = self._db.execute(
            "SELECT key, clean FROM sessions AS s WHERE clean IS NOT NULL AND NOT EXISTS "
            "(SELECT 1 FROM runs AS r WHERE r.session = s.key AND r.generation >= s.clean)"
        )
        return {key for key, clean in rows if bumped.get(key) in (clean, clean + 1)}

    def on_standby(self) -> list[str]:
        """Sessions that are stopped, and whose memory is as before the task."""
        rows = self._db.execute("SELECT key FROM sessions WHERE clean = generation").fetchall()
        return [key for (key,) in rows if self._latched_since(key) is not None]

    def begin_restore(self, id: str, about: dict[str, Any]) -> None:
        with self._transaction():
            self._db.execute(
                "INSERT INTO restores VALUES (?, ?, ?)", (id, json.dumps(about), self._clock())
            )

    def restores(self) -> list[tuple[str, dict[str, Any]]]:
        """(id, about) of the restores that were begun and not finished."""
        rows = self._db.execute("SELECT id, about FROM restores ORDER BY made")
        return [(id, json.loads(about)) for id, about in rows]

    def finish_restore(self, id: str) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM restores WHERE id = ?", (id,))

    def last_run_in(self, sessions: Iterable[str]) -> str | None:
        """The session of these in which something was last asked for."""
        inside = set(sessions)
        rows = self._db.execute("SELECT session FROM runs ORDER BY started DESC")
        return next((session for (session,) in rows if session in inside), None)

    def prune(self, days: float = KEPT_DAYS) -> None:
        """Forget ended runs and finished stops of long ago. Sessions and message ids are kept."""
        old = self._clock() - days * 86400
        with self._transaction():
            self._db.execute("DELETE FROM runs WHERE ended < ?", (old,))
            self._db.execute("DELETE FROM stops WHERE finished < ?", (old,))
            self._db.execute("DELETE FROM execs WHERE made < ?", (old,))
            self._db.execute("DELETE FROM rollbacks WHERE made < ?", (old,))

    def sessions(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT key FROM sessions ORDER BY key")]

    def name(self, session: str, host_id: str) -> None:
        """Remember what the host calls this session: a stop flag may name it so."""
        if self.session_named(host_id) == session:
            return
        with self._transaction():
            self._ensure(session)
            self._db.execute(
                "UPDATE sessions SET host_id = ?1 WHERE key = ?2 AND host_id IS NOT ?1",
                (host_id, session),
            )

    def session_named(self, name: str) -> str | None:
        """The session whose key, or whose id in the host, this is."""
        row = self._db.execute(
            "SELECT key FROM sessions WHERE key = ?1 OR host_id = ?1 ORDER BY key != ?1", (name,)
        ).fetchone()
        return row[0] if row else None

    def host_ids(self) -> dict[str, str]:
        """What the host calls its sessions, as far as it has told."""
        rows = self._db.execute("SELECT key, host_id FROM sessions WHERE host_id IS NOT NULL")
        return dict(rows.fetchall())

    def descendants(self, session: str) -> list[str]:
        """The session's subagent sessions at any depth, deepest first."""
        found: list[str] = []
        layer = [session]
        while layer:
            marks = ",".join("?" * len(layer))
            rows = self._db.execute(f"SELECT key FROM sessions WHERE parent IN ({marks})", layer)
            layer = [key for (key,) in rows if key not in found and key != session]
            found = layer + found
        return found

    def standing(self, session: str, run: str | None = None) -> Standing:
        agent = scopes.agent_scope(scopes.agent_of(session))
        row = self._db.execute(_STANDING, (run, session, agent, scopes.EVERYTHING)).fetchone()
        bound, generation, first, since = row
        return Standing(session, int(first) if generation is None else generation, bound, since)

    def _latched_since(self, session: str) -> float | None:
        return self.standing(session).latched_since

    # -- stops

    def begin_stop(
        self,
        stop: str,
        request: dict[str, Any],
        latch: Iterable[str],
        bump: Iterable[str],
        at: float | None = None,
    ) -> dict[str, int]:
        """Step 1: latch every scope and bump every session, in one transaction.

        Returns each bumped session's new generation. The same stop begun twice changes nothing.
        `at` is when it was said, for one that nobody could take in then.
        """
        now = self._clock() if at is None else at
        with self._transaction():
            row = self._db.execute("SELECT bumped FROM stops WHERE id = ?", (stop,)).fetchone()
            if row:
                return dict(json.loads(row[0]))
            latch = [*latch]
            self._latch(latch, stop, now)
            bumped = self._bump(bump)
            self.cuts.discard(latch)
            if (request.get("memory") or {}).get("rule") == "takeover":
                self.cuts.overtake(bumped, str(request.get("who") or ""))
            else:
                self.cuts.discard(bumped)
            self._db.execute(
                "INSERT INTO stops (id, request, bumped, created) VALUES (?, ?, ?, ?)",
                (stop, json.dumps(request), json.dumps(bumped), now),
            )
        return bumped

    def _latch(self, latch: Iterable[str], stop: str, since: float) -> None:
        for scope in latch:
            number = int(self._meta("latch")) + 1
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'latch'", (str(number),))
            self._db.execute(
                "INSERT OR REPLACE INTO latches VALUES (?, ?, ?, ?)",
                (scope, number, stop, since),
            )
            self.prompts.discard(scope, since)

    def _bump(self, bump: Iterable[str]) -> dict[str, int]:
        bumped = {}
        for session in bump:
            bumped[session] = self._ensure(session) + 1
            self._db.execute(
                "UPDATE sessions SET generation = ? WHERE key = ?", (bumped[session], session)
            )
        return bumped

    def finish_stop(self, stop: str) -> None:
        with self._transaction():
            self._db.execute("UPDATE stops SET finished = ? WHERE id = ?", (self._clock(), stop))

    def stopped_at(self, stop: str) -> float:
        """When a stop began; now for one that the disk refused."""
        row = self._db.execute("SELECT created FROM stops WHERE id = ?", (stop,)).fetchone()
        return float(row[0]) if row else self._clock()

    def stored_stop(self, stop: str) -> tuple[dict[str, Any], dict[str, int]]:
        """(request, new generations) of a stop on record."""
        query = "SELECT request, bumped FROM stops WHERE id = ?"
        request, bumped = self._db.execute(query, (stop,)).fetchone() or ("{}", "{}")
        return json.loads(request), json.loads(bumped)

    def has_stop(self, stop: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM stops WHERE id = ?", (stop,)).fetchone())

    def unfinished_stops(self) -> list[tuple[str, dict[str, Any], dict[str, int]]]:
        rows = self._db.execute(
            "SELECT id, request, bumped FROM stops WHERE finished IS NULL ORDER BY created"
        )
        return [(stop, json.loads(request), json.loads(bumped)) for stop, request, bumped in rows]

    # -- releases

    def admit(
        self, message: str, session: str, *, releases_before: float | None = math.inf
    ) -> bool:
        """A person's message came in. True when that released its session.

        It releases what was stopped before it came: a later stop stands. Every id is remembered,
        stopped or not: one that was seen before never releases anything.
        """
        with self._transaction():
            fresh = self._db.execute(
                "INSERT OR IGNORE INTO messages VALUES (?, ?)", (message, self._clock())
            ).rowcount
            since = self._latched_since(session)
            if not fresh or since is None or releases_before is None or since > releases_before:
                return False
            self._ensure(session)
            self._db.execute(
                "UPDATE sessions SET released = ? WHERE key = ?", (self._meta("latch"), session)
            )
        return True

    def seen(self, message: str) -> bool:
        """Whether this message was admitted before."""
        query = "SELECT 1 FROM messages WHERE id = ?"
        return bool(self._db.execute(query, (message,)).fetchone())

    def stopped_since(self, message: str, session: str) -> bool:
        """Whether the session was stopped after this message was admitted, released or not."""
        found = self._db.execute("SELECT seen FROM messages WHERE id = ?", (message,)).fetchone()
        latches = self._db.execute("SELECT scope, since FROM latches").fetchall()
        return found is not None and any(
            since >= found[0] and scopes.covers(scope, session) for scope, since in latches
        )

    def release(self, scope: str) -> list[str]:
        """Lift the latches on and inside `scope`; returns the scopes that were latched."""
        with self._transaction():
            lifted = [
                row[0]
                for row in self._db.execute("SELECT scope FROM latches")
                if row[0] == scope or scope == scopes.EVERYTHING or scopes.covers(scope, row[0])
            ]
            self._db.executemany("DELETE FROM latches WHERE scope = ?", ((s,) for s in lifted))
            if scopes.is_session(scope) and self._latched_since(scope) is not None:
                # Latched through its agent: release this one session, as a message would.
                self._ensure(scope)
                self._db.execute(
                    "UPDATE sessions SET released = ? WHERE key = ?", (self._meta("latch"), scope)
                )
                lifted.append(scope)
        return lifted

    # -- frozen scopes

    def freeze(self, frozen: Iterable[str]) -> None:
        with self._transaction():
            rows = ((scope, self._clock()) for scope in frozen)
            self._db.executemany("INSERT OR IGNORE INTO frozen VALUES (?, ?)", rows)
        self._frozen = None

    def frozen(self) -> list[str]:
        if self._frozen is None:  # every tool call asks, and nobody else writes it
            rows = self._db.execute("SELECT scope FROM frozen ORDER BY scope")
            self._frozen = [row[0] for row in rows]
        return self._frozen

    def thaw(self, lifted: Iterable[str]) -> None:
        with self._transaction():
            self._db.executemany("DELETE FROM frozen WHERE scope = ?", ((s,) for s in lifted))
        self._frozen = None

    # -- the mirror

    def mirror(self, only: Iterable[str] | None = None) -> dict[str, Any]:
        """What a bridge needs to say no by itself; `only` these sessions, or all that were ever
        stopped: the rest stand at the first generation."""
        first = self.first_generation
        rows = self._db.execute(
            "SELECT key, generation, released FROM sessions WHERE generation > ? OR released > 0",
            (first,),
        )
        wanted = None if only is None else set(only)
        return {
            "first": first,
            "latches": dict(self._db.execute("SELECT scope, number FROM latches")),
            "frozen": self.frozen(),
            "sessions": {
                key: [generation, released]
                for key, generation, released in rows
                if wanted is None or key in wanted
            },
        }
