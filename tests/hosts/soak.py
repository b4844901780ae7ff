"""Owns random stops on a real gateway, overlapping, and the count of what happened after each.

Every stop has a session of its own, so that each effect can be told whose it is: requests to the
model, files written, messages, edits and typing, living processes. A stop is acknowledged by its
line in chat or by the exit of `clawstop stop`; on a gateway without clawstop by the host's answer.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from product import Product

from .client import Client
from .gateway import Gateway
from .model import Step, execute
from .processes import carrying
from .scenario import until
from .telegram import GROUP, Telegram

WATCH = 40.0  # seconds: the host holds a wake back for up to 30
ANSWER = 30.0  # seconds for an acknowledgement; a stop takes one
TURN = 60.0  # seconds for a run to begin on a machine that is busy with six others
CLOCK = 0.05  # seconds by which a file's time may be late

OURS = ("Receipt ", "回执 ")  # what our line has in it
MAINTENANCE = "another OpenClaw process owns state-lifecycle"

NATIVE = ("/stop", "stop", "停止")
WORDS = (*NATIVE, "中断", "/cancel", "arrêt")


@dataclass
class Stop:
    """One stop: when it was said, when it was acknowledged, and what was seen of its run."""

    name: str
    session: str
    how: str
    chat: int | None = None
    said: float = 0.0
    acknowledged: float = 0.0
    effects: list[tuple[float, str]] = field(default_factory=list)

    @property
    def after(self) -> list[str]:
        return [
            f"{self.how} {self.name}: {what} {at - self.acknowledged:+.2f} s"
            for at, what in self.effects
            if at > self.acknowledged
        ]

    @property
    def last(self) -> float:
        """Seconds from the word to the last effect."""
        return max([0.0, *(at - self.said for at, _ in self.effects)])


class Soak:
    def __init__(
        self,
        gateway: Gateway,
        telegram: Telegram,
        product: Product | None,
        dice: random.Random,
    ) -> None:
        self.gateway, self.telegram, self.product, self.dice = gateway, telegram, product, dice
        self.stops: list[Stop] = []
        self._numbers = itertools.count(1)
        self._sleeps = itertools.count(700_000)
        self._lock = threading.Lock()

    # -- what is stopped

    def _script(self, name: str) -> list[Step]:
        """Tools that hide, words in between, a model that is slow or never answers."""
        file = itertools.count()

        def mark() -> str:
            return f"touch {name}.{next(file)}; : {name}"

        loop = f"while :; do touch {name}.loop; sleep 0.2; done; : {name}"
        kinds: list[Callable[[], Step]] = [
            lambda: Step("word " * 40, chunk_delay=0.02),
            lambda: Step(tools=[("exec", {"command": loop, "background": True})]),
            lambda: Step(tools=[execute(f"{mark()}; sleep {next(self._sleeps)}")]),
            lambda: Step(tools=[execute(f"(setsid sh -c '{loop}' &) ; sleep 0.3")]),
            lambda: Step(tools=[execute(mark()) for _ in range(3)]),
            lambda: Step(tools=[execute(f"trap '' TERM; {loop}", yieldMs=500)]),
            lambda: Step("thinking", tools=[execute(mark())], delay=0.5),
        ]
        chosen = [self.dice.choice(kinds)() for _ in range(self.dice.randrange(2, 6))]
        return [*chosen, self.dice.choice([Step(hang=True), kinds[2](), Step("x " * 400)])]

    # -- stopping

    def run(self, count: int, workers: int, ways: Sequence[str]) -> None:
        """`count` stops, `workers` at a time; returns when the last one was watched."""
        plans = [(self.dice.choice(ways), self.dice.uniform(0.0, 2.5)) for _ in range(count)]
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._one, how, wait) for how, wait in plans]:
                done.result()
        time.sleep(WATCH)
        self._look()

    def _one(self, how: str, wait: float) -> None:
        with self._lock:
            name = f"soak{next(self._numbers)}"
            self.gateway.model.scripts[name] = self._script(name)
        on_phone = how.startswith("phone ")
        chat = GROUP - 1000 - int(name[4:]) if on_phone else None
        session = f"agent:main:telegram:group:{chat}" if on_phone else f"agent:dev1:{name}"
        stop = Stop(name, session, how, chat)
        with self.gateway.client(session) as client:
            self._go(stop, client)
            time.sleep(wait)
            self._say_stop(stop, client)
            self.stops.append(stop)
            if not on_phone:
                time.sleep(0.2)
                self._keep(stop, client)

    def _go(self, stop: Stop, client: Client) -> None:
        """Say it until it runs: a message that meets the host's own maintenance fails there."""
        for _ in range(3):
            if stop.chat is not None:
                self.telegram.say(f"[[{stop.name}]] go", chat=stop.chat)
            else:
                client.send(f"[[{stop.name}]] go")
            try:
                until(lambda: self.gateway.model.requests_since(0, stop.name), TURN, f"{stop} runs")
                return
            except TimeoutError:
                lines = self.gateway.log_text().splitlines()
                if not any(MAINTENANCE in line and f"={stop.session} " in line for line in lines):
                    raise
        raise TimeoutError(f"the host takes no message: {stop}")

    def _say_stop(self, stop: Stop, client: Client) -> None:
        word = stop.how.split(" ", 1)[1]
        seen, stop.said = client.mark(), time.time()
        if stop.how == "shell stop":
            assert self.product is not None
            done = self.product.run(self.gateway.state_dir, "stop", stop.session)
            assert done.returncode == 0, done.stdout + done.stderr
            stop.acknowledged = time.time()
        elif stop.chat is not None:
            self.telegram.say(word, chat=stop.chat)
            line = until(lambda: self._line_on_phone(stop), ANSWER, f"an answer to {stop.how}")
            stop.acknowledged = line
        else:
            if word == "chat.abort":
                client.abort()
            else:
                client.send(word)
            if self.product is None:  # the host says nothing in chat: its answer is all
                stop.acknowledged = time.time()
                return
            try:
                at, _ = client.wait(lambda frame: _injected(frame, stop.session), ANSWER, seen)
            except TimeoutError as error:
                chat = [f for _, f in client.events[seen:] if f.get("event") == "chat"]
                mine = [f for f in chat if stop.session in str(f)]
                raise TimeoutError(f"no line for {stop}: {mine}") from error
            stop.acknowledged = at

    def _line_on_phone(self, stop: Stop) -> float | None:
        words = OURS if self.product else ("aborted",)
        for call in self.telegram.outbound(stop.said, stop.chat):
            if any(word in call.text for word in words):
                return call.time
        return None

    # -- watching

    def _wanted(self, text: str) -> bool:
        """Whether this is for the person, and not of the stopped run."""
        return any(word in text for word in OURS)

    def _keep(self, stop: Stop, client: Client) -> None:
        """What a page has seen of this run."""
        for at, frame in client.events:
            payload = frame.get("payload") or {}
            mine = frame.get("event") == "chat" and payload.get("sessionKey") == stop.session
            if mine and payload.get("state") in ("delta", "final"):
                text = str(payload.get("message") or "")
                if _injected(frame, stop.session) or not text or self._wanted(text):
                    continue
                stop.effects.append((at, f"shown {payload['state']}"))

    def _look(self) -> None:
        written: dict[str, list[Path]] = {}
        for file in self.gateway.root.glob("workspaces/*/soak*"):
            written.setdefault(file.name.split(".")[0], []).append(file)
        alive = [process.command for process in carrying(self.gateway.state_dir)]
        for stop in self.stops:
            stop.effects += [
                (request.time, f"model request {request.step}")
                for request in self.gateway.model.requests_since(0, stop.name)
            ]
            stop.effects += [
                (file.stat().st_mtime - CLOCK, f"wrote {file.name}")
                for file in written.get(stop.name, [])
            ]
            stop.effects += [
                (time.time(), f"alive: {command[:60]}")
                for command in alive
                if re.search(rf": {stop.name}\b", command)
            ]
            if stop.chat is not None:
                stop.effects += [
                    (call.time, call.method)
                    for call in self.telegram.outbound(0, stop.chat)
                    if not self._wanted(call.text)
                ]

    # -- what came of it

    @property
    def after(self) -> list[str]:
        return [effect for stop in self.stops for effect in stop.after]

    def table(self) -> dict[str, Any]:
        last = sorted(stop.last for stop in self.stops)
        took = sorted(stop.acknowledged - stop.said for stop in self.stops)
        kinds = Counter(what.split(" ")[0] for stop in self.stops for what in _kinds(stop))
        return {
            "stops": len(self.stops),
            "effects after the acknowledgement": dict(kinds),
            "stops with effects after it": sum(bool(stop.after) for stop in self.stops),
            "last effect, s": {"p50": _share(last, 0.5), "p99": _share(last, 0.99)},
            "acknowledged, s": {"p50": _share(took, 0.5), "p99": _share(took, 0.99)},
        }


def _kinds(stop: Stop) -> list[str]:
    return [what for at, what in stop.effects if at > stop.acknowledged]


def _share(sorted_values: Sequence[float], share: float) -> float:
    return round(sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))], 2)


def _injected(frame: dict[str, Any], session: str) -> bool:
    """Whether this is a line of ours on the page of this session."""
    payload = frame.get("payload") or {}
    run = str(payload.get("runId", ""))
    return (
        frame.get("event") == "chat"
        and payload.get("sessionKey") == session
        and (run.startswith("inject-"))
    )
