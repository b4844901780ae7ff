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
from itertools import islice
from pathlib import Path
from typing import Any

from . import (
    __version__,
    answers,
    cgroups,
    flags,
    leases,
    ownership,
    processes,
    reaping,
    receipts,
    scopes,
    targets,
)
from .bridges import Bridge, Bridges
from .commands import Commands
from .cookies import Owner
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
from .ledger import Ledger
from .memory import Memory, Wanted
from .ownership import Proofs
from .params import Params, names, number, session_of, text
from .paths import Paths, read_json
from .plugins import Plugins
from .processes import Ident
from .prompts import Prompt
from .protocol import OLDEST, PROTOCOL, Peer
from .restoring import Restoring
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
REPLAY_SECONDS = 15.0  # a host that comes back tells again what it kept within this
UNREAD_SECONDS = 600.0  # who wrote longer ago has noticed by now
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
        self._watch = Watch(paths, paths.state_id, self.proofs)
        self._watching: asyncio.Task[None] | None = None
        self.commands = Commands(self)
        self._roles: dict[Peer, str] = {}
        self._pruned = 0.0
        self._overdue: set[str] = set()  # stops of runs that took too long
        self._flags: set[str] = set()  # seen already; those that were stops are in the store too
        self._tasks: set[asyncio.Task[Any]] = set()  # a task that nobody holds may vanish

    # -- life

    async def startup(self) -> None:
        """The latches of every tombstone hold before anybody connects."""
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
                known = [*self.agents(), scopes.agent_of(name)]  # it may be new to us
                if latch:
                    target = targets.resolve(name, self.store, known)
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
        self._stop_overdue()
        self.store.prompts.prune(self._clock() - UNREAD_SECONDS)
        idle = self._watching is None or self._watching.done()
        if idle and self._watch.due and list(self.bridges):
            self._watching = asyncio.create_task(self._look())
        if self._clock() - self._pruned > DAY and list(self.bridges):
            self._prune_receipts()  # not before a gateway has told its settings

    def _prune_receipts(self) -> None:
        self._pruned = self._clock()
        oldest = self._pruned - self.settings.receipts_days * DAY
        try:
            receipts.prune(self.paths.receipts, self.settings.receipts_keep, oldest)
            self.memory.prune()
        except OSError as error:
            log.error("old receipts stay: %s", error)

    def _take_flags(self) -> None:
        """Stop what a stop flag names. The same flag is one stop, also for the next engine."""
        for flag in flags.fresh(flags.folders(self.paths.flags), self._clock()):
            if flag.stop in self._flags or self.store.has_stop(flag.stop):
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
        for bridge in self.bridges:
            bridge.tell(request.target.name, answers.chat(receipt, self._language()))

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
        """Of the agents that a stop is about. One that holds a whole home tells nothing."""
        inside = [*target.scopes, *target.sessions]
        agents = [a for a in self.agents() if any(scopes.covers(s, f"agent:{a}:") for s in inside)]
        agents += [scopes.agent_of(session) for session in target.sessions]
        told = {id: Path(path) for bridge in self.bridges for id, path in bridge.workspaces.items()}
        found = {told[agent].resolve() for agent in agents if agent in told}
        return sorted(folder for folder in found if not Path.home().is_relative_to(folder))

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
        public = not method.startswith("_")
        handler = (
            getattr(self, f"on_{method}", None)
            if role == "bridge"
            else getattr(self.commands, method, None)
            if public
            else None
        )
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
        if role != "bridge":
            raise ProtocolError(f"there is no role {role[:40]!r}")
        bridge = Bridge(
            peer,
            pid=number(params, "pid"),
            host=text(params, "host"),
            version=text(params, "version"),
            capabilities=dict(params.get("capabilities") or {}),
            agents=[str(agent) for agent in params.get("agents") or ()],
            workspaces={str(k): str(v) for k, v in dict(params.get("workspaces") or {}).items()},
        )
        self._configure(params.get("config"))
        self._take_tombstones()
        runs = [
            (text(run, "run"), session_of(run), text(run, "cause"), names(run, "reports"), at)
            for run, at in ((run, _time(run, "asked")) for run in params.get("runs") or ())
        ]
        try:
            if not list(self.bridges):  # another gateway's runs are not this one's to end
                self.store.end_runs_but((run, session) for run, session, *_ in runs)
            for child in params.get("children") or ():
                self.store.adopt(scopes.check_key(text(child, "child")), session_of(child))
            for run, session, cause, reports, asked in runs:
                self.store.bind(run, session, cause, reports, asked)
            for trace in params.get("traces") or ():
                self._note_trace(trace)
        except (StoreError, UsageError) as error:  # the bridge needs the mirror all the more
            log.error("%s", error)
            self.problems.append(str(error))
        self._roles[peer] = role
        self.bridges.add(bridge)
        log.info("bridge connected: %s", bridge.name)
        if self.store.unfinished_stops() or self.store.restores():
            self._start(self.resume())
        if (born := _time(params, "born")) is not None:
            self._start(self._tell_unread(born))
        return {
            "protocol": min(newest, PROTOCOL),
            "version": __version__,
            "state": self.paths.state_id,
            **self._cage_for(bridge),
            "settings": vars(self.settings),
            "ask_emit": self.plugins.implements("clawstop_emit"),
            "mirror": self.stops.mirror(),
            "runs": {run: self.store.standing(session, run).bound for run, session, *_ in runs},
        }

    async def _tell_unread(self, born: float) -> None:
        """Messages that the gateway before this one took in and no run has read are told to whoever
        wrote them, unless the host has kept them. Of two gateways nobody knows whose they are."""
        await asyncio.sleep(REPLAY_SECONDS)
        bridges = list(self.bridges)
        for prompt in self.store.prompts.unread(born) if len(bridges) == 1 else ():
            line = say("unread", self._language(prompt.text), text=prompt.text[: answers.SHORT])
            bridges[0].tell(prompt.session, [line], prompt.route)
            self.store.prompts.read(prompt.session, [prompt.id])

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
        if message.authorised and message.id and (words := text(params, "text", MAX_PROMPT)):
            route, who = dict(params.get("route") or {}), message.sender
            prompt = Prompt(message.session, message.id, who, words, route, arrived)
            self.store.prompts.note(prompt)
        released = False
        if message.authorised and message.id:
            refusal = await self.plugins.message(message)
            if refusal:
                log.warning("message %s releases nothing: %s", message.id, refusal)
            # A channel numbers messages per chat, so the session is part of what makes an id new.
            id = f"{message.session} {message.id}"
            before = None if refusal else arrived
            async with self._undisturbed(message.session):
                released = self.store.admit(id, message.session, releases_before=before)
        if released:
            await self.bridges.push(self.stops.mirror([message.session]))
        return {"released": released, "refusal": self.standing(message.session).refusal}

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
            self.store.prompts.read(session, [answers_message])
        host_id = text(params, "session_id")
        if host_id:
            self.store.name(session, host_id)
        standing = self.standing(session, run)
        await self.plugins.run_started(Run(run, cause, standing))
        return {"bound": standing.bound, "refusal": standing.refusal}

    async def on_run_end(self, peer: Peer, params: Params) -> None:
        run, session = text(params, "run"), session_of(params)
        self.store.end_run(run, session, _time(params, "ended"))
        await self.plugins.run_ended(Run(run, "", self.standing(session, run)))

    async def on_read(self, peer: Peer, params: Params) -> None:
        """These messages were read by a run that another one began."""
        self.store.prompts.read(session_of(params), names(params, "ids"))

    async def on_tool(self, peer: Peer, params: Params) -> Params:
        """The gate. Asked again after the plugins: a stop may have come while they thought."""
        id, run, session = text(params, "id"), text(params, "run"), session_of(params)
        tool = text(params, "tool")
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
        target, rule = self._meant(params), _wanted(params)
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
            if name not in (*targets.WIDE, *self.agents()):
                raise UsageError(f"nobody is called {name}")
            return targets.resolve(name, self.store, self.agents())
        chosen = targets.session if params.get("latch", True) is True else targets.restarted
        return chosen(session_of(params), self.store)

    async def on_named(self, peer: Peer, params: Params) -> Params:
        """Who is called so in chat: the name, or a line that says why not."""
        name, lang = text(params, "name"), text(params, "lang") or None
        called = targets.called(name, self.agents())
        if len(called) == 1:
            return {"name": called[0]}
        if called:
            line = say("which_one", lang, name=name, agents=", ".join(called))
            return {"several": True, "lines": [line]}
        return {"lines": [say("nobody", lang, name=name, agents=", ".join(self.agents()))]}

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

    def agents(self) -> list[str]:
        """Every agent known to a gateway, to the state folder, or to our own records."""
        folder = self.paths.openclaw / "agents"
        on_disk = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        connected = [agent for bridge in self.bridges for agent in bridge.agents]
        recorded = [scopes.agent_of(session) for session in self.store.sessions()]
        return sorted({*on_disk, *connected, *recorded})

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


def _time(params: Params, key: str) -> float | None:
    """A bridge's clock is ours; it tells milliseconds."""
    value = params.get(key)
    return value / 1000 if isinstance(value, int | float) else None
