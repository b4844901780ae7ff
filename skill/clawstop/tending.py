"""The blocks of all agents, without a gateway: once, or for as long as somebody lets it run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from . import agents, agentsmd, filewatch
from .agents import Config
from .agentsmd import Report
from .errors import UsageError
from .paths import Paths

RELOAD_SECONDS = 0.3  # the host writes a workspace file by file


def look(paths: Paths, *, dry_run: bool = False) -> list[Report]:
    return _sync(paths, _read(paths), dry_run=dry_run)


async def keep(paths: Paths, tell: Callable[[list[Report]], None]) -> None:
    """After every change of the config or of an AGENTS.md, until it is cancelled, or clawstop is
    purged."""
    config = _read(paths)

    def files() -> list[Path]:
        inside = [agent.workspace / agentsmd.NAME for agent in config.agents if agent.workspace]
        return [*config.files, *inside]

    there = False
    async for _ in filewatch.changes(files):
        await asyncio.sleep(RELOAD_SECONDS)
        if there and not paths.root.is_dir():
            return  # clawstop was uninstalled, with all that it had
        fresh = agents.read(paths)
        config = config if fresh.problem else fresh
        tell(_sync(paths, config, dry_run=False))
        there = paths.root.is_dir()


def _read(paths: Paths) -> Config:
    config = agents.read(paths)
    if config.problem:
        raise UsageError(config.problem)
    return config


def _sync(paths: Paths, config: Config, *, dry_run: bool) -> list[Report]:
    return agentsmd.sync(config.agents, config.protocol, paths.root, dry_run=dry_run)
