"""Bringing back what a stop took away: memory, and scheduled jobs. It can be undone likewise."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from . import receipts
from .bridges import Bridges
from .errors import UsageError
from .memory import Memory, Restored
from .plugins import Plugins
from .stops import Stops
from .store import Store
from .transcripts import Move

log = logging.getLogger("clawstop.restoring")

Receipt = dict[str, Any]
TRIGGER = "restore"


class Restoring:
    def __init__(
        self,
        file: Path,
        *,
        store: Store,
        bridges: Bridges,
        memory: Memory,
        stops: Stops,
        plugins: Plugins,
    ) -> None:
        self._file = file
        self._store = store
        self._bridges = bridges
        self._memory = memory
        self._stops = stops
        self._plugins = plugins

    async def by_receipt(self, id: str, who: str, *, force: bool, only: str = "") -> Receipt:
        """What the stop with this receipt took away, or the last one that took anything; `only` of
        one session with its subagents. A restore's own receipt undoes it."""
        family = [only, *self._store.descendants(only)] if only else []

        def moves(receipt: Receipt) -> list[Move]:
            rows = [row for row in receipt.get("memory") or () if "did" in row]
            return [row for row in rows if not only or row["session"] in family]

        def something(receipt: Receipt) -> bool:
            jobs = not only and self._store.jobs_of(receipt["id"])
            return receipt.get("trigger") != TRIGGER and bool(moves(receipt) or jobs)

        if id:
            found = receipts.find(self._file, id, short=len(id) >= receipts.SHORT_ID)
        else:
            found = next(filter(something, receipts.latest(self._file)), None)
        if found is None or (only and not moves(found)):
            raise UsageError(f"there is no receipt {id}" if id else "no stop took anything away")
        back = self._back(found["id"])
        away = [move for move in moves(found) if move["session"] not in back]
        if only and not away:
            raise UsageError(f"what {found['id']} took away is back already")
        jobs = [] if only else [row["id"] for row in self._store.jobs_of(found["id"])]
        if jobs:
            await self._bridges.wait()
        if jobs and not list(self._bridges):
            raise UsageError("no gateway is connected: start it, its scheduler has the jobs")
        return await self._restore(found["id"], away, jobs, who, force)

    def _back(self, id: str) -> set[str]:
        """The sessions that a later restore brought back, and that was not undone itself."""
        undone: set[tuple[str, str]] = set()
        for receipt in receipts.latest(self._file):
            if receipt["id"] == id:
                break
            if receipt.get("trigger") == TRIGGER:
                for session in (move["session"] for move in receipt["memory"]):
                    if (receipt["id"], session) not in undone:
                        undone.add((receipt["of"], session))
        return {session for of, session in undone if of == id}

    async def by_backup(self, file: Path, session: str, who: str, *, force: bool) -> Receipt:
        move = self._memory.from_backup(file, session)
        return await self._restore(str(file), [move], [], who, force)

    async def _restore(
        self, of: str, moves: list[Move], jobs: list[str], who: str, force: bool
    ) -> Receipt:
        rows = await self._bridges.jobs_on(jobs) if jobs else []
        self._store.jobs_on([row["id"] for row in rows if row["outcome"] == "on"])
        if not moves:  # only jobs, or nothing
            return {"of": of, "jobs": rows, "memory": [], "left": []}
        restored = await self._memory.restore(moves, of, who, force=force)
        return {**await self._record(restored), "jobs": rows}

    async def _record(self, restored: Restored) -> Receipt:
        sessions = ", ".join(sorted({move["session"] for move in restored.moves}))
        about = {"of": restored.of, "memory": restored.moves, "left": restored.left}
        written = self._stops.record(restored.id, TRIGGER, restored.who, sessions, **about)
        for move in restored.moves:
            await self._plugins.memory_moved(move)
        return written

    async def resume(self) -> None:
        """Finish what a crash has cut off; nothing that lies there keeps the engine down."""
        for id, about in self._memory.cut_off():
            try:
                await self._record(await self._memory.finish(id, about))
            except Exception:
                log.exception("restore %s was cut off and cannot be finished", id)
