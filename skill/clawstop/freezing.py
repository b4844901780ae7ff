"""Freezing: holding what a person wants to look at, and letting it go on.

A frozen scope is on disk. Its processes are stopped where they are, again and again, since one may
be on its way when the word comes; its tools wait in the gate. One thing at a time: what is let go
on must not be stopped by a look that began before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any

from . import reaping, scopes, watching
from .bridges import Bridges
from .cookies import Owner
from .errors import ClawstopError
from .ownership import Proofs
from .paths import Paths
from .processes import Ident
from .reaping import Reaped
from .store import Store


class Freezer:
    def __init__(
        self,
        paths: Paths,
        store: Store,
        bridges: Bridges,
        proofs: Callable[[], Proofs],
        mirror: Callable[[], dict[str, Any]],
    ) -> None:
        self._paths, self._store, self._bridges = paths, store, bridges
        self._proofs, self._mirror = proofs, mirror
        self._lock = asyncio.Lock()

    async def freeze(
        self, wide: Collection[str], spare: Collection[Ident]
    ) -> tuple[Reaped, list[str]]:
        """Hold these scopes; also tells which gateways did not hear of it."""
        async with self._lock:
            self._store.freeze(wide)
            cut_off = await self._bridges.push(self._mirror())
            return await self._suspend(list(wide), spare), cut_off

    async def hold(self) -> None:
        """Stop whoever came since, or whom a crash left running."""
        async with self._lock:
            if frozen := self._store.frozen():
                await self._suspend(list(frozen), ())

    async def thaw(self, wide: Collection[str]) -> list[str]:
        """Let go on what is frozen in these scopes, unless a wider word holds it too.

        Processes first: a crash before the record is gone only means to do it again.
        """
        async with self._lock:
            frozen = self._store.frozen()
            lifted = [f for f in frozen if any(s == f or scopes.covers(s, f) for s in wide)]
            if not lifted:
                return []
            kept = [scope for scope in frozen if scope not in lifted]
            mine = self._covered(lifted)

            def free(owner: Owner) -> bool:
                return mine(owner) and not any(scopes.covers(s, owner.session) for s in kept)

            resumed = await asyncio.to_thread(reaping.resume, free, proofs=self._proofs)
            if resumed.error:
                raise ClawstopError(f"what is frozen cannot be looked for: {resumed.error}")
            self._store.thaw(lifted)
            await self._bridges.push(self._mirror())
            return lifted

    def held_by(self, session: str) -> list[str]:
        """The frozen scopes that cover a session."""
        return [scope for scope in self._store.frozen() if scopes.covers(scope, session)]

    async def _suspend(self, wide: list[str], spare: Collection[Ident]) -> Reaped:
        spare = {*spare, *self._bridges.idents()}
        held = await asyncio.to_thread(
            reaping.suspend, self._covered(wide), proofs=self._proofs, spare=spare
        )
        # Who is known by a parent that dies while it stands still could not be let go on.
        await asyncio.to_thread(watching.remember, self._paths, held.outcomes)
        return held

    def _covered(self, wide: Iterable[str]) -> Callable[[Owner], bool]:
        state, inside = self._paths.state_id, list(wide)
        return lambda owner: (
            owner.state == state and any(scopes.covers(s, owner.session) for s in inside)
        )
