"""Everybody there is: the agents that the config and the running gateways know, and who has only
left something in the state folder or in our own records. What a gateway says of an agent goes
before what we read."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from . import agents, agentsmd
from .agents import Agent, Config
from .bridges import Bridges
from .names import Names
from .paths import Paths
from .store import Store

READ_SECONDS = 2.0  # it takes some milliseconds

Stamp = tuple[tuple[int, int, int], ...]


class Roster:
    def __init__(self, paths: Paths, store: Store, bridges: Bridges) -> None:
        self._paths, self._store, self._bridges = paths, store, bridges
        self._config = Config()
        self._stamp: Stamp | None = None
        self._names = Names([])
        self._known: tuple[list[Agent], list[Agent]] = ([], [])

    @property
    def config(self) -> Config:
        """As it was last read."""
        if self._stamp is None:
            self._read()
        return self._config

    async def refresh(self, *, whole: bool = False) -> None:
        """Read the config again if it has changed, `whole`: in any case, with what agents call
        themselves. In a thread, as a long one takes a second; a slow disk keeps nobody waiting."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_SECONDS):
                if whole or self._stamp is None or self._stamp != _stamp(self._config.files):
                    await asyncio.to_thread(self._read)
                found = self._everybody()
                if found != self._known:
                    names = await asyncio.to_thread(Names.ready, *found)
                    self._known, self._names = found, names

    def _read(self) -> None:
        """One that cannot be read, as somebody is editing it, takes nobody away."""
        read = agents.read(self._paths)
        self._stamp = _stamp(read.files)
        if read.problem:
            read = replace(self._config, files=read.files, problem=read.problem)
        self._config = read

    def agents(self) -> list[Agent]:
        known = {agent.id: agent for agent in self.config.agents}
        for bridge in self._bridges:
            for id in bridge.agents:
                known[id] = _told(known.get(id, Agent(id)), bridge.names.get(id, ()))
                if folder := bridge.workspaces.get(id):
                    known[id] = replace(known[id], workspace=Path(folder))
        # With a config that cannot be read, what they have left is all that is known.
        return [known[id] for id in sorted(known)] or self._left_behind()

    def _left_behind(self) -> list[Agent]:
        return agents.left_behind(self._paths, self._store.sessions())

    def _everybody(self) -> tuple[list[Agent], list[Agent]]:
        return self.agents(), self._left_behind()

    @property
    def ids(self) -> list[str]:
        return [agent.id for agent in self.agents()]

    @property
    def names(self) -> Names:
        """By every name they go by; made anew only when somebody came or went."""
        found = self._everybody()
        if found != self._known:
            self._known, self._names = found, Names(*found)
        return self._names

    def workspaces(self, ids: Iterable[str]) -> list[Path]:
        """Of these agents. One that holds a whole home tells nothing."""
        wanted = set(ids)
        found = {a.workspace.resolve() for a in self.agents() if a.id in wanted and a.workspace}
        return sorted(folder for folder in found if not Path.home().is_relative_to(folder))

    def files(self) -> list[Path]:
        """What the roster is read from, and what each agent reads."""
        inside = (agentsmd.NAME, "IDENTITY.md")
        spaces = {Path(os.path.realpath(a.workspace)) for a in self.agents() if a.workspace}
        return [*self._config.files, *(folder / name for folder in spaces for name in inside)]


def _told(agent: Agent, names: Iterable[str]) -> Agent:
    name, identity = (*names, "", "")[:2]
    return replace(agent, name=name or agent.name, identity=identity or agent.identity)


def _stamp(files: Iterable[Path]) -> Stamp:
    """What changes with a file; a file that is not there has one too."""
    found = []
    for file in files:
        try:
            about = file.stat()
            found.append((about.st_mtime_ns, about.st_size, about.st_ino))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
