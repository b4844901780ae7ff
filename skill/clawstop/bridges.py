"""The connected bridges: what the engine can ask of a gateway, and how long it waits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import limits
from .agents import normal_id, shown
from .errors import ClawstopError, EngineUnreachable, NotNow, TranscriptError
from .paths import read_json
from .processes import Ident, gone
from .protocol import Peer

log = logging.getLogger("clawstop.bridges")

ACK_SECONDS = 0.25  # I1: a bridge that has not acknowledged a latch by then counts as disconnected
END_SECONDS = 9.0  # the bridge climbs its ladder in 7; past this the run counts as alive
LABELS_SECONDS = 1.0  # a stop by a name that nobody has waits so long, and what may go on
DRAIN_SECONDS = 5.0  # a handful of calls of a few milliseconds each
RESUME_SECONDS = 10.0  # it is accepted within 0.1 s; a gateway that has just started is slower
MEMORY_SECONDS = 15.0  # a move takes 10 ms; a long conversation on a busy machine a second
CONNECT_SECONDS = 4.0  # a bridge notices a new engine within 2 s; room for a busy machine


@dataclass(eq=False)
class Bridge:
    """One gateway, as its `hello` described it."""

    peer: Peer
    pid: int
    host: str
    version: str
    gateway: str  # what tells its process from any other that ever was
    capabilities: dict[str, Any] = field(default_factory=dict)
    agents: list[str] = field(default_factory=list)
    workspaces: dict[str, str] = field(default_factory=dict)  # agent -> folder
    names: dict[str, list[str]] = field(default_factory=dict)  # agent -> name, what it calls itself

    def tell(
        self, session: str, lines: Sequence[str], route: Mapping[str, Any] | None = None
    ) -> None:
        """Say this to the person in the chat of a session, or where `route` leads."""
        told = {"session": session, "text": "\n".join(lines), "route": dict(route or {})}
        self.peer.notify("say", told)

    def reduced(self) -> list[str]:
        """What this gateway's release or settings keep us from doing, and how to change that."""
        return limits.reduced(self.capabilities)

    def limits(self) -> list[str]:
        """What this gateway's release cannot at all."""
        return limits.limits(self.capabilities, self.version)

    async def spent(self) -> dict[str, Any]:
        """How long its host waits for our hooks; nothing from a bridge that does not say."""
        try:
            return dict(await self.peer.ask("spent", {}, ACK_SECONDS) or {})
        except Exception as error:
            log.info("bridge %s does not tell its times: %r", self.name, error)
            return {}

    def take_agents(self, told: Mapping[str, Any]) -> None:
        """Its agents, by the ids that its session keys have, where they work, and what they are
        called."""
        self.agents = [normal_id(str(agent)) for agent in told.get("agents") or ()]
        spaces = dict(told.get("workspaces") or {})
        self.workspaces = {normal_id(str(id)): str(folder) for id, folder in spaces.items()}
        self.names = {
            normal_id(str(id)): [shown(str(name or "")) for name in names]
            for id, names in dict(told.get("names") or {}).items()
        }

    async def ask_agents(self) -> None:
        """Ask who its agents are by now; one that does not say has those it had."""
        try:
            self.take_agents(await self.peer.ask("agents", {}, ACK_SECONDS))
        except Exception as error:
            log.info("bridge %s does not tell its agents: %r", self.name, error)

    async def pending(self, sessions: Sequence[str]) -> set[str]:
        """Those of these sessions that the host means to go on with by itself."""
        try:
            return set(await self.peer.ask("pending", {"sessions": list(sessions)}, LABELS_SECONDS))
        except Exception as error:  # it has just started: then it is believed to
            log.info("bridge %s does not tell what it recovers: %r", self.name, error)
            return set(sessions)

    async def resume(self, session: str, run: str, message: str, route: Mapping[str, Any]) -> None:
        """Begin a run called so in a session, with this message and for this chat."""
        told = {"session": session, "run": run, "message": message, "route": dict(route)}
        await self.peer.ask("resume", told, RESUME_SECONDS)

    async def labels(self) -> dict[str, str]:
        """What people call their conversations; nothing from a host that does not say."""
        try:
            return dict(await self.peer.ask("labels", {}, LABELS_SECONDS) or {})
        except Exception as error:
            log.info("bridge %s does not tell labels: %r", self.name, error)
            return {}

    @property
    def name(self) -> str:
        return f"{self.host} {self.version} (pid {self.pid})"


@dataclass
class Ended:
    """What became of the runs: `alive` and `unanswered` are reasons not to call it converged."""

    ended: list[dict[str, Any]] = field(default_factory=list)
    alive: list[dict[str, Any]] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)


@dataclass
class Drained:
    """What was waiting to go on, and was taken away: rows of a receipt, by kind."""

    queued: list[dict[str, Any]] = field(default_factory=list)  # messages of the dead runs
    tasks: list[dict[str, Any]] = field(default_factory=list)  # the host's background tasks
    outbound: list[dict[str, Any]] = field(default_factory=list)  # written, not yet delivered
    jobs: list[dict[str, Any]] = field(default_factory=list)  # scheduled, turned off
    problems: list[str] = field(default_factory=list)


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
            if gone(Ident(pid, start)):
                file.unlink(missing_ok=True)  # that gateway is gone
            else:
                running.add(Ident(pid, start))
        return frozenset(running)

    def ident(self, pid: int) -> Ident | None:
        """The gateway with this pid, by the file that it left; only so is it known for sure."""
        return next((ident for ident in self.idents() if ident.pid == pid), None)

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

    async def any(self, seconds: float) -> bool:
        """Wait for a first gateway; False when none came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._connected:
                    self._arrived.clear()
                    await self._arrived.wait()
        return bool(self._connected)

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
                result.alive += [{**run, "gateway": bridge.pid} for run in answer["alive"]]
            except Exception as error:
                log.warning("bridge %s could not end runs: %r", bridge.name, error)
                result.unanswered.append(f"{bridge.name}: {type(error).__name__} {error}".strip())

        await asyncio.gather(*(one(bridge) for bridge in self))
        late = await self.wait()
        await asyncio.gather(*(one(bridge) for bridge in self if bridge not in asked))
        result.unanswered += [f"gateway {pid} is not connected" for pid in late]
        return result

    async def drain(self, **params: Any) -> Drained:
        """Take away what waits in every gateway: messages, tasks, deliveries, jobs."""
        result = Drained()

        async def one(bridge: Bridge) -> None:
            try:
                answer = await bridge.peer.ask("drain", params, DRAIN_SECONDS)
                for kind, rows in answer.items():
                    getattr(result, kind).extend(rows)
            except Exception as error:
                log.warning("bridge %s could not drain: %r", bridge.name, error)
                result.problems.append(f"{bridge.name}: {type(error).__name__} {error}".strip())

        await asyncio.gather(*(one(bridge) for bridge in self))
        return result

    async def memory(self, act: str, **params: Any) -> dict[str, Any]:
        """Read or move a conversation that only its gateway may touch."""
        if not self._connected:
            await self.wait()
        able = [bridge for bridge in self if bridge.capabilities.get("memory") in (True, "host")]
        if self._connected and not able:
            raise TranscriptError("the gateway's plugin cannot; restart it, or update OpenClaw")
        for bridge in able:
            try:
                answer = await bridge.peer.ask(f"memory_{act}", params, MEMORY_SECONDS)
            except (EngineUnreachable, TimeoutError) as error:
                raise NotNow(f"its gateway does not answer: {error}") from error
            return dict(answer or {})
        raise NotNow("its gateway is not running; it is done when the gateway is back")

    async def forget_abort(self, session: str) -> None:
        """Have the host not tell the agent that something was aborted."""
        for bridge in self:
            try:
                await bridge.peer.ask("memory_forget", {"session": session}, MEMORY_SECONDS)
            except (ClawstopError, TimeoutError) as error:  # no word of the task is in that
                log.warning("the agent of %s may be told of an abort: %s", session, error)

    async def jobs_on(self, jobs: Sequence[str]) -> list[dict[str, Any]]:
        """Turn scheduled jobs on again; a row each, as in `Drained.jobs`."""
        rows: list[dict[str, Any]] = []
        for bridge in self:
            rows += await bridge.peer.ask("jobs_on", {"jobs": list(jobs)}, DRAIN_SECONDS)
        return rows
