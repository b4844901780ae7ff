"""The connected bridges: what the engine can ask of a gateway, and how long it waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .paths import read_json
from .processes import Ident, Sameness, compare
from .protocol import Peer

log = logging.getLogger("clawstop.bridges")

ACK_SECONDS = 0.25  # I1: a bridge that has not acknowledged a latch by then counts as disconnected
END_SECONDS = 5.0  # the host's own aborts settle in 1-75 ms; past this the run counts as alive
CONNECT_SECONDS = 4.0  # a bridge notices a new engine within 2 s; room for a busy machine


@dataclass(eq=False)
class Bridge:
    """One gateway, as its `hello` described it."""

    peer: Peer
    pid: int
    host: str
    version: str
    capabilities: dict[str, Any] = field(default_factory=dict)
    agents: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.host} {self.version} (pid {self.pid})"


@dataclass
class Ended:
    """What became of the runs: `alive` and `unanswered` are reasons not to call it converged."""

    ended: list[dict[str, Any]] = field(default_factory=list)
    alive: list[dict[str, Any]] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)


class Bridges:
    def __init__(self, presence: Path) -> None:
        self._presence = presence  # each gateway leaves a file here while it runs
        self._connected: list[Bridge] = []
        self._arrived = asyncio.Event()

    def __iter__(self) -> Any:
        return iter(list(self._connected))

    def add(self, bridge: Bridge) -> None:
        self._connected.append(bridge)
        self._arrived.set()

    def remove(self, peer: Peer) -> Bridge | None:
        gone = next((b for b in self._connected if b.peer is peer), None)
        if gone:
            self._connected.remove(gone)
        return gone

    def idents(self) -> frozenset[Ident]:
        """Every gateway that runs with the plugin loaded, connected or not."""
        running = set()
        for file in self._presence.glob("*.json"):
            found = read_json(file) or {}
            pid, start = found.get("pid"), found.get("start")
            if not isinstance(pid, int) or not isinstance(start, int | float):
                continue
            if compare(Ident(pid, start)) is Sameness.DIFFERENT:
                file.unlink(missing_ok=True)  # that gateway is gone
            else:
                running.add(Ident(pid, start))
        return frozenset(running)

    def absent(self) -> list[int]:
        """Pids of gateways that run and are not connected."""
        here = {bridge.pid for bridge in self._connected}
        return [ident.pid for ident in self.idents() if ident.pid not in here]

    async def wait(self) -> list[int]:
        """Wait for every running gateway to connect; returns the pids that did not."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while self.absent():
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass
        return self.absent()

    async def push(self, mirror: dict[str, Any]) -> list[str]:
        """Give every bridge the news and wait for its word; one that is late is cut off.

        Returns the names of those cut off. A bridge without a connection refuses everything.
        """

        async def one(bridge: Bridge) -> str | None:
            try:
                await bridge.peer.ask("mirror", mirror, ACK_SECONDS)
            except Exception as error:
                log.warning("bridge %s did not acknowledge: %r", bridge.name, error)
                bridge.peer.close()
                self.remove(bridge.peer)
                return bridge.name
            return None

        answers = await asyncio.gather(*(one(bridge) for bridge in self))
        return [name for name in answers if name]

    async def end(self, sessions: Sequence[str], scopes: Sequence[str]) -> Ended:
        """End every run of these sessions, and of any other session these scopes cover.

        Connected gateways first; one that is not gets a moment to come back.
        """
        result = Ended()
        asked: set[Bridge] = set()

        async def one(bridge: Bridge) -> None:
            asked.add(bridge)
            params = {"sessions": list(sessions), "scopes": list(scopes)}
            try:
                answer = await bridge.peer.ask("end", params, END_SECONDS)
                result.ended += answer["ended"]
                result.alive += answer["alive"]
            except Exception as error:
                log.warning("bridge %s could not end runs: %r", bridge.name, error)
                result.unanswered.append(f"{bridge.name}: {type(error).__name__} {error}".strip())

        await asyncio.gather(*(one(bridge) for bridge in self))
        late = await self.wait()
        await asyncio.gather(*(one(bridge) for bridge in self if bridge not in asked))
        result.unanswered += [f"gateway {pid} is not connected" for pid in late]
        return result
