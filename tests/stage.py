"""An engine and the embedded host, in this process: where scenarios are played."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import zoo
from clawstop import ownership
from clawstop.embedded import EmbeddedHost, Script
from clawstop.paths import Paths
from clawstop.processes import Owned
from clawstop.server import Server
from wire import engine


def played(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a scenario: it runs in an event loop of its own."""

    @functools.wraps(scenario)
    def test(**given: Any) -> None:
        asyncio.run(scenario(**given))

    return test


class Stage:
    def __init__(self, server: Server, host: EmbeddedHost) -> None:
        self.server, self.host = server, host

    async def stop(self, target: str, **params: Any) -> dict[str, Any]:
        return await self.server.engine.commands.stop(None, {"target": target, "pid": 1, **params})

    def seen(self, session: str, kind: str) -> list[str]:
        return [e.text for e in self.host.events if e.session == session and e.kind == kind]

    async def until(self, session: str, kind: str, count: int = 1) -> None:
        async with asyncio.timeout(10):
            while len(self.seen(session, kind)) < count:
                await asyncio.sleep(0.01)

    async def over(self, session: str, count: int = 1) -> None:
        """Until so many runs have ended, and the engine knows."""
        await self.until(session, "ended", count)
        async with asyncio.timeout(10):
            while any(key == session for _, key, _ in self.server.engine.store.live_runs()):
                await asyncio.sleep(0.01)

    def alive(self, session: str) -> int:
        return len(self._owned(session))

    def _owned(self, session: str) -> list[Owned]:
        state = self.host.paths.state_id  # other tests use the same session keys at the same time
        proofs = ownership.proofs(self.host.paths, [])
        return ownership.find(lambda o: (o.state, o.session) == (state, session), proofs)

    def states(self, session: str) -> set[str]:
        """What they do; one that waits in vfork for a child that stands still is D."""
        found = {zoo.state(one.ident.pid) for one in self._owned(session)}
        return found - {"D"} if "T" in found else found

    def leased(self, session: str) -> set[int]:
        return {o.ident.pid for o in self._owned(session) if o.owner.lease.startswith("keep")}


@asynccontextmanager
async def staged(folder: Path, scripts: dict[str, Script]) -> AsyncIterator[Stage]:
    paths = Paths(folder / "openclaw")
    async with engine(paths) as server:
        host = EmbeddedHost(paths, scripts)
        await host.start()
        try:
            yield Stage(server, host)
        finally:
            await host.stop()
            await server.engine.commands.stop(None, {"target": "everything", "pid": 1, "grace": 0})
