"""Crashes: when a gateway comes up, what the one before it left on record is taken down as cut off,
before it is forgotten. What was stopped is taken down too, as over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from .cuts import OVER, Cut, Stage
from .prompts import Prompt
from .store import Store

RESTLESS = (3, 60.0)  # crashes within seconds: then nothing is resumed, as that may be why
SLACK = 5.0  # seconds that a run without a message is older than we knew of it, as in store.tasks
GATEWAYS, SWEPT, STARTS = "gateways", "swept", "starts"  # lists in the store,
KEPT = 20  # of so many


class Crashes:
    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._cuts = store.cuts
        self._clock = clock

    def arrived(self, gateway: str, alive: Iterable[tuple[str, str]]) -> bool:
        """A gateway connects, and of all runs only these live on. True when it is another process
        than any before it: then what does not live was cut off, and is taken down before it is
        forgotten."""
        living, known = set(alive), self._store.noted(GATEWAYS)
        first = not known and not self._store.live_runs()  # there is nothing to be left of
        fresh = gateway not in known and bool(known or not living)  # an update finds it at work
        # In this order: an engine that dies anywhere in it does the rest again, to the same end.
        if fresh and not first:
            if self._take_down(living):
                self._store.note(STARTS, self._clock(), RESTLESS[0])
            self._store.note(GATEWAYS, gateway, KEPT)
        else:
            self._catch_up(living)
            self.beside(gateway)
        self._store.end_runs_but(living)
        return fresh

    def beside(self, gateway: str) -> None:
        """One that came to others, or was there before us: nothing of it is anybody's orphan."""
        if gateway not in self._store.noted(GATEWAYS):
            self._store.note(GATEWAYS, gateway, KEPT)
            self._store.note(SWEPT, gateway, KEPT)

    def _take_down(self, living: set[tuple[str, str]]) -> bool:
        """Whether anything was cut off."""
        gone = [row for row in self._store.live_runs() if row[:2] not in living]
        for run, session, generation in gone:
            if cut := self._cut_off(run, session, generation):
                self._cuts.put(cut)
        lost = [cut for cut in self._cuts.every() if cut.stage is Stage.RESUMED]
        lost = [cut for cut in lost if (cut.run, cut.session) not in living]
        for cut in lost:
            self._cuts.put(replace(cut, stage=Stage.CUT, sent=""))
        for cut in self._cuts.every():
            if cut.stage is Stage.FOUND:  # it has become older
                self._cuts.put(replace(cut, stage=Stage.CUT))
        return bool(gone or lost)

    def _cut_off(self, run: str, session: str, generation: int) -> Cut | None:
        """None where what is known of the session already is more."""
        cause, started = self._store.run(session, run)
        before = self._cuts.get(session)
        at = max(started, self._store.last_alive)
        cut = Cut(session, generation, run, cause, started - SLACK, started, at)
        if self.refused(session, generation):  # nobody goes on with it, released or not
            known = before is not None and before.stage not in OVER
            return None if known else replace(cut, stage=Stage.DONE, why="it was stopped")
        if prompt := self._store.prompts.of_run(session, run):
            if before and before.stage not in OVER and before.sender not in ("", prompt.sender):
                self._store.prompts.answer(
                    session, prompt.id, None
                )  # they are told to send it again
                return None  # and somebody else's task still waits
            return with_prompt(cut, prompt)
        if before and before.run == run and before.stage is Stage.RESUMED:
            again = replace(before, since=started, at=at, stage=Stage.CUT, times=before.times + 1)
            return replace(again, sent="", tries=0, allowed=False)
        if before and before.stage not in OVER:
            return None  # a run of nobody's does not take the place of what a person asked
        return cut

    def _catch_up(self, living: set[tuple[str, str]]) -> None:
        """The gateway was there all the time, and we were not."""
        for cut in self._cuts.every():
            if never_began(cut):  # asked for again under the same name, it is begun once
                self._cuts.put(replace(cut, stage=Stage.FOUND))
            elif cut.stage is Stage.RESUMED and (cut.run, cut.session) not in living:
                self._cuts.put(replace(cut, stage=Stage.DONE, why="it ended meanwhile"))

    def refused(self, session: str, generation: int) -> bool:
        standing = self._store.standing(session)
        return standing.latched_since is not None or generation < standing.generation

    @property
    def restless(self) -> bool:
        """Whether the gateway crashes again and again, now."""
        count, seconds = RESTLESS
        starts = self._store.noted(STARTS)
        return len(starts) == count and abs(self._clock() - starts[0]) < seconds


def never_began(cut: Cut) -> bool:
    """Whether our message, which is to go on with it, has become no run."""
    return cut.stage is Stage.RESUMED and bool(cut.sent) and cut.run != cut.sent


def with_prompt(cut: Cut, prompt: Prompt) -> Cut:
    told = replace(cut, text=prompt.text, messages=(prompt.id,), sender=prompt.sender)
    return replace(told, asked=prompt.came, route=prompt.route)
