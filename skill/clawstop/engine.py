"""The engine: what a bridge or the command line may ask, one method each.

It owns the store, the plugins, the ledger and the stops, and knows nothing of sockets but `Peer`.
`dispatch` finds the method by name: `on_<name>` for a bridge, `do_<name>` for the command line.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import __version__, callers, processes, scopes, targets
from .bridges import Bridge, Bridges
from .errors import Ambiguous, NotPermitted, ProtocolError, SettingsError, StoreError, UsageError
from .events import EngineInfo, Message, Output, Run, ToolCall
from .ledger import Ledger
from .paths import Paths, read_json
from .plugins import Plugins
from .protocol import OLDEST, PROTOCOL, Peer
from .settings import Settings
from .stops import Request, Stops
from .store import Standing, Store

log = logging.getLogger("clawstop.engine")

Params = dict[str, Any]


class Engine:
    def __init__(
        self,
        paths: Paths,
        *,
        plugins: Plugins | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.paths = paths
        self.token = secrets.token_hex(16)
        self._clock = clock
        self.store = Store.open(paths.database, clock)
        self.plugins = plugins or Plugins.load()
        self.problems: list[str] = []
        self.settings = Settings.load({}, {})
        self._configure(None)
        self._ledger = Ledger(clock)
        self.bridges = Bridges(paths.bridges)
        self.stops = Stops(
            state=paths.state_id,
            store=self.store,
            plugins=self.plugins,
            bridges=self.bridges,
            ledger=self._ledger,
            receipts=paths.receipts,
            clock=clock,
        )
        self._roles: dict[Peer, str] = {}

    # -- life

    async def startup(self) -> None:
        """The latches of every tombstone hold before anybody connects."""
        self._take_tombstones()
        try:
            self.store.prune()
        except StoreError as error:  # a full disk keeps nobody from stopping an agent
            log.error("%s", error)
        unfinished = [stop for stop, _, _ in self.store.unfinished_stops()]
        if unfinished:
            log.warning("finishing stops that were cut off: %s", ", ".join(unfinished))
        await self.plugins.startup(EngineInfo(__version__, self.paths.root, unfinished))

    def _take_tombstones(self) -> None:
        """Latch what was stopped while no engine ran; `resume` finishes those stops."""
        for file in sorted(self.paths.tombstones.glob("*.json")):
            name = (read_json(file) or {}).get("target")
            try:
                if not isinstance(name, str):
                    raise UsageError("not a private file that names a target")
                known = [*self.agents(), scopes.agent_of(name)]  # it may be new to us
                target = targets.resolve(name, self.store, known)
            except (UsageError, Ambiguous) as error:
                log.error("not a tombstone, put aside: %s: %s", file.name, error)
                file.rename(file.with_suffix(".rejected"))
                continue
            request = self._request(file.stem, target, "/stop (engine was down)", "")
            self.stops.latch(request)
            if request.id not in self.stops.brakes:  # else the tombstone is all that is on disk
                file.unlink()

    @property
    def busy(self) -> bool:
        return bool(self._roles) or self.stops.busy

    def close(self) -> None:
        for peer in list(self._roles):
            peer.close()
        self.store.close()

    # -- the wire

    async def dispatch(self, peer: Peer, method: str, params: Params) -> Any:
        role = self._roles.get(peer)
        if method == "hello":
            return await self._hello(peer, params)
        if role is None:
            peer.close()
            raise ProtocolError("say hello first")
        handler = getattr(self, ("on_" if role == "bridge" else "do_") + method, None)
        if handler is None:
            raise UsageError(f"there is no method {method[:40]!r} for a {role}")
        return await handler(peer, params)

    async def _hello(self, peer: Peer, params: Params) -> Params:
        newest, oldest = params.get("protocol"), params.get("oldest", params.get("protocol"))
        if (
            not isinstance(newest, int)
            or not isinstance(oldest, int)
            or newest < OLDEST
            or oldest > PROTOCOL
        ):
            raise ProtocolError(
                f"this engine speaks protocol {OLDEST} to {PROTOCOL}, you speak {newest!r}; "
                "run `clawstop install` and restart the gateway, so that both are of one version"
            )
        if not secrets.compare_digest(_text(params, "token").encode(), self.token.encode()):
            raise NotPermitted("wrong token")
        role = _text(params, "role")
        if role == "cli":
            self._roles[peer] = role
            return {"protocol": min(newest, PROTOCOL), "version": __version__}
        if role != "bridge":
            raise ProtocolError(f"there is no role {role[:40]!r}")
        bridge = Bridge(
            peer,
            pid=_number(params, "pid"),
            host=_text(params, "host"),
            version=_text(params, "version"),
            capabilities=dict(params.get("capabilities") or {}),
            agents=[str(agent) for agent in params.get("agents") or ()],
        )
        self._configure(params.get("config"))
        self._take_tombstones()
        runs = [
            (_text(run, "run"), _session(run), _text(run, "cause"), run.get("reports"))
            for run in params.get("runs") or ()
        ]
        try:
            if not list(self.bridges):  # another gateway's runs are not this one's to end
                self.store.end_runs_but((run, session) for run, session, _, _ in runs)
            for child in params.get("children") or ():
                self.store.adopt(scopes.check_key(_text(child, "child")), _session(child))
            for run, session, cause, reports in runs:
                self.store.bind(run, session, cause, reports)
        except StoreError as error:  # the bridge needs the mirror all the more
            log.error("%s", error)
            self.problems.append(str(error))
        self._roles[peer] = role
        self.bridges.add(bridge)
        log.info("bridge connected: %s", bridge.name)
        if self.store.unfinished_stops():
            self._resuming = asyncio.create_task(self.stops.resume())
        return {
            "protocol": min(newest, PROTOCOL),
            "version": __version__,
            "state": self.paths.state_id,
            "settings": vars(self.settings),
            "ask_emit": self.plugins.implements("clawstop_emit"),
            "mirror": self.stops.mirror(),
            "runs": {run: self.store.standing(session, run).bound for run, session, _, _ in runs},
        }

    def _configure(self, config: Any) -> None:
        """Take the plugin's settings; bad ones are reported and the last good ones stay."""
        self.problems = []
        try:
            self.settings = Settings.load(config if isinstance(config, dict) else None)
        except SettingsError as error:
            log.error("%s", error)
            self.problems.append(str(error))

    async def on_configure(self, peer: Peer, params: Params) -> None:
        """The person edited the plugin's settings; they hold from now on."""
        self._configure(params.get("config"))
        peer.notify("settings", vars(self.settings))

    def gone(self, peer: Peer) -> None:
        self._roles.pop(peer, None)
        bridge = self.bridges.remove(peer)
        if bridge:
            log.warning("bridge disconnected: %s", bridge.name)

    def _standing(self, session: str, run: str | None = None) -> Standing:
        """The store's word, with the latches that could not be saved on top."""
        return self._braked(self.store.standing(session, run))

    def _braked(self, standing: Standing) -> Standing:
        for request in self.stops.brakes.values():
            if any(scopes.covers(scope, standing.session) for scope in request.target.scopes):
                return replace(standing, latched_since=self._clock())
        return standing

    # -- what a bridge tells and asks

    async def on_message(self, peer: Peer, params: Params) -> Params:
        """A person's message, seen coming in: the only thing in chat that releases a latch."""
        message = Message(
            id=_text(params, "id"),
            session=_session(params),
            sender=_text(params, "sender"),
            authorised=params.get("authorised") is True,
        )
        age = params.get("age_ms", 0)  # it may have waited for us while a stop came
        arrived = self._clock() - (age / 1000 if isinstance(age, int | float) else 0.0)
        released = False
        if message.authorised and message.id:
            refusal = await self.plugins.message(message)
            if refusal:
                log.warning("message %s releases nothing: %s", message.id, refusal)
            # A channel numbers messages per chat, so the session is part of what makes an id new.
            id = f"{message.session} {message.id}"
            before = None if refusal else arrived
            released = self.store.admit(id, message.session, releases_before=before)
        if released:
            await self.bridges.push(self.stops.mirror([message.session]))
        return {"released": released, "refusal": self._standing(message.session).refusal}

    async def on_run_start(self, peer: Peer, params: Params) -> Params:
        run, session, cause = _text(params, "run"), _session(params), _text(params, "cause")
        self.store.bind(run, session, cause, params.get("reports"))
        standing = self._standing(session, run)
        await self.plugins.run_started(Run(run, cause, standing))
        return {"bound": standing.bound, "refusal": standing.refusal}

    async def on_run_end(self, peer: Peer, params: Params) -> None:
        run, session = _text(params, "run"), _session(params)
        self.store.end_run(run, session)
        await self.plugins.run_ended(Run(run, "", self._standing(session, run)))

    async def on_tool(self, peer: Peer, params: Params) -> Params:
        """The gate. Asked again after the plugins: a stop may have come while they thought."""
        id, run, session = _text(params, "id"), _text(params, "run"), _session(params)
        tool = _text(params, "tool")
        # No run when the host's HTTP API asks: then only the session counts.
        standing = self.store.bind(run, session, "unknown") if run else self.store.standing(session)
        call = ToolCall(id, run, tool, self._braked(standing))
        refusal = call.standing.refusal
        if not refusal and self.plugins.implements("clawstop_pre_tool"):
            refusal = await self.plugins.gate(call) or self._standing(session, run).refusal
        (self._ledger.refused if refusal else self._ledger.allowed)(id, session, run, tool)
        return {"refusal": refusal}

    async def on_tool_end(self, peer: Peer, params: Params) -> None:
        self._ledger.finished(_text(params, "id"), _session(params), params.get("ok") is True)

    async def on_emit(self, peer: Peer, params: Params) -> Params:
        run = params.get("run")
        session = _session(params)
        standing = self._standing(session, run if isinstance(run, str) else None)
        output = Output(run, _text(params, "kind"), standing)
        return {"refusal": await self.plugins.emit(output)}

    async def on_child(self, peer: Peer, params: Params) -> None:
        child, parent = scopes.check_key(_text(params, "child")), _session(params)
        self.store.adopt(child, parent)
        await self.bridges.push(self.stops.mirror([child]))

    async def on_stop(self, peer: Peer, params: Params) -> Params:
        """A person stopped a session in chat; the host has acted, the rest is ours."""
        target = targets.session(_session(params), self.store)
        trigger, who = _text(params, "trigger"), _text(params, "sender")
        return await self.stops.stop(self._request(_text(params, "id"), target, trigger, who))

    # -- what the command line asks

    def agents(self) -> list[str]:
        """Every agent known to a gateway, to the state folder, or to our own records."""
        folder = self.paths.openclaw / "agents"
        on_disk = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        connected = [agent for bridge in self.bridges for agent in bridge.agents]
        recorded = [scopes.agent_of(session) for session in self.store.sessions()]
        return sorted({*on_disk, *connected, *recorded})

    def _request(
        self,
        id: str,
        target: targets.Target,
        trigger: str,
        who: str,
        *,
        grace: float | None = None,
        caller: int | None = None,
    ) -> Request:
        spare = processes.ancestors(caller) if caller is not None else []
        seconds = self.settings.grace_ms / 1000 if grace is None else grace
        return Request(id or secrets.token_hex(8), target, trigger, who, seconds, frozenset(spare))

    async def do_stop(self, peer: Peer | None, params: Params) -> Params:
        name, main = _text(params, "target"), params.get("include_main") is True
        try:
            target = targets.resolve(name, self.store, self.agents(), include_main=main)
        except UsageError:
            await self.bridges.wait()  # a gateway that is coming back knows agents that we may not
            target = targets.resolve(name, self.store, self.agents(), include_main=main)
        if params.get("dry_run") is True:
            return self._preview(target)
        grace = params.get("grace")
        request = self._request(
            _text(params, "id"),
            target,
            "clawstop stop",
            _text(params, "who"),
            grace=float(grace) if isinstance(grace, int | float) else None,
            caller=_caller(peer, params),
        )
        return await self.stops.stop(request)

    def _preview(self, target: targets.Target) -> Params:
        inside = [*target.scopes, *target.sessions]
        runs = [
            {"run": run, "session": session, "generation": generation}
            for run, session, generation in self.store.live_runs()
            if any(scopes.covers(scope, session) for scope in inside)
        ]
        state = self.paths.state_id
        owned = processes.find(
            lambda owner: (
                owner.state == state
                and any(scopes.covers(scope, owner.session) for scope in inside)
            )
        )
        return {
            "dry_run": True,
            "target": target.name,
            "scopes": target.scopes,
            "sessions": target.sessions,
            "spared": target.spared,
            "runs": runs,
            "processes": [
                {"pid": o.ident.pid, "session": o.owner.session, "command": o.command}
                for o in owned
            ],
        }

    async def do_release(self, peer: Peer | None, params: Params) -> Params:
        """Only a person may: a process that a run started is refused, however it got here."""
        callers.refuse_owned(_caller(peer, params), "release")
        target = targets.resolve(_text(params, "target"), self.store, self.agents())
        lifted = [scope for wide in target.scopes for scope in self.store.release(wide)]
        await self.bridges.push(self.stops.mirror())
        return {"target": target.name, "released": lifted}

    async def do_status(self, peer: Peer | None, params: Params) -> Params:
        absent = self.bridges.absent()
        problems = [*self.problems, *self.plugins.problems]
        problems += [f"gateway {pid} runs but is not connected" for pid in absent]
        problems += [f"stop {id} is not on disk: free some space" for id in self.stops.brakes]
        mirror = self.stops.mirror()
        return {
            "version": __version__,
            "folder": str(self.paths.root),
            "gateways": [
                {"host": b.host, "version": b.version, "pid": b.pid, **b.capabilities}
                for b in self.bridges
            ],
            "agents": self.agents(),
            "sessions": [
                {
                    "session": key,
                    "generation": generation,
                    "stopped_since": self._standing(key).latched_since,
                    "runs": [run for run, session, _ in self.store.live_runs() if session == key],
                }
                for key, (generation, _) in mirror["sessions"].items()
            ],
            "latches": sorted(mirror["latches"]),
            "unfinished": [stop for stop, _, _ in self.store.unfinished_stops()],
            "settings": vars(self.settings),
            "plugins": self.plugins.names,
            "problems": problems,
        }


def _caller(peer: Peer | None, params: Params) -> int:
    """The pid that asks: the system's word where it gives one, else the caller's own."""
    told = peer.pid if peer else None
    return told if told is not None else _number(params, "pid")


def _text(params: Params, key: str) -> str:
    value = params.get(key, "")
    if not isinstance(value, str) or len(value) > scopes.MAX_KEY:
        raise UsageError(f"{key}: expected a short text, got {str(value)[:60]!r}")
    return value


def _number(params: Params, key: str) -> int:
    value = params.get(key)
    if not isinstance(value, int):
        raise UsageError(f"{key}: expected a number, got {str(value)[:60]!r}")
    return value


def _session(params: Params) -> str:
    return scopes.check_key(_text(params, "session"))
