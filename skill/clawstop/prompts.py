"""The journal of what people asked: each message until a run has it. It is on disk before anything
is ended for it, so that whoever wrote it can be told when a crash came first."""

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
                "INSERT OR REPLACE INTO prompts (session, id, sender, text, route, came) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (*row, json.dumps(dict(prompt.route)), prompt.came),
            )

    def read(self, session: str, ids: Iterable[str]) -> None:
        """A run answers them, or has read them."""
        with self._transaction():
            for id in ids:
                self._forget(session, id)

    def _forget(self, session: str, id: str) -> None:
        self._db.execute("DELETE FROM prompts WHERE session = ? AND id = ?", (session, id))

    def discard(self, scope: str, before: float) -> None:
        """Its sessions were stopped. To be called inside the transaction that stops them."""
        for (session,) in self._db.execute("SELECT DISTINCT session FROM prompts").fetchall():
            if scopes.covers(scope, session):
                self._db.execute(
                    "DELETE FROM prompts WHERE session = ? AND came <= ?", (session, before)
                )

    def unread(self, before: float) -> list[Prompt]:
        """What came in before this time and nobody has read."""
        rows = self._db.execute(
            "SELECT session, id, sender, text, route, came FROM prompts WHERE came < ? "
            "ORDER BY came",
            (before,),
        )
        return [
            Prompt(session, id, sender, text, json.loads(route), came)
            for session, id, sender, text, route, came in rows
        ]

    def prune(self, oldest: float) -> None:
        """Words are kept no longer than they are of use."""
        if self._db.execute("SELECT 1 FROM prompts WHERE came < ?", (oldest,)).fetchone():
            with self._transaction():
                self._db.execute("DELETE FROM prompts WHERE came < ?", (oldest,))
