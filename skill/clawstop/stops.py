"""One stop from the first word to the receipt, in the order that the design gives:

    latch and bump -> end the runs -> drain -> kill the processes -> roll back memory -> receipt

Step 1 is the stop; the rest is clean-up that can be done again. So a crash anywhere is answered by
doing the rest once more: `resume` at the next start, or when a gateway connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from . import cgroups, leases, ownership, processes, reaping, receipts, scopes, suspects
from .bridges import Bridges, Drained, Ended
from .cookies import Owner
from .cooperation import Cooperation, Notice
from .errors import ClawstopError, StoreError
from .events import Stop
from .freezing import Freezer
from .ledger import Ledger
from .memory import UNTOUCHED, Memory, Rolled, Wanted
from .ownership import Proofs
from .plugins import Plugins
from .processes import Found, Ident, Match, Owned
from .records import Record
from .redaction import redact
from .settings import Settings
from .store import Store
from .targets import Target

log = logging.getLogger("clawstop.stops")

PARALLEL = 4  # stops that kill at the same time: more only makes each of them slower
ADVICE = "; restart the gateway to end it, the stop holds"
LOOK_SECONDS = 1.0  # a list of processes takes some milliseconds; the kill does not wait for it
GATEWAY_GRACE = 5.0  # seconds after SIGTERM; a stuck gateway would wait 315 for its runs
UNDRAINED, UNDRAINED_KEPT = "undrained", 100  # stops that no gateway has heard of, in the store
RETRY_SECONDS = 1.0  # how often a latch that the disk refused is tried again
# A transcript that somebody holds is tried again: 2026.5 does for a minute when a run is aborted.
HELD_SECONDS, HELD_TRIES = 10.0, 12


@dataclass(frozen=True)
class Request:
    """Who asked for what. It is stored, so that a crash can be made good; but for the suspects:
    who works in the folder later is somebody else."""

    id: str
    target: Target
    trigger: str
    who: str
    grace: float
    spare: frozenset[Ident] = field(default_factory=frozenset)
    suspects: bool = False  # end those too
    signal: str = "TERM"  # what processes are told to leave with, unless their lease says
    memory: Wanted = field(default_factory=Wanted)
    at: float | None = None  # when it was said, if that was earlier than now

    def dump(self) -> dict[str, Any]:
        return {
            "target": vars(self.target),
            "trigger": self.trigger,
            "who": self.who,
            "grace": self.grace,
            "spare": [[ident.pid, ident.start] for ident in self.spare],
            "signal": self.signal,
            "memory": vars(self.memory),
        }

    @classmethod
    def parse(cls, id: str, stored: dict[str, Any]) -> Request:
        spare = frozenset(Ident(pid, start) for pid, start in stored["spare"])
        target = Target(**stored["target"])
        told = stored.get("signal", "TERM")  # an older clawstop wrote neither
        memory = Wanted(**stored.get("memory", {}))
        about = stored["trigger"], stored["who"], stored["grace"]
        return cls(id, target, *about, spare, signal=told, memory=memory)


class Stops:
    def __init__(
        self,
        *,
        state: str,
        store: Store,
        plugins: Plugins,
        bridges: Bridges,
        ledger: Ledger,
        receipts: Path,
        settings: Callable[[], Settings],
        proofs: Callable[[], Proofs],
        freezer: Freezer,
        memory: Memory,
        cooperation: Cooperation,
        workspaces: Callable[[Target], list[Path]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._store = store
        self._plugins = plugins
        self._bridges = bridges
        self._ledger = ledger
        self._receipts = receipts
        self._settings = settings
        self._proofs = proofs
        self._freezer = freezer
        self._memory = memory
        self._cooperation = cooperation
        self._workspaces = workspaces
        self._clock = clock
        self._running: dict[str, tuple[asyncio.Task[dict[str, Any]], Target]] = {}
        self._slots = asyncio.Semaphore(PARALLEL)
        # Stops whose transcript somebody holds -> how often that was tried, and when it is again.
        self._held: dict[str, int] = {}
        self._due: float | None = None
        # Latches that could not be saved: they hold in memory and are tried again until they are.
        self.brakes: dict[str, Request] = {}

    @property
    def busy(self) -> bool:
        return bool(self._running or self.brakes)

    def is_due(self) -> bool:
        """Whether it is time to `roll_back_held`; said once."""
        due = self._due is not None and self._clock() >= self._due
        if due:
            self._due = None
        return due

    def is_under_way(self, id: str) -> bool:
        return id in self._running or id in self.brakes

    async def stop(self, request: Request) -> dict[str, Any]:
        """Carry out a stop and return its receipt. The same id twice is the same stop."""
        task, _ = self._running.get(request.id, (None, None))
        if task is None:
            # At once, before anything else can run: what the target covers must not change first.
            bumped, problems = self.latch(request)
            self._cooperation.tell(_notice(request, bumped))
            task = asyncio.create_task(self._run(request, bumped, problems))
            self._running[request.id] = task, request.target
            task.add_done_callback(lambda _: self._running.pop(request.id, None))
        return await asyncio.shield(task)  # a caller that goes away does not take the stop with it

    async def resume(self) -> None:
        """Finish every stop that a crash, or a gateway that did not answer, left unfinished.

        One under way may have given up the gateway that is there now: it is done once more then.
        """
        await self.settle()
        pending = []
        for id, stored, _ in self._store.unfinished_stops():
            try:
                request = Request.parse(id, stored)
                late = replace(request, memory=replace(request.memory, late=True))
                pending.append(self.stop(late))
            except (KeyError, TypeError, ValueError) as error:  # another version wrote it
                log.error("stop %s cannot be read, its latch holds: %r", id, error)
        for result in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(result, BaseException):
                log.error("a stop could not be finished: %r", result)

    async def roll_back_held(self) -> list[dict[str, Any]]:
        """The rollbacks that a transcript's holder has kept waiting, and nothing else of their
        stops. Gives the receipts of those that are made now; after a while one is left to the
        session's next stop."""
        made = []
        for id, tries in list(self._held.items()):
            stored, bumped = self._store.stored_stop(id)
            earlier = self._earlier(id)
            if self.is_under_way(id):
                continue
            del self._held[id]
            if earlier is None:
                continue
            request = Request.parse(id, stored)
            late = replace(request, memory=replace(request.memory, late=True))
            rolled = await self._roll_back(late, bumped, unverified=False)
            if rolled.held and tries < HELD_TRIES:
                self._hold(id, tries + 1)
                continue
            others = [one for one in earlier["left"] if not one.startswith(UNTOUCHED)]
            if not others:
                self._store.finish_stop(id)
            if rolled.held:
                continue
            left = others + rolled.problems
            about = {"attempt": earlier["attempt"] + 1, "at": round(self._clock(), 3)}
            about |= {"memory": rolled.rows, "notes": rolled.notes, "left": left}
            written = self._write({**earlier, **about, "converged": not left})
            await self._over(written)
            made.append(written)
        return made

    def _hold(self, id: str, tries: int = 1) -> None:
        self._held[id], self._due = tries, self._clock() + HELD_SECONDS

    async def _over(self, receipt: dict[str, Any]) -> None:
        if receipt["converged"]:
            self._cooperation.over(receipt["id"])
        for move in filter(lambda row: "did" in row, receipt["memory"]):
            await self._plugins.memory_moved(move)
        await self._plugins.stop_finished(receipt)

    async def drain_late(self) -> None:
        """A gateway is there: what waits in it of stops that came while none was, goes."""
        for id in self._store.noted(UNDRAINED):
            stored, bumped = self._store.stored_stop(id)
            try:
                late = await self._drain(Request.parse(id, stored), bumped, bumped.keys())
            except (KeyError, TypeError, ValueError) as error:  # another version wrote it
                log.error("stop %s cannot be read: %r", id, error)
            else:
                if late.problems:
                    log.error("stop %s: %s", id, "; ".join(late.problems))
                    continue
            self._store.unnote(UNDRAINED, id)

    async def settle(self) -> None:
        """Wait for the stops that are under way."""
        tasks = [task for task, _ in self._running.values()]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self, request: Request, bumped: dict[str, int], problems: list[str]
    ) -> dict[str, Any]:
        begun = time.perf_counter()
        steps: dict[str, float] = {}

        def lap(step: str) -> None:
            steps[step] = round((time.perf_counter() - begun) * 1000, 1)

        cut_off = await self._bridges.push(self.mirror(request.target.sessions))
        lap("latched")
        earlier = self._earlier(request.id)
        if earlier and earlier["converged"]:  # the crash came right after its receipt
            self._store.finish_stop(request.id)
            return earlier
        stop = Stop(
            id=request.id,
            trigger=request.trigger,
            who=request.who,
            target=request.target.name,
            scopes=request.target.scopes,
            bumped=bumped,
            first=self._store.first_generation,
            state=self._state,
            grace=request.grace,
            spare=request.spare | self._bridges.idents(),
            proofs=self._proofs,
            signal=request.signal,
        )
        await self._cooperation.write(_notice(request, bumped))
        # Beside the rest: what the host itself kills, when it ends a run, is listed too.
        seen = asyncio.create_task(asyncio.to_thread(self._find, stop.concerns))
        await self._plugins.stop_started(stop)
        ended = await self._bridges.end(request.target.sessions, request.target.scopes)
        problems += self._note_ended(request, ended)
        lap("ended")
        there = await self._looked(seen)
        leased = [one for one in there or () if not stop.owns(one.owner)]
        busy = {one.owner.session for one in leased} if there is not None else bumped.keys()
        drained = await self._drain(request, bumped, busy)
        if not list(self._bridges) and request.id not in self.brakes:
            with contextlib.suppress(StoreError):  # it stops all the same
                self._store.note(UNDRAINED, request.id, UNDRAINED_KEPT)
        lap("drained")
        escalated = await self._escalate(request, ended)
        async with self._slots:
            reaped, failures = await self._plugins.reap(stop)
            suspected, ended_too = await self._suspects(request, stop)
        reaped += ended_too
        problems += await self._clear_up(stop)
        lap("killed")
        mine = [one for one in there or () if stop.owns(one.owner)]
        by_host = reaping.ended_by_host(mine, reaped, time.perf_counter, begun)

        problems += ended.unanswered + drained.problems + failures
        alive = [problem for result in reaped for problem in result.problems()]
        unverified = bool(alive or failures or ended.alive or ended.unanswered)
        rolled = await self._roll_back(request, bumped, unverified)
        lap("rolled_back")
        advice = "" if self._escalation == "never" else ADVICE
        problems += [
            f"run {run['run']} of {run['session']} is still alive{advice}" for run in ended.alive
        ]
        problems += alive + rolled.problems
        said = self._store.stopped_at(request.id)
        receipt = {
            "id": request.id,
            "attempt": earlier["attempt"] + 1 if earlier else 1,
            "at": round(self._clock(), 3),
            "trigger": request.trigger,
            "who": request.who,
            "target": request.target.name,
            "scopes": request.target.scopes,
            "spared": request.target.spared,
            "sessions": {key: [new - 1, new] for key, new in bumped.items()},
            "cut_off": cut_off,
            "gateways": [
                {"name": b.name, "reduced": b.reduced(), "limits": b.limits()}
                for b in self._bridges
            ],
            "runs": ended.ended,
            "alive": ended.alive,
            "escalated": escalated,
            "tools_since": round(self._ledger.since, 3),
            **self._ledger.close(stop.covers),
            "drained": {key: rows for key, rows in vars(drained).items() if key != "problems"},
            "processes": [o.as_dict() for o in chain(by_host, *(r.outcomes for r in reaped))],
            "leased": [lease_row(one) for one in leased if not processes.gone(one.ident)],
            "suspects": suspected,
            "cooperated": self._cooperation.notices(stop.covers, said),
            "memory": rolled.rows,
            "notes": rolled.notes,
            "left": problems,
            "converged": not problems,
            "ms": steps,
        }
        written = self._write(receipt)
        # A gateway that comes back is asked for the rest.
        away = any(rung["ended"] for rung in escalated)
        again = ended.unanswered or drained.problems or failures or away or rolled.again
        if rolled.held:
            self._hold(request.id)
        if not again and request.id not in self.brakes:
            self._store.finish_stop(request.id)
        await self._over(written)
        return written

    def _note_ended(self, request: Request, ended: Ended) -> list[str]:
        """On disk, as only the gateway knows which runs were alive: a crash must not lose it."""
        runs = [*ended.ended, *ended.alive]
        try:
            self._store.ended_by(request.id, [(run["run"], run["session"]) for run in runs])
        except StoreError as error:
            return [str(error)]
        return []

    async def _roll_back(
        self, request: Request, bumped: dict[str, int], unverified: bool
    ) -> Rolled:
        """Not while the stop itself is not on disk: it is done once more then."""
        if request.id in self.brakes:
            return Rolled()
        wanted, target = request.memory, request.target
        try:
            unseen = not list(self._bridges)
            plans = self._memory.plan(request.id, wanted, target, bumped, unseen=unseen)
        except Exception as error:
            log.exception("what to roll back")
            return Rolled(problems=[f"memory was not touched: {error}"])
        if not plans and wanted.rule == "stop" and self._settings().rollback["stop"]:
            await self._bridges.forget_abort(target.name)  # of an idle chat the host says so
        try:
            return await self._memory.roll_back(target, plans, bumped, unverified)
        except StoreError as error:
            return Rolled(problems=[f"memory was not touched: {error}"])

    async def finished(self, session: str) -> None:
        """Wait until no stop that has latched this session is under way."""
        mine = [
            task
            for task, target in self._running.values()
            if any(scopes.covers(scope, session) for scope in target.scopes)
        ]
        if mine:
            await asyncio.wait(mine)

    async def _escalate(self, request: Request, ended: Ended) -> list[dict[str, Any]]:
        """The last rung: a gateway whose run cannot be ended is ended, if the person wants that.

        Its service manager starts it again, and the latch keeps the run from coming back.
        """
        if self._escalation != "gateway-restart":
            return []
        rungs = []
        for pid in sorted({run["gateway"] for run in ended.alive}):
            ident = self._bridges.ident(pid)
            dead = False
            if ident is not None and ident not in request.spare:  # the caller's own line
                dead = await asyncio.to_thread(reaping.end_one, ident, GATEWAY_GRACE)
            rungs.append({"gateway": pid, "how": "gateway-restart", "ended": dead})
            if dead:
                log.warning("gateway %s was ended: it could not end a run", pid)
                ended.ended += [run for run in ended.alive if run["gateway"] == pid]
                ended.alive = [run for run in ended.alive if run["gateway"] != pid]
        return rungs

    @property
    def _escalation(self) -> str:
        return self._settings().escalate

    async def _looked(self, seen: asyncio.Task[list[Owned]]) -> list[Owned] | None:
        """What was there before the host ended anything; nothing waits long for it."""
        try:
            return await asyncio.wait_for(seen, LOOK_SECONDS)
        except Exception as error:  # the reaper looks again, and says so loudly
            log.error("processes cannot be listed: %r", error)
            return None

    def _find(self, match: Match) -> list[Owned]:
        return ownership.find(match, self._proofs())

    async def _clear_up(self, stop: Stop) -> list[str]:
        """A shell that comes late finds no cage; whoever was frozen and outlives this stop goes on.
        What could not be done is told."""
        try:
            await asyncio.to_thread(cgroups.prune, self._proofs().folders, stop.owns)
            await self._freezer.thaw([*stop.scopes, *stop.bumped])
        except (OSError, ClawstopError) as error:
            return [str(error)]
        return []

    async def _suspects(
        self, request: Request, stop: Stop
    ) -> tuple[list[dict[str, Any]], list[reaping.Reaped]]:
        """Who else works in the workspace: listed, or ended if that is what was asked for."""
        where = self._workspaces(request.target)
        if not where:
            return [], []
        gateways = self._bridges.idents()

        def look() -> list[Found]:
            known = {one.ident.pid for one in self._find(lambda _: True)}
            return suspects.find(where, known, gateways, stop.spare)

        try:
            found = await asyncio.to_thread(look)
        except OSError as error:
            log.error("suspects cannot be looked for: %s", error)
            return [], []
        if not request.suspects or not found:
            return [_suspect(one) for one in found], []
        idents = [one.ident for one in found if one.ident]
        return [], [await self._end_these(idents, request.target.name, request.grace)]

    async def _end_these(self, idents: Iterable[Ident], name: str, grace: float) -> reaping.Reaped:
        """Processes that a person has named, with what is below them and nobody's."""
        owner = Owner(self._state, name, 0, "asked")
        asked = {ident: Record(owner, "asked") for ident in idents}
        gateways = self._bridges.idents()
        proofs = Proofs(records=asked, strangers=gateways)
        line = [ident for gateway in gateways for ident in processes.ancestors(gateway.pid)]
        spare = [*line, *processes.ancestors(os.getpid())]
        return await asyncio.to_thread(
            reaping.reap, owner.__eq__, proofs=proofs, spare=spare, grace=grace
        )

    async def end_suspects(
        self, id: str, session: str, named: Iterable[Ident], who: str
    ) -> dict[str, Any]:
        """End suspects that an earlier stop has named. Nothing is stopped: what runs by now is
        something else."""
        begun = time.perf_counter()
        reaped = await self._end_these(named, session, self._settings().grace_ms / 1000)
        took = round((time.perf_counter() - begun) * 1000, 1)
        killed = [outcome.as_dict() for outcome in reaped.outcomes]
        more = {"processes": killed, "left": reaped.problems(), "ms": {"killed": took}}
        return self.record(id, "/suspects", who, session, **more)

    def record(self, id: str, trigger: str, who: str, target: str, **more: Any) -> dict[str, Any]:
        """A receipt for something that a person did to what was stopped, and that stopped
        nothing."""
        nothing: dict[str, Any] = {"scopes": [], "spared": [], "sessions": {}, "runs": []}
        nothing |= {"tools": [], "drained": {}, "processes": [], "leased": [], "suspects": []}
        about = {"id": id, "at": round(self._clock(), 3), "trigger": trigger, "who": who}
        body = {**about, "target": target, **nothing, "memory": [], "left": [], "ms": {}, **more}
        return self._write({**body, "converged": not body["left"]})

    async def _drain(
        self, request: Request, bumped: dict[str, int], leased: Collection[str]
    ) -> Drained:
        """The host's background tasks in `leased` sessions stay: cancelling one ends its process.
        A wake of theirs is refused later, by its generation."""
        jobs = {id: about for id, _, about in self._store.dead_jobs(bumped)}
        target = request.target
        drained = await self._bridges.drain(
            sessions=target.sessions,
            scopes=target.scopes,
            jobs=list(jobs),
            execs=self._store.dead_execs(bumped.keys() - leased),
            before=self._store.stopped_at(request.id) * 1000,
        )
        off = [row["id"] for row in drained.jobs if row["outcome"] == "off"]
        gone = [row for row in drained.jobs if row["outcome"] == "gone"]
        if unasked := jobs.keys() - {row["id"] for row in drained.jobs}:
            drained.problems.append(f"scheduled jobs are still on: {', '.join(sorted(unasked))}")
        try:
            if off:
                self._store.jobs_off(request.id, off)
            drained.jobs = self._store.jobs_of(request.id) + gone
        except StoreError as error:  # they are off; only `restore` will not know them
            drained.problems.append(str(error))
        return drained

    def latch(self, request: Request) -> tuple[dict[str, int], list[str]]:
        """Step 1, on disk; where the disk refuses, in memory until it does not."""
        target = request.target
        try:
            return self._begin(request), []
        except StoreError as error:
            if target.name in target.sessions and target.name not in target.scopes:
                # Begun anew: there is no latch to hold, and what comes next must not be hit later.
                return {}, [f"{error}: what ran before goes on; free some disk space"]
            log.error("%s; holding the latch in memory", error)
            if not self.brakes:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._save_brakes)
            self.brakes[request.id] = request
            bumped = {key: self._store.generation(key) + 1 for key in target.sessions}
            return bumped, [
                f"{error}: the stop holds only while the engine runs; free some disk space"
            ]

    def _begin(self, request: Request) -> dict[str, int]:
        target = request.target
        return self._store.begin_stop(
            request.id, request.dump(), target.scopes, target.sessions, request.at
        )

    def _save_brakes(self) -> None:
        for request in list(self.brakes.values()):
            try:
                self._begin(request)
            except StoreError:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._save_brakes)
                return
            del self.brakes[request.id]
            log.warning("stop %s is on disk now", request.id)
        self._finishing = asyncio.create_task(self.resume())  # what was promised is done in full

    def _earlier(self, id: str) -> dict[str, Any] | None:
        try:
            return receipts.find(self._receipts, id)
        except OSError as error:
            log.error("receipts cannot be read: %s", error)
            return None

    def _write(self, receipt: dict[str, Any]) -> dict[str, Any]:
        receipt |= {key: redact(receipt[key]) for key in ("trigger", "who", "left")}
        rows = [*receipt["processes"], *chain(*receipt["drained"].values())]
        for row in receipt.get("cooperated") or ():
            row |= {key: redact(row[key]) for key in ("checkpoint", "reason", "error", "task")}
        for row in rows:  # ids and session keys say what was stopped, and stay as they are
            row |= {key: redact(row[key]) for key in ("command", "about", "text") if key in row}
        try:
            return receipts.append(self._receipts, receipt)
        except OSError as error:
            log.error("receipt %s was not written: %s", receipt["id"], error)
            left = [*receipt["left"], f"the receipt was not written: {error}"]
            return {**receipt, "left": left, "converged": False}

    def mirror(self, only: list[str] | None = None) -> dict[str, Any]:
        """The store's mirror with the brakes on top."""
        mirror = self._store.mirror(only)
        for request in self.brakes.values():
            # Newer than any release: a brake holds until it is on disk.
            mirror["latches"].update(dict.fromkeys(request.target.scopes, 2**53 - 1))
        return mirror


def _notice(request: Request, bumped: dict[str, int]) -> Notice:
    inside = request.target.scopes
    hard = request.grace == 0 and scopes.EVERYTHING in inside
    return Notice(request.id, request.trigger, request.signal, bumped, inside, hard)


def lease_row(one: Owned) -> dict[str, Any]:
    lease = leases.parse(one.owner.lease)
    about = {"pid": one.ident.pid, "session": one.owner.session, "lease": lease.kind}
    return {**about, "seconds": round(lease.left), "command": redact(one.command)}


def _suspect(found: Found) -> dict[str, Any]:
    assert found.ident is not None
    pid, start = found.ident.pid, found.ident.start
    return {"pid": pid, "start": start, "command": redact(found.command)}
