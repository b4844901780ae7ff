"""The journal of what people asked: each message until its run is over. It is on disk before
anything is ended for it, so that a crash loses nobody's words."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from . import scopes


@dataclass(frozen=True)
class Prompt:
    session: str
    id: str  # of the message, in its session
    sender: str
    text: str
    route: Mapping[str, Any]  # how the person is reached
    came: float
    gateway: str = ""  # the one that took it in


class Prompts:
    """A part of the store."""

    def __init__(
        self, db: sqlite3.Connection, transaction: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._db = db
        self._transaction = transaction

    def note(self, prompt: Prompt) -> None:
        """It came in; once more when the host tells it again after a restart."""
        row = (prompt.session, prompt.id, prompt.sender, prompt.text)
        with self._transaction():
            self._db.execute(
                "INSERT INTO prompts (session, id, sender, text, route, came, gateway) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET text = excluded.text, "
                "route = excluded.route, came = excluded.came, gateway = excluded.gateway",
                (*row, json.dumps(dict(prompt.route)), prompt.came, prompt.gateway),
            )

    def answer(self, session: str, id: str, run: str | None) -> None:
        """This run answers it; None: nobody has read it after all."""
        with self._transaction():
            self._db.execute(
                "UPDATE prompts SET run = ? WHERE session = ? AND id = ?", (run, session, id)
            )

    def answered(self, session: str, run: str) -> None:
        """The run is over. To be called inside the transaction that says so."""
        self._db.execute("DELETE FROM prompts WHERE session = ? AND run = ?", (session, run))

    def read(self, session: str, ids: Iterable[str]) -> None:
        """Nobody needs them any more: a run has read them, or their writer was told."""
        with self._transaction():
            for id in ids:
                query = "DELETE FROM prompts WHERE session = ? AND id = ?"
                self._db.execute(query, (session, id))

    def has(self, session: str, id: str) -> bool:
        query = "SELECT 1 FROM prompts WHERE session = ? AND id = ?"
        return bool(self._db.execute(query, (session, id)).fetchone())

    def begun_anew(self, session: str, now: float) -> None:
        """What waited there is of a conversation that is over."""
        with self._transaction():
            self.discard(session, now)

    def discard(self, scope: str, before: float) -> None:
        """Its sessions were stopped. To be called inside the transaction that stops them."""
        for (session,) in self._db.execute("SELECT DISTINCT session FROM prompts").fetchall():
            if scopes.covers(scope, session):
                self._db.execute(
                    "DELETE FROM prompts WHERE session = ? AND came <= ?", (session, before)
                )

    def unread(self, gateway: str) -> list[Prompt]:
        """What others than this gateway took in and nobody has read."""
        return self._found("gateway != ? AND run IS NULL", gateway)

    def of_run(self, session: str, run: str) -> Prompt | None:
        """The message that a run answers."""
        return next(iter(self._found("session = ? AND run = ?", session, run)), None)

    def _found(self, where: str, *values: object) -> list[Prompt]:
        rows = self._db.execute(
            "SELECT session, id, sender, text, route, came, gateway FROM prompts "
            f"WHERE {where} ORDER BY came",
            values,
        )
        return [
            Prompt(session, id, sender, text, json.loads(route), came, gateway)
            for session, id, sender, text, route, came, gateway in rows
        ]

    def prune(self, oldest: float) -> None:
        """Words are kept no longer than they are of use: as long as a run may still read them."""
        old = (
            "FROM prompts WHERE came < ?1 AND run IS NULL AND NOT EXISTS (SELECT 1 FROM runs "
            "WHERE runs.session = prompts.session AND (ended IS NULL OR ended >= ?1))"
        )
        if self._db.execute(f"SELECT 1 {old}", (oldest,)).fetchone():
            with self._transaction():
                self._db.execute(f"DELETE {old}", (oldest,))
