"""One stop from the first word to the receipt, in the order that the design gives:

    latch and bump -> end the runs -> kill the processes -> receipt

Step 1 is the stop; the rest is clean-up that can be done again. So a crash anywhere is answered by
doing the rest once more: `resume` at the next start, or when a gateway connects again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import receipts
from .bridges import Bridges
from .errors import StoreError
from .events import Stop
from .ledger import Ledger
from .plugins import Plugins
from .processes import Ident
from .store import Store
from .targets import Target

log = logging.getLogger("clawstop.stops")

PARALLEL = 4  # stops that kill at the same time: more only makes each of them slower
RETRY_SECONDS = 1.0  # how often a latch that the disk refused is tried again


@dataclass(frozen=True)
class Request:
    """Who asked for what. All of it is stored, so that a crash can be made good."""

    id: str
    target: Target
    trigger: str
    who: str
    grace: float
    spare: frozenset[Ident] = field(default_factory=frozenset)

    def dump(self) -> dict[str, Any]:
        return {
            "target": vars(self.target),
            "trigger": self.trigger,
            "who": self.who,
            "grace": self.grace,
            "spare": [[ident.pid, ident.start] for ident in self.spare],
        }

    @classmethod
    def parse(cls, id: str, stored: dict[str, Any]) -> Request:
        spare = frozenset(Ident(pid, start) for pid, start in stored["spare"])
        target = Target(**stored["target"])
        return cls(id, target, stored["trigger"], stored["who"], stored["grace"], spare)


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._store = store
        self._plugins = plugins
        self._bridges = bridges
        self._ledger = ledger
        self._receipts = receipts
        self._clock = clock
        self._running: dict[str, asyncio.Task[dict[str, Any]]] = {}
        self._slots = asyncio.Semaphore(PARALLEL)
        # Latches that could not be saved: they hold in memory and are tried again until they are.
        self.brakes: dict[str, Request] = {}

    @property
    def busy(self) -> bool:
        return bool(self._running or self.brakes)

    async def stop(self, request: Request) -> dict[str, Any]:
        """Carry out a stop and return its receipt. The same id twice is the same stop."""
        task = self._running.get(request.id)
        if task is None:
            # At once, before anything else can run: what the target covers must not change first.
            bumped, problems = self.latch(request)
            task = asyncio.create_task(self._run(request, bumped, problems))
            self._running[request.id] = task
            task.add_done_callback(lambda _: self._running.pop(request.id, None))
        return await asyncio.shield(task)  # a caller that goes away does not take the stop with it

    async def resume(self) -> None:
        """Finish every stop that a crash, or a gateway that did not answer, left unfinished."""
        pending = []
        for id, stored, _ in self._store.unfinished_stops():
            try:
                pending.append(self.stop(Request.parse(id, stored)))
            except (KeyError, TypeError, ValueError) as error:  # another version wrote it
                log.error("stop %s cannot be read, its latch holds: %r", id, error)
        for result in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(result, BaseException):
                log.error("a stop could not be finished: %r", result)

    async def settle(self) -> None:
        """Wait for the stops that are under way."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _run(
        self, request: Request, bumped: dict[str, int], problems: list[str]
    ) -> dict[str, Any]:
        begun = time.perf_counter()
        steps: dict[str, float] = {}

        def lap(step: str) -> None:
            steps[step] = round((time.perf_counter() - begun) * 1000, 1)

        earlier = self._earlier(request.id)
        if earlier and earlier["converged"]:  # the crash came right after its receipt
            self._store.finish_stop(request.id)
            return earlier
        cut_off = await self._bridges.push(self.mirror(request.target.sessions))
        lap("latched")
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
        )
        await self._plugins.stop_started(stop)
        ended = await self._bridges.end(request.target.sessions, request.target.scopes)
        lap("ended")
        async with self._slots:
            reaped, failures = await self._plugins.reap(stop)
        lap("killed")

        problems += ended.unanswered + failures
        problems += [f"run {run['run']} of {run['session']} is still alive" for run in ended.alive]
        problems += [problem for result in reaped for problem in result.problems()]
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
            "runs": ended.ended,
            "tools": self._ledger.close(set(bumped)),
            "processes": [o.as_dict() for r in reaped for o in r.outcomes],
            "left": problems,
            "converged": not problems,
            "ms": steps,
        }
        written = self._write(receipt)
        if not ended.unanswered and request.id not in self.brakes:
            self._store.finish_stop(request.id)
        await self._plugins.stop_finished(written)
        return written

    def latch(self, request: Request) -> tuple[dict[str, int], list[str]]:
        """Step 1, on disk; where the disk refuses, in memory until it does not."""
        target = request.target
        try:
            return self._store.begin_stop(
                request.id, request.dump(), target.scopes, target.sessions
            ), []
        except StoreError as error:
            log.error("%s; holding the latch in memory", error)
            if not self.brakes:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._save_brakes)
            self.brakes[request.id] = request
            bumped = {key: self._store.generation(key) + 1 for key in target.sessions}
            return bumped, [
                f"{error}: the stop holds only while the engine runs; free some disk space"
            ]

    def _save_brakes(self) -> None:
        for request in list(self.brakes.values()):
            try:
                self._store.begin_stop(
                    request.id, request.dump(), request.target.scopes, request.target.sessions
                )
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
