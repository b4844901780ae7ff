"""The engine: it owns the store, the plugins, the ledger and the stops, and knows nothing of
sockets but `Peer`. What a bridge tells and asks is `on_<name>` here; what the command line asks is
in `commands.py`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from . import (
    __version__,
    agentsmd,
    answers,
    callers,
    cgroups,
    checkpoints,
    flags,
    leases,
    ownership,
    processes,
    reaping,
    receipts,
    records,
    scopes,
    targets,
)
from .agents import Agent
from .bridges import Bridge, Bridges
from .commands import Commands
from .cookies import Owner
from .cooperation import Cooperation
from .errors import (
    Ambiguous,
    ClawstopError,
    GoneOn,
    NotPermitted,
    ProtocolError,
    SettingsError,
    StoreError,
    UsageError,
)
from .events import EngineInfo, Message, Output, Run, ToolCall
from .freezing import Freezer
from .guarding import Guard
from .ledger import Ledger
from .memory import Memory, Wanted
from .ownership import Proofs
from .params import Params, names, number, session_of, text
from .paths import Paths, read_json
from .plugins import Plugins
from .processes import Ident
from .prompts import Prompt
from .protocol import OLDEST, PROTOCOL, Peer
from .recovery import GOING_ON, Recovery, Speaker
from .restoring import Restoring
from .roster import Roster
from .settings import Settings
from .stops import Request, Stops
from .store import Standing, Store
from .watching import Watch
from .words import say

log = logging.getLogger("clawstop.engine")

DAY = 86400.0
STOPS_SHOWN = 5  # in chat: a phone shows about as many
FINISH_SECONDS = 1.5  # a message waits so long for a stop to be done; its bridge waits for 2
MAX_PROMPT = 4000  # characters of a person's message, and what a bridge sends of it
ALIVE_SECONDS = 10.0  # how exactly a crash is dated
MAX_PATH = 4096
MAX_INPUT = 4000  # characters of a tool's input that a bridge may tell; it sends at most 2,000


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
        self.roster = Roster(paths, self.store, self.bridges)
        self.freezer = Freezer(
            paths, self.store, self.bridges, self.proofs, lambda: self.stops.mirror([])
        )
        self.memory = Memory(
            paths,
            self.store,
            self.bridges,
            settings=lambda: self.settings,
            workspaces=self.workspaces,
            clock=clock,
        )
        self.cooperation = Cooperation(paths, self.store, lambda: self.settings, clock)
        self.stops = Stops(
            state=paths.state_id,
            store=self.store,
            plugins=self.plugins,
            bridges=self.bridges,
            ledger=self._ledger,
            receipts=paths.receipts,
            settings=lambda: self.settings,
            proofs=self.proofs,
            freezer=self.freezer,
            memory=self.memory,
            cooperation=self.cooperation,
            workspaces=self.workspaces,
            clock=clock,
        )
        self.restoring = Restoring(
            paths.receipts,
            store=self.store,
            bridges=self.bridges,
            memory=self.memory,
            stops=self.stops,
            plugins=self.plugins,
        )
        self.recovery = Recovery(
            paths,
            store=self.store,
            bridges=self.bridges,
            stops=self.stops,
            settings=lambda: self.settings,
            proofs=self.proofs,
            workspaces=lambda agent: self.roster.workspaces([agent]),
            language=self._language,
            clock=clock,
        )
        self._guard = Guard(
            paths, self.roster, self.bridges, self.plugins, settings=lambda: self.settings
        )
        self._watch = Watch(paths, paths.state_id, self.proofs)
        self._watching: asyncio.Task[None] | None = None
        self.commands = Commands(self)
        self._roles: dict[Peer, str] = {}
        self._looking = asyncio.Semaphore(1)
        self._pruned = self._alive = 0.0
        self._overdue: set[str] = set()  # stops of runs that took too long
        self._flags: set[str] = set()  # seen already; those that were stops are in the store too
        self._tasks: set[asyncio.Task[Any]] = set()  # a task that nobody holds may vanish

    # -- life

    async def startup(self) -> None:
        """The latches of every tombstone hold before anybody connects."""
        await self.roster.refresh()
        self._take_tombstones()
        await self.freezer.hold()
        try:
            self.store.prune()
        except StoreError as error:  # a full disk keeps nobody from stopping an agent
            log.error("%s", error)
        unfinished = [stop for stop, _, _ in self.store.unfinished_stops()]
        if unfinished:
            log.warning("finishing stops that were cut off: %s", ", ".join(unfinished))
        await self.plugins.startup(EngineInfo(__version__, self.paths.root, unfinished))

    async def resume(self) -> None:
        """Finish what was cut off, by a crash or by a gateway that went away."""
        await self.stops.resume()
        await self.restoring.resume()

    def _take_tombstones(self) -> None:
        """Latch what was stopped while no engine ran; `resume` finishes those stops."""
        for file in sorted(self.paths.tombstones.glob("*.json")):
            found = read_json(file) or {}
            name, latch = found.get("target"), found.get("latch", True) is True
            try:
                if not isinstance(name, str):
                    raise UsageError("not a private file that names a target")
                if latch:
                    target = targets.exact(name, self.store, self.roster.ids)
                else:
                    target = targets.restarted(scopes.check_key(name), self.store)
            except (UsageError, Ambiguous) as error:
                log.error("not a tombstone, put aside: %s: %s", file.name, error)
                file.rename(file.with_suffix(".rejected"))
                continue
            trigger = f"{found.get('trigger') or '/stop'} (engine was down)"
            who = str(found.get("sender") or "")
            request = self.request(file.stem, target, trigger, who, memory=_wanted(found))
            said = found.get("at")  # a message that came after it is newer than the stop
            if isinstance(said, int | float) and 0 < said / 1000 < self._clock():
                request = replace(request, at=said / 1000)
            self.stops.latch(request)
            if request.id not in self.stops.brakes:  # else the tombstone is all that is on disk
                file.unlink()

    def tick(self) -> None:
        """Called again and again while the engine runs."""
        self._take_flags()
        self.cooperation.renew()
        self.recovery.tick()
        self._stop_overdue()
        if self.stops.is_due():
            self._start(self._tell_made())
        idle = self._watching is None or self._watching.done()
        if idle and self._watch.due and list(self.bridges):
            self._watching = asyncio.create_task(self._look())
        if self._clock() - self._pruned > DAY and list(self.bridges):
            self._prune_receipts()  # not before a gateway has told its settings
        long_ago = abs(self._clock() - self._alive) > ALIVE_SECONDS
        if long_ago and list(self.bridges) and self.store.live_runs():
            self._alive = self._clock()
            self.store.note_alive()

    def _prune_receipts(self) -> None:
        self._pruned = self._clock()
        oldest = self._pruned - self.settings.receipts_days * DAY
        try:
            receipts.prune(self.paths.receipts, self.settings.receipts_keep, oldest)
            self.memory.prune()
            checkpoints.prune(checkpoints.folder(self.paths.checkpoints), self._pruned)
        except OSError as error:
            log.error("old receipts stay: %s", error)

    def _take_flags(self) -> None:
        """Stop what a stop flag names. The same flag is one stop, also for the next engine; when
        that is done it goes, so that who runs next does not find it."""
        for flag in flags.fresh(flags.folders(self.paths.flags), self._clock()):
            if self.store.has_stop(flag.stop) and not self.stops.is_under_way(flag.stop):
                flags.remove(flag)
            if flag.stop in self._flags or self.store.has_stop(flag.stop):
                continue
            # A stop's own, for who looks for flags: of this engine, or of another gateway's.
            own = flag.by and (self.store.has_stop(flag.by) or self.stops.is_under_way(flag.by))
            if own or flags.is_foreign(flag, self.paths.state_id):
                continue
            session = next(filter(None, map(self.store.session_named, flag.names)), None)
            if session is None:  # it may be known in a moment
                continue
            self._flags.add(flag.stop)
            who = f"stop flag: {flag.reason}" if flag.reason else "stop flag"
            target = targets.session(session, self.store)
            request = self.request(flag.stop, target, "stop flag", who)
            self._start(self._stop_and_tell(replace(request, signal=flag.signal)))

    def _stop_overdue(self) -> None:
        """A run that takes longer than the person allows is stopped, as they would."""
        minutes = self.settings.max_run_minutes
        for run, session in self.store.overdue(minutes * 60) if minutes else ():
            if self.freezer.held_by(session):  # somebody is looking at it
                continue
            id = hashlib.sha256(f"overdue {session} {run}".encode()).hexdigest()[:16]
            if id in self._overdue or self.store.has_stop(id):
                continue
            self._overdue.add(id)
            target = targets.session(session, self.store)
            self._start(
                self._stop_and_tell(self.request(id, target, "max_run_minutes", "clawstop"))
            )

    async def _stop_and_tell(self, request: Request) -> None:
        """A stop that nobody said in the chat is told there."""
        receipt = await self.stops.stop(request)
        self._take_flags()  # before a run can find the one that asked for this
        for bridge in self.bridges:
            bridge.tell(request.target.name, answers.chat(receipt, self._language()))

    async def _tell_made(self) -> None:
        """Who was told that a stop is not complete hears when it is."""
        for receipt in await self.stops.roll_back_held():
            sessions = {row["session"] for row in receipt["memory"] if "did" in row}
            for bridge, session in product(self.bridges, sessions):
                bridge.tell(session, answers.chat(receipt, self._language()))

    async def _look(self) -> None:
        """What the watch is for, and the end of leases that outlived their run."""
        try:
            found = await asyncio.to_thread(self._watch.look)
            self._watch.tidy(self._cage_is_dead)
            await self.freezer.hold()
            over = {one.owner for one in found if self._outlived(one.owner)}
            if over:
                log.info("leases are over: %s", ", ".join(sorted(o.session for o in over)))
                spare = self.bridges.idents()
                await asyncio.to_thread(
                    reaping.reap, over.__contains__, proofs=self.proofs, spare=spare
                )
        except Exception as error:  # the next look may see more; nothing else waits for this one
            log.error("owned processes cannot be watched: %r", error)

    def _outlived(self, owner: Owner) -> bool:
        lease = leases.parse(owner.lease)
        dead = owner.generation < self.store.generation(owner.session)
        return dead and lease.kind == "keep" and not lease.left

    def proofs(self) -> Proofs:
        return ownership.proofs(self.paths, self.bridges.idents())

    def workspaces(self, target: targets.Target) -> list[Path]:
        """Of the agents that a stop is about."""
        inside = [*target.scopes, *target.sessions]
        agents = [
            a for a in self.roster.ids if any(scopes.covers(s, f"agent:{a}:") for s in inside)
        ]
        return self.roster.workspaces([*agents, *map(scopes.agent_of, target.sessions)])

    def _start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Let it run by itself; what goes wrong is logged where it happens."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def busy(self) -> bool:
        return bool(self._roles) or self.stops.busy

    def close(self) -> None:
        for peer in list(self._roles):
            peer.close()
        self._guard.close()
        if not self.bridges.idents():  # a gateway that runs on would miss them
            cgroups.prune(cgroups.folders(self.paths.cages), lambda _: True)
        self.store.close()

    # -- the wire

    async def dispatch(self, peer: Peer, method: str, params: Params) -> Any:
        role = self._roles.get(peer)
        if method == "hello":
            return await self._hello(peer, params)
        if role is None:
            peer.close()
            raise ProtocolError("say hello first")
        handler = None
        if role == "bridge":
            handler = getattr(self, f"on_{method}", None)
        elif role == "task":
            handler = self.cooperation.interrupted if method == "interrupted" else None
        elif not method.startswith("_"):
            handler = getattr(self.commands, method, None)
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
        if not secrets.compare_digest(text(params, "token").encode(), self.token.encode()):
            raise NotPermitted("wrong token")
        role = text(params, "role")
        if role == "cli":
            self._roles[peer] = role
            return {"protocol": min(newest, PROTOCOL), "version": __version__}
        if role == "task":
            pid = peer.pid if peer.pid is not None else number(params, "pid")
            async with self._looking:  # one at a time: a stop looks too
                owner = await asyncio.to_thread(callers.owner_of, pid, self.proofs())
            if owner and owner.state != self.paths.state_id:
                raise NotPermitted(f"process {pid} is of another gateway than this engine's")
            told = self.cooperation.welcome(peer, params, owner.session if owner else None)
            self._roles[peer] = role
            return {"protocol": min(newest, PROTOCOL), "version": __version__, **told}
        if role != "bridge":
            raise ProtocolError(f"there is no role {role[:40]!r}")
        bridge = Bridge(
            peer,
            pid=(pid := number(params, "pid")),
            host=text(params, "host"),
            version=text(params, "version"),
            gateway=_name_of(pid),
            capabilities=dict(params.get("capabilities") or {}),
        )
        bridge.take_agents(params)
        self._configure(params.get("config"))
        self._take_tombstones()
        runs = [
            (text(run, "run"), session_of(run), text(run, "cause"), names(run, "reports"), at)
            for run, at in ((run, _time(run, "asked")) for run in params.get("runs") or ())
        ]
        alone = not list(self.bridges)
        alone = alone and not any(ident.pid != bridge.pid for ident in self.bridges.idents())
        living = [(run, session) for run, session, *_ in runs]
        try:
            if alone:
                self.recovery.crashes.arrived(bridge.gateway, living)
            else:
                self.recovery.crashes.beside(bridge.gateway)
                if not list(self.bridges):  # another gateway's runs are not this one's to end
                    self.store.end_runs_but(living)
            for child in params.get("children") or ():
                self.store.adopt(scopes.check_key(text(child, "child")), session_of(child))
            for run, session, cause, reports, asked in runs:
                self.store.bind(run, session, cause, reports, asked)
            for trace in params.get("traces") or ():
                self._note_trace(trace)
        except (StoreError, UsageError) as error:  # the bridge needs the mirror all the more
            log.error("%s", error)
            self.problems.append(str(error))
        born = _time(params, "born") or self._clock()
        recovery = self.recovery.recover(bridge, born) if alone else None
        self._roles[peer] = role
        self.bridges.add(bridge)
        log.info("bridge connected: %s", bridge.name)
        self._guard.start()
        self._start(self.stops.drain_late())
        if self.store.unfinished_stops() or self.store.restores():
            self._start(self.resume())
        if recovery:
            self._start(recovery)
        return {
            "protocol": min(newest, PROTOCOL),
            "version": __version__,
            "state": self.paths.state_id,
            **self._cage_for(bridge),
            "settings": vars(self.settings),
            "ask_emit": self.plugins.implements("clawstop_emit"),
            "questions": self.recovery.questions,
            "mirror": self.stops.mirror(),
            "runs": {run: self.store.standing(session, run).bound for run, session, *_ in runs},
        }

    def _gateway_of(self, peer: Peer) -> str:
        return next((bridge.gateway for bridge in self.bridges if bridge.peer is peer), "")

    def _language(self, words: str = "") -> str | None:
        """Of these words, or as the settings say; None: as this machine is set up."""
        chosen = None if self.settings.language == "auto" else self.settings.language
        return "zh" if answers.is_chinese(words) else chosen

    def _cage_for(self, bridge: Bridge) -> Params:
        """Where this gateway's processes are put."""
        folder = cgroups.folder_for(bridge.pid, self.paths.state_id)
        if folder is None:
            if cgroups.home(bridge.pid) is not None:  # there are cgroups, but not for us
                bridge.capabilities["cages"] = False
            return {}
        try:
            cgroups.remember(self.paths.cages, folder)
        except OSError as error:
            log.error("no cages: %s", error)
            return {}
        bridge.capabilities["cages"] = True
        return {"cages": str(folder)}

    def _cage_is_dead(self, owner: Owner) -> bool:
        """Of generation 0 are those of a run that is not bound yet: only a stop ends them."""
        return 0 < owner.generation < self.store.generation(owner.session)

    def _configure(self, config: Any) -> None:
        """Take the plugin's settings; bad ones are reported and the last good ones stay."""
        self.problems = []
        try:
            self.settings = Settings.load(config if isinstance(config, dict) else None)
        except SettingsError as error:
            protocol = Settings.protocol_of(config if isinstance(config, dict) else {})
            self.settings = replace(self.settings, protocol=protocol)
            log.error("%s", error)
            self.problems.append(str(error))

    async def on_configure(self, peer: Peer, params: Params) -> None:
        """The person edited the plugin's settings; they hold from now on."""
        self._configure(params.get("config"))
        self._guard.start()
        peer.notify("settings", vars(self.settings))

    def gone(self, peer: Peer) -> None:
        self._roles.pop(peer, None)
        self.cooperation.gone(peer)
        bridge = self.bridges.remove(peer)
        if bridge:
            log.warning("bridge disconnected: %s", bridge.name)

    def standing(self, session: str, run: str | None = None) -> Standing:
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
            id=text(params, "id"),
            session=session_of(params),
            sender=text(params, "sender"),
            authorised=params.get("authorised") is True,
        )
        age = params.get("age_ms", 0)  # it may have waited for us while a stop came
        arrived = self._clock() - (age / 1000 if isinstance(age, int | float) else 0.0)
        # A channel numbers messages per chat, so the session is part of what makes an id new.
        id, words = f"{message.session} {message.id}", text(params, "text", MAX_PROMPT)
        fresh = not self.store.seen(id)
        told = False
        route = dict(params.get("route") or {})
        if message.authorised and message.id and (words or route.get("media")):
            unread = self.store.prompts.has(message.session, message.id)
            if fresh or unread or self.recovery.knows(message.session, message.id):
                about = (message.session, message.id, message.sender, words, route, arrived)
                self.store.prompts.note(Prompt(*about, self._gateway_of(peer)))
            who = _speaker(params, message.sender)
            told = self.recovery.said(message.session, message.id, who, fresh=fresh, unread=unread)
            # A page or a channel that tells it again does not bring back what was stopped.
            told = told or (not (fresh or unread) and self.store.stopped_since(id, message.session))
        released = False
        if message.authorised and message.id:
            refusal = await self.plugins.message(message)
            if refusal:
                log.warning("message %s releases nothing: %s", message.id, refusal)
            before = None if refusal else arrived
            async with self._undisturbed(message.session):
                released = self.store.admit(id, message.session, releases_before=before)
        if released:
            await self.bridges.push(self.stops.mirror([message.session]))
        if told:
            self.store.prompts.read(message.session, [message.id])
        refusal = self.standing(message.session).refusal
        return {"released": released, "refusal": refusal, "continued": told}

    @contextlib.asynccontextmanager
    async def _undisturbed(self, session: str) -> AsyncIterator[None]:
        """When no stop and no change of memory is under way there, or after a while: then what
        comes next is what the conversation has gone on with, and is left alone."""
        async with contextlib.AsyncExitStack() as stack:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_SECONDS):
                    await self.stops.finished(session)
                    await stack.enter_async_context(self.memory.quiet(session))
            yield

    async def on_run_start(self, peer: Peer, params: Params) -> Params:
        run, session, cause = text(params, "run"), session_of(params), text(params, "cause")
        self.store.bind(run, session, cause, names(params, "reports"), _time(params, "asked"))
        if answers_message := text(params, "message"):
            self.store.prompts.answer(session, answers_message, run)
        await self.recovery.swept()
        if cause in GOING_ON:
            await self.recovery.judged()
        if not any(one[:2] == (run, session) for one in self.store.live_runs()):
            return {"bound": self.standing(session, run).bound, "refusal": "it is over"}
        host_id = text(params, "session_id")
        if host_id:
            self.store.name(session, host_id)
        standing = self.standing(session, run)
        await self.plugins.run_started(Run(run, cause, standing))
        again = None if standing.refusal else self.recovery.may_run(session, run, cause)
        if again:  # where no hook answers it with silence, the gate holds it
            standing = self.store.bury(run, session)
        refusal = again or standing.refusal
        return {"bound": standing.bound, "refusal": refusal, **self.recovery.whose(session, run)}

    async def on_run_end(self, peer: Peer, params: Params) -> None:
        run, session = text(params, "run"), session_of(params)
        self.store.end_run(run, session, _time(params, "ended"))
        self.recovery.ended(session, run, params.get("finished", True) is True)
        await self.plugins.run_ended(Run(run, "", self.standing(session, run)))

    async def on_read(self, peer: Peer, params: Params) -> None:
        """These messages were read by a run that another one began."""
        self.store.prompts.read(session_of(params), names(params, "ids"))

    async def on_tool(self, peer: Peer, params: Params) -> Params:
        """The gate. Asked again after the plugins: a stop may have come while they thought."""
        id, run, session = text(params, "id"), text(params, "run"), session_of(params)
        tool = text(params, "tool")
        if not await self.recovery.swept():
            return {"refusal": "processes that a crash has left are being ended; try it again"}
        # No run when the host's HTTP API asks: then only the session counts.
        standing = self.store.bind(run, session, "unknown") if run else self.store.standing(session)
        call = ToolCall(id, run, tool, self._braked(standing))
        refusal = call.standing.refusal
        if not refusal and self.plugins.implements("clawstop_pre_tool"):
            refusal = await self.plugins.gate(call) or self.standing(session, run).refusal
        frozen = not refusal and bool(self.freezer.held_by(session))
        if frozen:
            refusal = f"session {session} is frozen"  # a bridge that knows waits, and asks again
        note = self._ledger.refused if refusal else self._ledger.allowed
        bound = standing.generation if standing.bound is None else standing.bound
        note(id, session, run, tool, text(params, "input", MAX_INPUT), bound)
        return {"refusal": refusal} | ({"frozen": True} if frozen else {})

    async def on_tool_end(self, peer: Peer, params: Params) -> None:
        self._ledger.finished(text(params, "id"), session_of(params), params.get("ok") is True)

    async def on_emit(self, peer: Peer, params: Params) -> Params:
        run = params.get("run")
        session = session_of(params)
        standing = self.standing(session, run if isinstance(run, str) else None)
        output = Output(run, text(params, "kind"), standing)
        return {"refusal": await self.plugins.emit(output)}

    async def on_held(self, peer: Peer, params: Params) -> None:
        """Something of a dead run did not reach the person."""
        run, kind = text(params, "run"), text(params, "kind")
        self._ledger.held(session_of(params), run, kind, text(params, "text", MAX_INPUT))

    async def on_child(self, peer: Peer, params: Params) -> None:
        child, parent = scopes.check_key(text(params, "child")), session_of(params)
        self.store.adopt(child, parent)
        if self.freezer.held_by(parent) and not self.freezer.held_by(child):
            self.store.freeze([child])
        await self.bridges.push(self.stops.mirror([child]))

    async def on_trace(self, peer: Peer, params: Params) -> None:
        """A run left something behind that may start a run later."""
        self._note_trace(params)

    def _note_trace(self, params: Params) -> None:
        id, run, session = text(params, "id"), text(params, "run"), session_of(params)
        if text(params, "kind") == "job":
            self.store.made_job(session, run, id, text(params, "about", MAX_INPUT))
        else:
            self.store.started_exec(session, run, id)

    async def on_stops(self, peer: Peer, params: Params) -> Params:
        """The last stops, for a person in chat."""
        only, lang = text(params, "only"), text(params, "lang") or None
        every = receipts.latest(self.paths.receipts)
        shown = (one for one in every if not only or only in one["sessions"])
        told = [answers.summary(one, lang, chat=True) for one in islice(shown, STOPS_SHOWN)]
        return {"lines": told or [say("no_stops", lang)]}

    async def on_stop(self, peer: Peer, params: Params) -> Params:
        """A person stopped a session in chat; without `latch` they began it anew, or a new message
        takes over from what it does (`taken`)."""
        if params.get("name"):
            await self.roster.refresh()
        target, rule = self._meant(params), _wanted(params)
        if params.get("latch", True) is not True and params.get("taken") is not True:
            self.store.prompts.begun_anew(session_of(params), self._clock())
        trigger, who = text(params, "trigger"), text(params, "sender")
        request = self.request(text(params, "id"), target, trigger, who, memory=rule)
        receipt = await self.stops.stop(request)
        lang = text(params, "lang") or None
        taken = params.get("taken") is True
        told = answers.taken(receipt, lang) if taken else answers.chat(receipt, lang)
        return {"id": receipt["id"], "converged": receipt["converged"], "lines": told}

    def _meant(self, params: Params) -> targets.Target:
        """What a stop in chat is about: an agent by its name, or the session it was said in."""
        if name := text(params, "name"):
            known = name in targets.WIDE or scopes.is_session(name)
            if not known and name.removeprefix("agent:") not in self.roster.names.everybody:
                raise UsageError(f"nobody is called {name}")
            return targets.exact(name, self.store, self.roster.ids)
        chosen = targets.session if params.get("latch", True) is True else targets.restarted
        return chosen(session_of(params), self.store)

    async def on_named(self, peer: Peer, params: Params) -> Params:
        """Who is called so in chat: `name`, or `several` to choose from by number, or nobody; with
        the line that says so. `bare` is the name without what may be said around one. `sure` when
        nothing but a name can be meant."""
        typed, lang = text(params, "name"), text(params, "lang") or None
        name = text(params, "bare") or typed
        await self.roster.refresh()
        names = self.roster.names
        found = targets.meant(typed, names) or targets.meant(name, names)
        wide = found[:1] == [targets.wide(name)]
        if not found and params.get("sure") is True:
            found = targets.called(name, names, self.store, await self._labels())
        told = [targets.full(one) for one in found[: targets.SHOWN]]
        if len(found) == 1:
            return {"name": found[0] if wide else told[0]}
        if found:
            lines = [say("which_one", lang, name=name), *targets.numbered(found, names)]
            return {"several": told, "lines": lines}
        near = names.nearest(name)
        if near:
            near_line = say(
                "nobody_near", lang, name=name, agents=", ".join(map(names.called, near))
            )
            return {"lines": [near_line]}
        return {"lines": [say("nobody", lang, name=name, agents=targets.few(names.ids))]}

    async def on_block(self, peer: Peer, params: Params) -> Params:
        """What an agent is told about stops this turn, where its AGENTS.md does not say it."""
        id, folder = text(params, "agent"), text(params, "workspace", MAX_PATH)
        agent = Agent(id, workspace=Path(folder) if folder else None)
        protocol, root = self.settings.protocol, self.paths.root
        return {"text": await asyncio.to_thread(agentsmd.spoken, agent, protocol, root)}

    async def on_restore(self, peer: Peer, params: Params) -> Params:
        """A person wants back what a stop of their session took out of its memory; `any`: or of
        another one, whose receipt they name."""
        session, lang = session_of(params), text(params, "lang") or None
        who, receipt = text(params, "sender"), text(params, "receipt")
        force = params.get("force") is True
        try:
            only = "" if receipt and params.get("any") is True else session
            done = await self.restoring.by_receipt(receipt, who, force=force, only=only)
        except GoneOn:
            return {"lines": [say("gone_on_chat", lang, id=receipt and f" {receipt}")]}
        except UsageError:
            return {"lines": [say("nothing_taken", lang)]}
        except ClawstopError as error:
            return {"lines": [say("not_restored", lang, why=error)]}
        return {"lines": answers.restored(done, lang, chat=True)}

    async def on_answer(self, peer: Peer, params: Params) -> Params:
        """A person says whether what was cut off shall go on."""
        session, yes = session_of(params), params.get("yes") is True
        lang, who = text(params, "lang") or None, _speaker(params, text(params, "sender"))
        try:
            await self.recovery.answer(session, yes, who)
        except UsageError:
            return {"lines": [say("nothing_cut", lang)]}
        except NotPermitted:
            return {"lines": [say("not_yours", lang)]}
        return {"lines": [say("resume_yes" if yes else "resume_no", lang)]}

    async def on_cuts(self, peer: Peer, params: Params) -> Params:
        """What a crash cut off, and what became of it, for a person in chat."""
        only, lang = text(params, "only"), text(params, "lang") or None
        rows = await self.recovery.report()
        return {"lines": answers.recovered([r for r in rows if only in ("", r["session"])], lang)}

    async def on_suspects(self, peer: Peer, params: Params) -> Params:
        """A person confirms: end the suspects that the last stop of their session has named."""
        session, lang = session_of(params), text(params, "lang") or None
        last = next(
            (r for r in receipts.latest(self.paths.receipts) if session in r["sessions"]), {}
        )
        shown = (last.get("suspects") or ())[: answers.SUSPECTS]
        named = [Ident(row["pid"], row["start"]) for row in shown]
        if not named:
            return {"lines": [say("no_suspects", lang)]}
        id = text(params, "id") or secrets.token_hex(8)
        receipt = await self.stops.end_suspects(id, session, named, text(params, "sender"))
        return {"lines": answers.chat(receipt, lang)}

    # -- for stops, whoever asks for them

    async def find(self, name: str, *, include_main: bool = False) -> targets.Target:
        """What a command names. Nothing is waited for where that is clear."""
        ids = self.roster.ids
        if name in ids or targets.wide(name):
            return targets.exact(name, self.store, ids, include_main=include_main)
        labels: dict[str, str] = {}
        if not scopes.is_session(name):
            await self.roster.refresh()
            labels = await self._labels()
        return targets.resolve(name, self.store, self.roster.names, labels)

    async def _labels(self) -> dict[str, str]:
        """What people call their conversations, as far as a gateway tells."""
        told = [await bridge.labels() for bridge in self.bridges]
        return {key: label for labels in told for key, label in labels.items()}

    def request(
        self,
        id: str,
        target: targets.Target,
        trigger: str,
        who: str,
        *,
        grace: float | None = None,
        caller: int | None = None,
        suspects: bool = False,
        memory: Wanted | None = None,
    ) -> Request:
        spare = frozenset(processes.ancestors(caller) if caller is not None else ())
        seconds = self.settings.grace_ms / 1000 if grace is None else grace
        name = id or secrets.token_hex(8)
        wanted = memory or Wanted(rule="kill")
        return Request(name, target, trigger, who, seconds, spare, suspects, memory=wanted)


def _name_of(gateway: int) -> str:
    """What tells a gateway from any other process that ever had its number."""
    ident = processes.ident_of(gateway)
    return f"{records.boot()} {gateway} {ident.start if ident else ''}"


def _wanted(params: Params) -> Wanted:
    """What a stop that was said in chat does to memory: nothing where the person begins anew, or
    says that it shall be kept."""
    if params.get("taken") is True:
        return Wanted(rule="takeover")
    keep = params.get("latch", True) is not True or params.get("keep") is True
    if (name := params.get("name")) and not keep:
        return Wanted(rule="kill", named=name not in targets.WIDE)
    rule = "kill" if params.get("rule") == "kill" else "stop"  # of a command that had no engine
    return Wanted(rule="" if keep else rule)


def _speaker(params: Params, sender: str) -> Speaker:
    route = dict(params.get("route") or {})
    page = params.get("page") is True or route.get("channel") == "webchat"
    group, listed = params.get("group") is True, params.get("listed") is True
    return Speaker(sender, group=group, operator=page, listed=listed)


def _time(params: Params, key: str) -> float | None:
    """A bridge's clock is ours; it tells milliseconds."""
    value = params.get(key)
    return value / 1000 if isinstance(value, int | float) else None
