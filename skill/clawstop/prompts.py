"""The journal of what people asked: each message on its way to a run, and in it until it ends. It
is on disk before anything is ended for it, so that a crash loses no word without saying so."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from . import scopes

READ_SECONDS = 5.0  # what was steered into a run and is no run by then was read by it


@dataclass(frozen=True)
class Prompt:
    session: str
    id: str  # of the message, in its session
    sender: str
    text: str
    route: Mapping[str, Any]  # how the person is reached
    came: float


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
                "INSERT OR REPLACE INTO prompts VALUES (?, ?, ?, ?, ?, ?, NULL)",
                (*row, json.dumps(dict(prompt.route)), prompt.came),
            )

    def begun(self, session: str, id: str, run: str) -> None:
        """A run answers it."""
        with self._transaction():
            self._db.execute(
                "UPDATE prompts SET run = ? WHERE session = ? AND id = ?", (run, session, id)
            )

    def over(self, session: str, run: str, at: float) -> None:
        """The run has ended, and has read what came in well before that."""
        with self._transaction():
            self._db.execute(
                "DELETE FROM prompts WHERE session = ? AND (run = ? OR (run IS NULL AND came < ?))",
                (session, run, at - READ_SECONDS),
            )

    def discard(self, scope: str, before: float) -> None:
        """Its sessions were stopped. To be called inside the transaction that stops them."""
        for (session,) in self._db.execute("SELECT DISTINCT session FROM prompts").fetchall():
            if scopes.covers(scope, session):
                self._db.execute(
                    "DELETE FROM prompts WHERE session = ? AND came <= ?", (session, before)
                )

    def unread(self, before: float, after: float) -> list[Prompt]:
        """What came in between these times and is in no run."""
        rows = self._db.execute(
            "SELECT session, id, sender, text, route, came FROM prompts "
            "WHERE run IS NULL AND came < ? AND came > ? ORDER BY came",
            (before, after),
        )
        return [
            Prompt(session, id, sender, text, json.loads(route), came)
            for session, id, sender, text, route, came in rows
        ]

    def forget(self, prompt: Prompt) -> None:
        with self._transaction():
            self._db.execute(
                "DELETE FROM prompts WHERE session = ? AND id = ?", (prompt.session, prompt.id)
            )
