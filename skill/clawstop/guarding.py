"""The guard: every agent is known and told what a stop means for it, those there are and those that
come. It waits for changes, and does nothing between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from . import filewatch
from .bridges import Bridges
from .events import Roll
from .paths import Paths
from .plugins import Plugins
from .roster import Roster
from .settings import Settings

log = logging.getLogger("clawstop.guarding")

AGAIN_SECONDS = 10.0  # after a look that failed: a disk that was full, a folder that was away
RELOAD_SECONDS = 1.5  # a gateway takes a changed config up within about half a second


class Guard:
    def __init__(
        self,
        paths: Paths,
        roster: Roster,
        bridges: Bridges,
        plugins: Plugins,
        settings: Callable[[], Settings],
    ) -> None:
        self._paths, self._roster, self._bridges = paths, roster, bridges
        self._plugins, self._settings = plugins, settings
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Once there is a gateway; again when another one connects, or the settings change."""
        self.close()
        self._task = asyncio.create_task(self._watch())

    def close(self) -> None:
        if self._task:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            try:
                async with aclosing(filewatch.changes(self._roster.files)) as changes:
                    async for _ in changes:
                        await self._look()
                        await asyncio.sleep(RELOAD_SECONDS)
                        await self._look()
            except Exception:  # an engine without a guard still stops agents
                log.exception("a look at the agents failed")
            await asyncio.sleep(AGAIN_SECONDS)

    async def _look(self) -> None:
        for bridge in self._bridges:
            await bridge.ask_agents()
        await self._roster.refresh(whole=True)
        protocol, folder = self._settings().protocol, self._paths.root
        await self._plugins.agents(Roll(self._roster.agents(), protocol, folder))
