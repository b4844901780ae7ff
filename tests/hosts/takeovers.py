"""Owns random takeovers on a real gateway: one to three messages into a run in any state, some of
them milliseconds apart, and the count of what was lost, doubled or shown too late."""

from __future__ import annotations

import math
import time
from typing import Any

from clawstop import receipts

from .client import Client
from .model import Step
from .scenario import transcript, until
from .soak import Soak, Stop, _share
from .telegram import GROUP

MERGED = 0.5  # seconds; a channel makes one message of what comes closer together
PATIENCE = 90.0  # seconds; three messages, each behind the one before, on a busy machine
QUIET = 2.0  # seconds after an answer in which a second one would come


class Takeovers(Soak):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lost: list[str] = []
        self.doubled: list[str] = []
        self.waits: list[float] = []

    def _one(self, how: str, wait: float) -> None:
        with self._lock:
            name = f"soak{next(self._numbers)}"
            self.gateway.model.scripts[name] = self._script(name)
            gaps = [0.0] + [self._gap(how) for _ in range(self.dice.randrange(3))]
        names = [f"{name}-{number}" for number in range(len(gaps))]
        for one in names:
            self.gateway.model.scripts[one] = [Step(f"answer to {one}")]
        chat = GROUP - 5000 - int(name[4:]) if how == "phone" else None
        session = f"agent:main:telegram:group:{chat}" if chat else f"agent:dev1:{name}"
        old = Stop(name, session, how, chat)
        with self.gateway.client(session) as client:
            self._go(old, client)
            time.sleep(wait)
            old.said = time.time()
            for one, gap in zip(names, gaps, strict=True):
                time.sleep(gap)
                self._say(old, client, f"[[{one}]] message {one}")
            self._answered(old, client, names)
            old.acknowledged = self._settled(old)
            self.stops.append(old)
            self._keep(old, client)

    def _gap(self, how: str) -> float:
        if how == "phone":
            return self.dice.uniform(MERGED, 2.0)
        return self.dice.choice([0.0, 0.005, 0.05, self.dice.uniform(0.0, 1.5)])

    def _say(self, old: Stop, client: Client, text: str) -> None:
        if old.chat is not None:
            self.telegram.say(text, chat=old.chat)
        else:
            client.send(text)

    def _answered(self, old: Stop, client: Client, names: list[str]) -> None:
        """The last message is answered; every other is in the conversation. None twice."""
        last = names[-1]
        try:
            until(lambda: self._done(last), PATIENCE, f"an answer to {last}")
        except TimeoutError as error:
            self.lost.append(f"{last}: {error}")
            return
        self.waits.append(self._done(last)[0].time - old.said)
        time.sleep(QUIET)
        whole = str(self._done(last)[-1].messages)
        self.lost += [f"{one} is not read" for one in names if f"message {one}" not in whole]
        self.doubled += [f"{one} ran twice" for one in names if len(self._done(one)) > 1]
        users = [line for line in transcript(client) if line.startswith("user:")]
        self.doubled += [
            f"{one} stands twice"
            for one in names
            if sum(f"message {one}" in line for line in users) > 1
        ]

    def _wanted(self, text: str) -> bool:
        """What the new run shows, also that it types."""
        return not text or any(word in text for word in ("answer to", "earlier task", "之前的任务"))

    def _done(self, name: str) -> list[Any]:
        requests = self.gateway.model.requests_since(0, name)
        return [request for request in requests if request.outcome == "done"]

    def _settled(self, old: Stop) -> float:
        """When the takeover from the old run had its receipt. Never, when that had ended by itself
        before: then what it left running may go on."""
        every = receipts.read(self.gateway.state_dir / "clawstop/receipts.jsonl")
        times = [r["at"] for r in every if old.session in r["sessions"] and r["at"] > old.said]
        return min(times, default=math.inf)

    def table(self) -> dict[str, Any]:
        waits = sorted(self.waits)
        return {
            "takeovers": len(self.stops),
            "lost": len(self.lost),
            "doubled": len(self.doubled),
            "the old run had ended by itself": sum(s.acknowledged == math.inf for s in self.stops),
            "with effects of the old run after it": sum(bool(stop.after) for stop in self.stops),
            "message to its model request, s": {
                "p50": _share(waits, 0.5),
                "p99": _share(waits, 0.99),
            },
        }
