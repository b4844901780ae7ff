"""After a crash: what was cut off goes on, once; what was stopped never does.

A gateway comes up, and our journal names the runs that were alive when the one before it went.
Then, in this order:

    sweep      processes of those runs die, unless a lease keeps them; until then no tool runs
    judge      what is left to go on with, by evidence; the rest is left alone, and says why
    wait       the host goes on by itself where it can: that run is let through, once
    resume     what the host does not go on with gets a message of ours
    ask        what is old, or was told to ask first, waits for its person's word

A stop in between takes a session out of all this, in the transaction of its latch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import answers, evidence, leases, ownership, processes, reaping, scopes, wills
from .bridges import Bridge, Bridges
from .cookies import Owner
from .crashes import KEPT, SLACK, SWEPT, Crashes, never_began, with_prompt
from .cuts import BEFORE, OVER, WAITING, Cut, Stage
from .errors import NotPermitted, StoreError, UsageError
from .ownership import Proofs
from .paths import Paths
from .processes import Owned
from .prompts import Prompt
from .recounts import Recounts, Row, message, row
from .settings import Settings
from .stops import Stops
from .store import Store
from .verdicts import Evidence, State, Tail, Verdict, has_worked, is_trivial, judge
from .words import say

log = logging.getLogger("clawstop.recovery")

Work = Callable[..., Coroutine[Any, Any, None]]

TIMES = 3  # a task that was cut off more often, one after the other, is suspended
TRIES = 3  # messages of ours that begin no run, then the same
BACK_OFF = (0.0, 5.0, 20.0)  # seconds before each of them
HOST_SECONDS = 12.0  # a host that goes on by itself says so within 1, and does so after 5
PATIENCE = 90.0  # it takes one session after the other: one that hangs holds up the rest
REPLAY_SECONDS = 15.0  # a host that comes back tells again what it kept within this
START_SECONDS = 30.0  # a message of ours becomes a run within this
LOOK = 1.0
JUDGE_SECONDS = 15.0  # who comes right after a start waits so long for the first verdicts
SWEEP_SECONDS = 15.0  # what tools wait for at most: longer than the reaper, who is done by 10
UNREAD_SECONDS = 600.0  # of an idle conversation nobody reads any more what was said before that
AHEAD = 60.0  # seconds that a clock may have been put back before its times mean nothing
GOING_ON = ("recovery", "resume")  # causes of runs: the host's own, and a message of ours
RUN = "clawstop-resume-"  # how the runs that our messages begin are called; the bridge knows it


@dataclass(frozen=True)
class Speaker:
    """Who says something about a task, and where."""

    name: str = ""
    group: bool = False
    operator: bool = False  # at a page, or at the machine
    listed: bool = False  # by name, or the chat lets nobody else in

    def owns(self, cut: Cut) -> bool:
        """A task is its own sender's; one that was given at a page also whose direct chat it is."""
        if self.operator or cut.sender in ("", self.name):
            return True
        return self.listed and not self.group and cut.route.get("channel") == "webchat"


class Recovery:
    def __init__(
        self,
        paths: Paths,
        *,
        store: Store,
        bridges: Bridges,
        stops: Stops,
        settings: Callable[[], Settings],
        proofs: Callable[[], Proofs],
        workspaces: Callable[[str], list[Path]],  # of an agent
        language: Callable[[str], str | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._paths = paths
        self._store = store
        self._cuts = store.cuts
        self.crashes = Crashes(store, clock)
        self._recounts = Recounts(paths, store, stops, workspaces)
        self._bridges = bridges
        self._settings = settings
        self._proofs = proofs
        self._workspaces = workspaces
        self._language = language
        self._clock = clock
        self._swept, self._judged = asyncio.Event(), asyncio.Event()
        self._swept.set()
        self._judged.set()
        self._going: Bridge | None = None  # on which it is seen to that what was found goes on
        self._looked = False  # whether that gateway has told again all that it kept
        self._told: list[str] = []  # the questions that gateways know of
        self._tasks: set[asyncio.Task[None]] = set()  # a task that nobody holds may vanish

    # -- a gateway comes up

    def recover(self, bridge: Bridge, born: float) -> Coroutine[Any, Any, None]:
        """Everything that is to do. Nothing waits for it but tools, and those for the sweep. From
        this call on: who asks before the work has begun waits too."""
        swept, judged = asyncio.Event(), asyncio.Event()  # a gateway that comes later has its own
        self._swept, self._judged, self._looked = swept, judged, False
        return self._recover(bridge, born, swept, judged)

    async def _recover(
        self, bridge: Bridge, born: float, swept: asyncio.Event, judged: asyncio.Event
    ) -> None:
        try:
            reaped, kept = reaping.Reaped(), list[Owned]()
            if bridge.gateway not in self._store.noted(SWEPT):  # or an engine died before it was
                reaped, kept = await self._sweep(bridge)
                with _told_if_refused():
                    self._store.note(SWEPT, bridge.gateway, KEPT)
            swept.set()
            rows = await self._judge_all()
            judged.set()
            if rows or kept or reaped.outcomes or reaped.problems():
                with _told_if_refused():
                    self._recounts.crash(rows, reaped, kept)
            await self._go_on(bridge, born)
        except Exception:  # the gateway goes on without
            log.exception("what a crash cut off is left as it is")
        finally:
            swept.set()
            judged.set()

    async def swept(self) -> bool:
        """Wait until the processes of the gateway before are dead; False: it takes too long."""
        if self._swept.is_set():  # every tool call asks
            return True
        return await _within(SWEEP_SECONDS, self._swept)

    async def judged(self) -> bool:
        """Wait until it is known what may go on; False: it takes too long."""
        return await _within(JUDGE_SECONDS, self._judged)

    async def _sweep(self, bridge: Bridge) -> tuple[reaping.Reaped, list[Owned]]:
        """End what a dead gateway's runs have left, and name what a lease keeps: until that is done
        no tool of the new one may run, so nobody else's carry a cookie. Of generation 0 is what
        people started."""
        state = self._paths.state_id

        def mine(owner: Owner) -> bool:
            return owner.state == state and owner.generation > 0

        def orphan(owner: Owner) -> bool:
            return mine(owner) and leases.parse(owner.lease).kind == "run"

        ident = processes.ident_of(bridge.pid)
        spare = [*self._bridges.idents(), *([ident] if ident else [])]
        grace = self._settings().grace_ms / 1000
        try:
            found = await asyncio.to_thread(ownership.find, mine, self._proofs())
            kept = [one for one in found if not orphan(one.owner)]
            if len(kept) == len(found):
                return reaping.Reaped(), kept  # mostly there is nobody, and tools wait for this
            reaped = await asyncio.to_thread(
                reaping.reap, orphan, proofs=self._proofs, spare=spare, grace=grace
            )
            return reaped, kept
        except OSError as error:
            return reaping.Reaped(settled=False, error=str(error)), []

    async def _judge_all(self) -> list[Row]:
        """What was not judged yet. A disk that refuses one keeps it for the next look."""
        rows: list[Row] = []
        for cut in self._cuts.every():
            if cut.stage is Stage.CUT:
                with _told_if_refused():
                    rows.append(await self._judge(cut))
        return rows

    async def _judge(self, cut: Cut) -> Row:
        try:
            verdict = judge(await self._evidence(cut))
            stage, why = self._decide(cut, verdict)
        except Exception as error:  # of one; the others are judged all the same
            log.exception("%s cannot be judged", cut.session)
            verdict = Verdict(State.UNKNOWN, f"it cannot be judged: {error!r}"[:200])
            stage, why = Stage.ASKED, verdict.why
        if stage is Stage.FOUND and self.crashes.restless:
            stage, why = Stage.SUSPENDED, "its gateway crashes again and again"
            log.error("%s is not resumed: %s", cut.session, why)
        if self._cuts.get(cut.session) == cut:  # no stop came while we read
            self._move(cut, stage, why)
        return row(cut.session, verdict, stage, why)

    async def _evidence(self, cut: Cut) -> Evidence:
        agent = scopes.agent_of(cut.session)
        found = await asyncio.to_thread(evidence.of, self._paths, cut.session, agent)
        marks = await asyncio.to_thread(evidence.marked, agent, self._workspaces(agent))
        other = marks.get(cut.session, "")
        return replace(found, run=cut.run, asked=cut.since, text=cut.text, resumed_by=other)

    async def _tail(self, cut: Cut) -> Tail:
        """What its conversation ends with, as far as that can be read."""
        try:
            return (await self._evidence(cut)).tail or Tail()
        except Exception:
            log.exception("%s cannot be read", cut.session)
            return Tail()

    def _decide(self, cut: Cut, verdict: Verdict) -> tuple[Stage, str]:
        """What shall become of it."""
        settings, own = self._settings(), _of_its_own(cut)
        if own:
            return Stage.LEFT, own
        if not verdict.cut_off:
            return Stage.LEFT, verdict.why
        if cut.allowed:
            return Stage.FOUND, "asked for"
        if settings.recovery == "off":
            return Stage.LEFT, "recovery is off"
        if cut.times > TIMES:
            return Stage.SUSPENDED, f"it was cut off {cut.times} times in a row"
        if cut.tries >= TRIES:
            return Stage.SUSPENDED, f"it was begun {cut.tries} times, and nothing ran"
        age = self._clock() - cut.at
        if settings.recovery == "ask":
            return Stage.ASKED, "the setting says so"
        if not -AHEAD < age < settings.recovery_window_minutes * 60:
            return Stage.ASKED, "it was cut off too long ago, or the clock has jumped"
        if self._will(cut).get("can_resume") is False:
            return Stage.ASKED, "its will says so"
        return Stage.FOUND, verdict.why

    def _will(self, cut: Cut) -> dict[str, Any]:
        """What was left for this task; one of an earlier task is about something else."""
        names = (cut.session, self._store.host_ids().get(cut.session, cut.session))
        found = [will for name in names if (will := wills.read(self._paths.wills, name))]
        will = max(found, key=wills.written, default={})
        return will if will and wills.written(will) >= cut.asked - SLACK else {}

    # -- going on

    async def _go_on(self, bridge: Bridge, born: float) -> None:
        """Until everything that was found goes on, or waits for somebody."""
        if self._going is bridge or bridge not in list(self._bridges):  # a slow sweep outlives it
            return
        self._going = bridge
        age = min(max(0.0, self._clock() - born), PATIENCE)
        begun = time.monotonic() - age
        look = asyncio.create_task(_logged(self._look, bridge, REPLAY_SECONDS - age))
        try:
            while self._going is bridge and bridge in list(self._bridges):
                age = time.monotonic() - begun
                await self._judge_all()
                for cut in filter(never_began, self._cuts.every()):  # the disk refused to say so
                    with _told_if_refused():
                        self._failed(replace(cut, sent=""), "it did not begin")
                waiting = [cut for cut in self._cuts.every() if cut.stage in BEFORE]
                if look.done() and not waiting:
                    return
                waiting = [cut for cut in waiting if cut.stage is Stage.FOUND]
                sessions = [cut.session for cut in waiting]
                pending = await bridge.pending(sessions) if waiting else set()
                due = [
                    cut
                    for cut in waiting
                    if age > (PATIENCE if cut.session in pending else HOST_SECONDS)
                    and not self._at_work(cut.session)
                ]
                await asyncio.gather(*(_logged(self._resume, bridge, cut) for cut in due))
                await asyncio.sleep(LOOK)
        finally:
            look.cancel()
            if self._going is bridge:
                self._going = None

    def _at_work(self, session: str) -> bool:
        return any(key == session for _, key, _ in self._store.live_runs())

    async def _look(self, bridge: Bridge, seconds: float) -> None:
        """Once the host has told again what it kept: the rest is ours."""
        await asyncio.sleep(max(0.0, seconds))
        while True:
            taken = await self._take_unread(bridge)
            self._looked = True
            if self._ask(bridge) and taken:
                return
            await asyncio.sleep(LOOK)  # a disk that was full

    def _ask(self, bridge: Bridge) -> bool:
        """Put every question that was not yet put on this gateway: its channels are up by now.
        False when the disk refused one."""
        taken = True
        for cut in self._cuts.every():
            if cut.stage in WAITING and cut.told != bridge.gateway:
                with _told_if_refused() as refused:
                    self._cuts.put(replace(cut, told=bridge.gateway))
                    self._tell(cut, self._question(cut))
                taken = taken and not refused
        return taken

    async def _take_unread(self, bridge: Bridge) -> bool:
        """Messages that the gateway before this one took in, that no run has read, and that the
        host has not told again. Of two gateways nobody knows whose they are. False when the disk
        refused one."""
        if len(list(self._bridges)) != 1:
            return True
        waiting: dict[str, list[Prompt]] = {}
        for prompt in self._store.prompts.unread(bridge.gateway):
            waiting.setdefault(prompt.session, []).append(prompt)
        found, taken = list[Row](), True
        for session, prompts in waiting.items():
            with _told_if_refused() as refused:
                row = await self._take(session, prompts)
                found += [row] if row else []
            taken = taken and not refused
        if found:
            self._recounts.crash(found)
        return taken

    async def _take(self, session: str, prompts: list[Prompt]) -> Row | None:
        """Several of one person go on together, behind what was cut off there; what others wrote
        would be answered to somebody else."""
        cut, last = self._cuts.get(session), prompts[-1]
        known = cut is not None and cut.stage not in OVER and last.id in cut.messages
        if known:  # a crash came before they were crossed out
            self._store.prompts.read(session, [prompt.id for prompt in prompts])
            return None
        whose = cut if cut and cut.stage is Stage.FOUND else last
        self._read_by_nobody([prompt for prompt in prompts if not _together(prompt, whose)])
        prompts = [prompt for prompt in prompts if _together(prompt, whose)]
        if not prompts:
            return None
        text = "\n\n".join(prompt.text for prompt in prompts)
        ids = tuple(prompt.id for prompt in prompts)
        gone = any(prompt.route.get("media") for prompt in prompts)  # pictures are not in the text
        if gone or self._at_work(session) or (cut and cut.stage not in (Stage.FOUND, *OVER)):
            self._read_by_nobody(prompts)
            return None
        if cut and cut.stage is Stage.FOUND:
            both = f"{cut.text}\n\n{text}".strip()
            self._cuts.put(replace(cut, text=both, messages=(*cut.messages, *ids)))
            self._store.prompts.read(session, ids)
            return None
        came, generation = last.came, self._store.generation(session)
        new = with_prompt(Cut(session, generation, "", "message", came, came, came), last)
        new = replace(new, text=text, messages=ids, asked=prompts[0].came)
        self._cuts.put(new)  # first: a crash here finds it twice, and not never
        row = await self._judge(new)
        if row["did"] == Stage.LEFT and not is_trivial(text):  # nobody goes on with it
            self._read_by_nobody(prompts)
        self._store.prompts.read(session, ids)
        return row

    def _read_by_nobody(self, prompts: Iterable[Prompt]) -> None:
        for prompt in prompts:
            self._send_again(prompt.session, prompt.text, prompt.route)
            self._store.prompts.read(prompt.session, [prompt.id])

    def _send_again(self, session: str, text: str, route: Mapping[str, Any]) -> None:
        """Who wrote this has to."""
        lang = self._language(text)
        words = text[: answers.SHORT] or say("no_words", lang)
        for bridge in self._bridges:
            bridge.tell(session, [say("unread", lang, text=words)], route)

    async def _resume(self, bridge: Bridge, cut: Cut) -> None:
        """Send our message. On disk before: a crash now does not send it twice."""
        await asyncio.sleep(BACK_OFF[min(cut.tries, len(BACK_OFF) - 1)])
        same = self._cuts.get(cut.session) == cut and not self._at_work(cut.session)
        if not same or self.crashes.refused(cut.session, cut.generation):
            return  # something happened while we waited
        tail = await self._tail(cut)
        text = message(cut, tail.open, self._will(cut))
        if self._cuts.get(cut.session) != cut:  # a stop came while we read
            return
        if cut.route.get("media") and not has_worked(tail, cut.since):  # they are in no text
            self._move(cut, Stage.DONE, "its pictures are gone")
            self._send_again(cut.session, cut.text, cut.route)
            return
        run = cut.sent or f"{RUN}{secrets.token_hex(8)}"
        going = self._cuts.put(replace(cut, stage=Stage.RESUMED, sent=run, tries=cut.tries + 1))
        try:
            await bridge.resume(cut.session, run, text, cut.route)
            if await self._begun(run, cut.session):
                log.info("%s goes on", cut.session)
                self._recounts.became(going, "resumed")
        except Exception as error:  # of this one; the others go on
            log.warning("%s does not go on: %r", cut.session, error)
            if self._cuts.get(cut.session) != going:
                return
            self._failed(replace(going, sent=""), f"{error}"[:200])

    async def _begun(self, run: str, session: str) -> bool:
        """Wait until it is a run; False when that was stopped before it began."""
        async with asyncio.timeout(START_SECONDS):
            while (cut := self._cuts.get(session)) and never_began(cut):
                await asyncio.sleep(0.05)
        return cut is not None and cut.run == run

    async def report(self) -> list[Row]:
        """Every session, and what became of what was cut off."""
        await self.judged()
        return await self._recounts.every()

    # -- runs and messages on their way

    def may_run(self, session: str, run: str, cause: str) -> str | None:
        """Why a run that goes on with something may not; None: it may. It is then the one."""
        cut = self._cuts.get(session)
        if cause == "resume":
            # FOUND: it was sent, and an engine or a connection was lost before it had become a run.
            if cut is None or cut.stage not in (Stage.RESUMED, Stage.FOUND) or cut.sent != run:
                return f"{session} went on already, or was stopped"
        elif cause != "recovery" or cut is None or cut.stage is Stage.LEFT:
            return None
        elif cut.stage is Stage.CUT:
            return f"what was cut off in {session} is not judged yet"
        elif cut.stage in WAITING:
            return f"{session} waits for its person's word"
        elif cut.stage is Stage.DONE or (cut.stage is Stage.RESUMED and cut.run != run):
            return f"{session} went on already"
        if cut.stage is Stage.FOUND:
            self._recounts.became(cut, "resumed")
        sent = run if cause == "resume" else ""
        self._cuts.put(replace(cut, stage=Stage.RESUMED, run=run, sent=sent))
        return None

    def whose(self, session: str, run: str) -> dict[str, Any]:
        """Whose task a run goes on with, for its bridge."""
        cut = self._cuts.get(session)
        if cut is None or cut.run != run or cut.stage is not Stage.RESUMED:
            return {}
        return {"sender": cut.sender, "page": cut.route.get("channel") == "webchat"}

    def ended(self, session: str, run: str, finished: bool) -> None:
        """A run is over; one that failed has not gone on with anything."""
        cut = self._cuts.get(session)
        if cut is None:
            return
        if cut.run != run and cut.stage in OVER:
            if finished and self._store.run(session, run)[0] == "message":  # now it is history
                self._cuts.forget(session)
        elif cut.run == run and cut.stage is Stage.RESUMED and finished:
            self._cuts.put(replace(cut, stage=Stage.DONE))
        elif cut.run == run and cut.stage is Stage.RESUMED:
            self._failed(replace(cut, sent="", tries=cut.tries + (not cut.sent)), "it failed")
            self._see_to_it()

    def _failed(self, cut: Cut, why: str) -> None:
        """It is tried again, but not for ever."""
        tired = cut.tries >= TRIES
        self._move(cut, Stage.SUSPENDED if tired else Stage.FOUND, why)
        if tired:
            self._recounts.became(cut, "suspended", [f"{cut.session} could not be resumed: {why}"])

    def said(
        self, session: str, id: str, who: Speaker, *, fresh: bool, unread: bool = False
    ) -> bool:
        """A person wrote something: what waits is over, if it is theirs. True for a message that
        went on already, or waits to, and is only told again. `fresh`: never told before;
        `unread`: told before, and no run has read it."""
        cut = self._cuts.get(session)
        if cut is None or cut.stage is Stage.LEFT:
            return False
        if id in cut.messages:
            if cut.stage not in BEFORE:
                return not (fresh or unread)
        elif not fresh or not who.owns(cut) or _goes_on(cut):
            return False
        elif cut.stage in BEFORE or never_began(cut):
            self._start(self._tell_dropped, cut)
        if cut.stage is not Stage.DONE:
            self._move(cut, Stage.DONE, "its person has said something since")
        return False

    async def _tell_dropped(self, cut: Cut) -> None:
        """A message that no run had begun with: the host drops it for the one that came now."""
        tail = await self._tail(cut)
        if cut.text and not is_trivial(cut.text) and not has_worked(tail, cut.since):
            self._send_again(cut.session, cut.text, cut.route)

    def knows(self, session: str, id: str) -> bool:
        """Whether this message waits to go on."""
        cut = self._cuts.get(session)
        return cut is not None and cut.stage in BEFORE and id in cut.messages

    # -- a person's word

    @property
    def questions(self) -> list[str]:
        """Sessions that wait for one."""
        return [cut.session for cut in self._cuts.every() if cut.stage in WAITING]

    def mild(self) -> list[str]:
        """Those of them that a yes to everything is for: not what was cut off again and again, nor
        what asked to be asked about."""
        asked = [cut for cut in self._cuts.every() if cut.stage is Stage.ASKED]
        return [cut.session for cut in asked if self._will(cut).get("can_resume", True)]

    async def answer(self, session: str, yes: bool, who: Speaker) -> None:
        """Go on with it, or leave it; UsageError when there is nothing to say that about."""
        cut = self._cuts.get(session) or (await self._shown(session) if who.operator else None)
        if cut is None or cut.stage in OVER:
            raise UsageError(f"nothing was cut off in {session}")
        if not who.owns(cut):
            raise NotPermitted(f"the task in {session} is somebody else's")
        if not yes:
            over = self._move(cut, Stage.DONE, f"{who.name or 'its person'} said no")
            self._recounts.became(over, "left")
        elif cut.stage is not Stage.RESUMED:
            self._move(replace(cut, times=1, tries=0, allowed=True), Stage.FOUND, "asked for")
            self._see_to_it()

    async def _shown(self, session: str) -> Cut | None:
        """What only the host's own notes show to be cut off: our journal does not know it."""
        generation, now = self._store.generation(session), self._clock()
        if self._at_work(session) or self.crashes.refused(session, generation):
            return None
        cut = Cut(session, generation, "", "unknown", now, now, now)
        return cut if judge(await self._evidence(cut)).cut_off else None

    def _see_to_it(self) -> None:
        """Something goes on again: on the gateway that is there, or on the next."""
        for bridge in self._bridges:
            self._start(self._go_on, bridge, 0.0)
            break

    def _start(self, work: Work, *given: Any) -> None:
        task = asyncio.create_task(_logged(work, *given))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self, sessions: Iterable[str]) -> None:
        """Wait until these go on, or do not; no longer than that takes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                while any((cut := self._cuts.get(s)) and self._is_due(cut) for s in sessions):
                    await asyncio.sleep(0.05)

    def _is_due(self, cut: Cut) -> bool:
        return cut.stage is Stage.FOUND or never_began(cut)

    def _move(self, cut: Cut, stage: Stage, why: str) -> Cut:
        """The one place where a stage changes because somebody decided so."""
        moved = self._cuts.put(replace(cut, stage=stage, why=why))
        if stage in WAITING or cut.stage in WAITING:
            self._push()
        if stage in WAITING and self._looked:  # else it is asked once the channels are up
            for bridge in self._bridges:
                self._ask(bridge)
        return moved

    def _question(self, cut: Cut) -> str:
        lang = self._language(cut.text)
        minutes = max(0, round((self._clock() - cut.at) / 60))
        will = wills.quoted(self._will(cut))
        more = say("will_says", lang, will=will) if will else ""
        key = "ask_resume" if cut.stage is Stage.ASKED else "ask_suspended"
        text = " ".join(cut.text.split())[: answers.SHORT]
        return say(key, lang, minutes=minutes, text=text, will=more, times=cut.times)

    def _tell(self, cut: Cut, line: str) -> None:
        for bridge in self._bridges:
            bridge.tell(cut.session, [line], cut.route)

    def tick(self) -> None:
        """A stop ends questions too, and gateways have to know."""
        if self._told != self.questions:
            self._push()
        if self._looked:
            self._store.prompts.prune(self._clock() - UNREAD_SECONDS)

    def _push(self) -> None:
        self._told = self.questions
        for bridge in self._bridges:
            bridge.peer.notify("questions", {"sessions": self._told})


async def _within(seconds: float, event: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


@contextlib.contextmanager
def _told_if_refused() -> Iterator[list[Exception]]:
    """A disk that cannot be written holds up nobody else; what it has not taken is done again."""
    refused: list[Exception] = []
    try:
        yield refused
    except (StoreError, OSError) as error:
        refused.append(error)
        log.error("what a crash left is not all on record: %s", error)


def _together(prompt: Prompt, other: Prompt | Cut) -> bool:
    """Whether both are of one person, in one place."""
    places = (prompt.route.get("to"), other.route.get("to"))
    return prompt.sender == other.sender and places[0] == places[1]


async def _logged(work: Work, *given: Any) -> None:
    try:
        await work(*given)
    except Exception:
        log.exception("something that was cut off is left as it is")


def _goes_on(cut: Cut) -> bool:
    return cut.stage is Stage.RESUMED and not never_began(cut)


def _of_its_own(cut: Cut) -> str:
    """Why something that was cut off is not ours to go on with, by what kind it is."""
    rest = cut.session.split(":")[2:] or [cut.session]
    if "subagent" in rest:
        return "its parent decides"
    if "cron" in rest or cut.cause == "cron":
        return "it runs again when it is due"
    if "acp" in rest:
        return "its own client goes on with it"
    if cut.cause in ("heartbeat", "announce"):
        return "no person asked for it, and the host tells it again"
    return ""
