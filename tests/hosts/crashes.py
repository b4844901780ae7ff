"""Owns random crashes of a real gateway: some tasks in any state, some of them stopped at any
moment, a SIGKILL of gateway, engine or both, and the count of how often each task came to its end.

A task ends with a step of its own, so that its end is counted at the model: once if nobody stopped
it, whether before the crash or after it, and never once a stop was acknowledged.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from product import Product

from .client import Client
from .gateway import Gateway
from .model import Step, execute
from .processes import carrying
from .protected import engine_process
from .scenario import until
from .telegram import GROUP, Telegram

BACK = 180.0  # seconds for all tasks to go on: the host takes one after the other
QUIET = 6.0  # seconds after that in which a second end would come
CLOCK = 0.05  # seconds by which a request may be late


@dataclass
class Task:
    name: str
    session: str
    phase: str
    chat: int | None = None
    stopped: float = 0.0  # when its stop was acknowledged


class Crashes:
    def __init__(
        self, gateway: Gateway, telegram: Telegram, product: Product, dice: random.Random
    ) -> None:
        self.gateway, self.telegram, self.product, self.dice = gateway, telegram, product, dice
        self.wrong: list[str] = []
        self.rounds: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._round()

    def _round(self) -> None:
        victims = self.dice.choice([("gateway",), ("engine",), ("gateway", "engine")])
        # A tool that takes for ever is cut off only with its gateway.
        lasting = ["tool", "background"] if "gateway" in victims else []
        phases = self.dice.sample(["words", "waits", "preflight", *lasting], 3)
        tasks = [self._task(phase) for phase in phases]
        when = self.dice.choice(["before", "during", "after", "never"])
        begun = time.time()
        with self.gateway.client() as client:
            for task in tasks:
                if task.phase == "preflight":
                    self._say(task, client)
                    time.sleep(self.dice.uniform(0.0, 1.0))
                else:
                    self._begin(task, client)
            time.sleep(self.dice.uniform(0.0, 1.5))
            if when == "before":
                self._stop(tasks[0])
            if when == "during":  # said, and perhaps not carried out
                self._say(tasks[0], client, "/stop")
        self._crash(victims)
        if when in ("after", "during"):  # the page would say it again too
            self._stop(tasks[0])
        self._settle(tasks)
        self._judge(tasks, begun)
        told = {"phases": phases, "killed": victims, "stop": when}
        row = {**told, "seconds": round(time.time() - begun), "wrong": len(self.wrong)}
        self.rounds.append(row)
        print(json.dumps(row), flush=True)

    def _task(self, phase: str) -> Task:
        name = f"crash{next(self._numbers)}"
        once = f"test -e {name}.mark || {{ touch {name}.mark; sleep 40000; }}"
        first = {
            "tool": Step("On it.", tools=[execute(once)]),
            "words": Step("word " * 40, chunk=5, chunk_delay=0.1, tools=[execute("true")]),
            "waits": Step(delay=4.0, tools=[execute("true")]),
            "preflight": Step(tools=[execute("true")]),
            "background": Step(
                tools=[
                    ("exec", {"command": f"setsid -f sleep {40000 + int(name[5:])}"}),
                    execute(once),
                ]
            ),
        }[phase]
        self.gateway.model.scripts[name] = [first, Step(f"{name} ends")]
        chat = GROUP - 7000 - int(name[5:]) if self.dice.random() < 0.3 else None
        session = f"agent:main:telegram:group:{chat}" if chat else f"agent:dev1:{name}"
        return Task(name, session, phase, chat)

    def _begin(self, task: Task, client: Client) -> None:
        """A busy host may refuse a message while it tidies its database, and says so."""
        run = self._say(task, client)
        begun = partial(self._asked, task)
        until(lambda: begun() or _refused(client, run), 60, f"{task.name} has begun")
        if not begun():
            print(f"{task.name}: the host refused it, so it is said again", flush=True)
            self._say(task, client)
            until(begun, 60, f"{task.name} has begun")

    def _say(self, task: Task, client: Client, text: str = "") -> str:
        """On a page: how its run is called."""
        words = text or f"[[{task.name}]] go"
        if task.chat is not None:
            self.telegram.say(words, chat=task.chat)
            return ""
        return str(client.send(words, task.session).get("runId") or "")

    def _asked(self, task: Task) -> bool:
        return bool(self.gateway.model.requests_since(0, task.name))

    def _stop(self, task: Task) -> None:
        done = self.product.run(self.gateway.state_dir, "stop", task.session)
        assert done.returncode in (0, 3), done.stdout + done.stderr
        task.stopped = time.time()

    def _crash(self, victims: tuple[str, ...]) -> None:
        engine = engine_process(self.gateway)
        for victim in victims:
            if victim == "gateway":
                self.gateway.kill()
            else:
                engine.send_signal(signal.SIGKILL)
                engine.wait(10)
        if "gateway" in victims:
            self.gateway.start()
            with self.gateway.client() as client:  # after three crashes the host starts no channel
                client.call("channels.start", {"channel": "telegram"})

    def _ends(self, task: Task) -> list[float]:
        """When it came to its end: the model was asked for its last step, and has answered."""
        asked = self.gateway.model.requests_since(0, task.name)
        return [one.time for one in asked if one.step == 1 and one.outcome == "done"]

    def _settle(self, tasks: list[Task]) -> None:
        going = [task for task in tasks if not task.stopped]
        with contextlib.suppress(TimeoutError):  # it is counted
            until(lambda: all(map(self._ends, going)), BACK, "everything has ended")
        time.sleep(QUIET)

    def _judge(self, tasks: list[Task], begun: float) -> None:
        for task in tasks:
            ends = self._ends(task)
            what = f"{task.name} ({task.phase}, {task.session}, round {len(self.rounds) + 1})"
            if task.stopped:
                asked = self.gateway.model.requests_since(task.stopped + CLOCK, task.name)
                if asked:
                    self.wrong.append(f"{what} was stopped and went on: {len(asked)} requests")
            elif len(ends) != 1:
                self.wrong.append(f"{what} came to its end {len(ends)} times")
        left = [one.command for one in carrying(self.gateway.state_dir) if "sleep 4" in one.command]
        if left:
            self.wrong.append(f"round {len(self.rounds) + 1}: alive: {left}")


def _refused(client: Client, run: str) -> bool:
    payloads = [frame.get("payload") or {} for _, frame in client.events]
    return any(one.get("runId") == run and one.get("state") == "error" for one in payloads)
