"""What a crash has cut off, one a session, until somebody goes on with it or nobody shall."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from . import scopes


class Stage(StrEnum):
    CUT = "cut"  # not judged yet
    FOUND = "found"  # to be continued: by the host, or by us
    ASKED = "asked"  # its person was asked whether it shall go on
    SUSPENDED = "suspended"  # cut off again and again; only a person lets it go on
    RESUMED = "resumed"  # a run goes on with it, or is about to
    DONE = "done"  # nobody goes on with it any more
    LEFT = "left"  # it is not ours to go on with; the host may


WAITING = frozenset({Stage.ASKED, Stage.SUSPENDED})  # for a person's word
OVER = frozenset({Stage.DONE, Stage.LEFT})  # kept until something else has run there
BEFORE = frozenset({Stage.CUT, Stage.FOUND})  # nobody has gone on with it yet


@dataclass(frozen=True)
class Cut:
    session: str
    generation: int
    run: str  # that was cut off, then the one that goes on with it; "" before there is one
    cause: str  # of the run that was cut off
    asked: float  # when its message came in
    since: float  # since when it was at work: what the host noted before is of an earlier turn
    at: float  # when it was last known to be alive
    text: str = ""  # the person's message that it answered
    messages: tuple[str, ...] = ()  # its id, and those of what came behind it
    sender: str = ""
    route: Mapping[str, Any] = field(default_factory=dict)
    stage: Stage = Stage.CUT
    why: str = ""
    times: int = 1  # how often it was cut off, one after the other
    tries: int = 0  # messages of ours that began no run
    sent: str = ""  # how the run is called that our message is to begin
    allowed: bool = False  # a person has said that it shall go on
    told: str = ""  # the gateway on which its person was asked


class Cuts:
    """A part of the store."""

    def __init__(
        self, db: sqlite3.Connection, transaction: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._db = db
        self._transaction = transaction

    def put(self, cut: Cut) -> Cut:
        with self._transaction():
            self._write(cut)
        return cut

    def _write(self, cut: Cut) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO cuts (session, about) VALUES (?, ?)",
            (cut.session, json.dumps(asdict(cut))),
        )

    def get(self, session: str) -> Cut | None:
        query = "SELECT about FROM cuts WHERE session = ?"
        row = self._db.execute(query, (session,)).fetchone()
        return _read(row[0]) if row else None  # or one that cannot be read

    def every(self) -> list[Cut]:
        rows = self._db.execute("SELECT about FROM cuts ORDER BY session").fetchall()
        return [cut for cut in (_read(about) for (about,) in rows) if cut]

    def forget(self, session: str) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM cuts WHERE session = ?", (session,))

    def overtake(self, bumped: Mapping[str, int], who: str) -> None:
        """Somebody's new message has taken over from what ran in these sessions, which have new
        generations. What was cut off there before is over if it was theirs, and else still waits.
        To be called inside that transaction."""
        for session, generation in bumped.items():
            cut = self.get(session)
            if (
                cut is None
                or cut.sender in ("", who)
                or (cut.stage is Stage.RESUMED and cut.sent in ("", cut.run))
            ):
                self.discard([session])
            else:
                self._write(replace(cut, generation=generation))

    def discard(self, stopped: Iterable[str]) -> None:
        """These scopes and sessions were stopped. To be called inside the transaction that stops
        them."""
        inside = list(stopped)
        for session, about in self._db.execute("SELECT session, about FROM cuts").fetchall():
            if not any(scopes.covers(scope, session) for scope in inside):
                continue
            if cut := _read(about):
                self._write(replace(cut, stage=Stage.DONE, why="it was stopped"))
            else:  # nothing keeps anybody from stopping
                self._db.execute("DELETE FROM cuts WHERE session = ?", (session,))


def _read(about: str) -> Cut | None:
    """None for what is no cut that we know: a newer clawstop may have written it."""
    known = Cut.__dataclass_fields__
    try:
        told = {key: value for key, value in json.loads(about).items() if key in known}
        told |= {"stage": Stage(told["stage"]), "messages": tuple(told.get("messages", ()))}
        return Cut(**told)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
