"""Nothing brings a stopped run back: no process that ends, no child, no job, no restart."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from product import Patch, Product

from .client import Client
from .gateway import Gateway
from .model import Step, execute, searched, text_of
from .protected import GONE, TURN, Work, engine_process, invoke, protected, receipt_since
from .scenario import alive, until

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]
WATCH = 40.0  # seconds: the host holds a wake back for up to 30
DEEP = {"agents": {"defaults": {"subagents": {"maxSpawnDepth": 3}}}}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with protected(tmp_path_factory.mktemp("interlock"), overrides=DEEP) as both:
        yield both


def stop(running: Running, target: str, *options: str) -> dict[str, Any]:
    gateway, product = running
    done = product.run(gateway.state_dir, "stop", target, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = product.json(gateway.state_dir, "receipts")["receipts"][-1]
    return answer


class Family:
    """A run with a child that has a child; each is busy in the foreground."""

    def __init__(self, gateway: Gateway, client: Client) -> None:
        self.gateway = gateway
        self.sleeps = [f"sleep {next(Work.numbers)}" for _ in range(3)]
        scripts = gateway.model.scripts
        for number, (name, child) in enumerate([("p", "c"), ("c", "g"), ("g", "")]):
            spawn = [Step(tools=[searched("sessions_spawn", task=f"[[{child}]] go")])]
            busy = [Step(tools=[execute(self.sleeps[number])]), Step(f"{name} is done")]
            scripts[name] = (spawn if child else []) + busy
        client.send("[[p]] go")
        until(lambda: len(self.alive) == 3, TURN, "three generations are at work")

    @property
    def alive(self) -> list[str]:
        return [command for command in self.sleeps if alive(self.gateway, command)]


def comes_back(running: Running, *options: str) -> list[str]:
    """Stop two sessions, release them with a message, and watch what the model is asked then."""
    gateway, _ = running
    with gateway.client("agent:dev1:a") as one, gateway.client("agent:dev1:b") as two:
        work = Work(gateway, "work", one.send)
        family = Family(gateway, two)
        first = time.time()  # a wake comes in the moment of the kill, before the stop has answered
        stop(running, "agent:dev1:a", *options)
        receipt = stop(running, "agent:dev1:b", *options)
        assert work.alive + family.alive == [], "children at any depth are dead"
        assert len(receipt["sessions"]) == 3
        gateway.model.scripts["after"] = [Step("back")]
        since = time.time()
        for client in (one, two):
            client.wait_final(client.send("[[after]] hello")["runId"])
        time.sleep(WATCH)
        asked = gateway.model.requests_since(since)
        own = [request for request in asked if (request.script, request.step) == ("after", 0)]
        assert len(own) == 2, "the person's own messages"
        asked += [r for r in gateway.model.requests_since(first, "work") if r.time < since]
        others = [request for request in asked if request not in own]
        return [text_of(request.messages[-1])[-300:] for request in others]


def test_neither_a_process_nor_a_child_comes_back_after_the_release(locked: Running) -> None:
    assert comes_back(locked) == []


def has_run(client: Client, job: str) -> bool:
    """Whether the host has tried this job and is over with it, whatever came of it."""
    found = {one["id"]: one["state"] for one in client.call("cron.list", {})["jobs"]}
    return "lastRunAtMs" in found[job] and "runningAtMs" not in found[job]


def test_a_wake_and_a_job_start_nothing_in_what_is_stopped(locked: Running) -> None:
    gateway, product = locked
    with gateway.client() as client:
        gateway.model.scripts["job"] = [Step("the job ran")]
        job = client.call(
            "cron.add",
            {
                "name": "nightly",
                "agentId": "dev1",
                "schedule": {"kind": "every", "everyMs": 3_600_000},
                "sessionTarget": "isolated",
                "payload": {"kind": "agentTurn", "message": "[[job]] go"},
                "delivery": {"mode": "none"},
            },
        )
        stop(locked, "everything")
        since = time.time()
        client.call("wake", {"mode": "now", "text": "[[woken]] look"})
        client.call("cron.run", {"id": job["id"], "mode": "force"})
        # A cold gateway takes ten seconds to get to a job, and a job that is due twice runs once.
        until(lambda: has_run(client, job["id"]), TURN, "the host is done with the job")
        time.sleep(5)
        assert gateway.model.requests_since(since) == []
        sessions = product.json(gateway.state_dir, "status")["sessions"]
        assert not any(row["runs"] for row in sessions), "what was refused is over"
        assert product.run(gateway.state_dir, "release", "everything").returncode == 0
        client.call("cron.run", {"id": job["id"], "mode": "force"})
        until(lambda: gateway.model.requests_since(since, "job"), TURN, "it does run otherwise")


# -- crashes

ORDERS = [
    ("gateway",),
    pytest.param(("engine", "gateway"), marks=pytest.mark.soak),
    pytest.param(("gateway", "engine"), marks=pytest.mark.soak),
]


def crash(gateway: Gateway, order: tuple[str, ...]) -> None:
    engine = engine_process(gateway)
    for part in order:
        if part == "gateway":
            gateway.kill()
        else:
            engine.send_signal(signal.SIGKILL)
            engine.wait(10)
    gateway.start()


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_what_was_stopped_stays_stopped_across_a_crash(
    locked: Running, order: tuple[str, ...]
) -> None:
    """And what was not stopped is continued by the host: so it would have been."""
    gateway, _ = locked
    names = [f"{kind}-{'-'.join(order)}" for kind in ("dead", "live")]
    sessions = [f"agent:dev1:{name}" for name in names]
    for name in names:
        gateway.model.scripts[name] = [Step(tools=[execute("sleep 50000")]), Step(f"{name} ends")]
    with gateway.client() as client:
        begun = time.time()
        for name, session in zip(names, sessions, strict=True):
            client.send(f"[[{name}]] go", session)
        until(
            lambda: all(gateway.model.requests_since(begun, name) for name in names),
            TURN,
            "both run",
        )
        time.sleep(1)
        stop(locked, sessions[0])
    since = time.time()
    crash(gateway, order)
    until(lambda: gateway.model.requests_since(since, names[1]), TURN, "the live one goes on")
    time.sleep(5)
    assert gateway.model.requests_since(since, names[0]) == []
    assert invoke(gateway, sessions[0])[0] == 403
    stop(locked, "everything")
    _, product = locked
    product.run(gateway.state_dir, "release", "everything")


def test_a_stop_typed_just_before_everything_crashes_holds(locked: Running) -> None:
    gateway, product = locked
    session = "agent:dev1:just"
    command = gateway.state_dir / "clawstop/command.json"
    with gateway.client(session) as client:
        work = Work(gateway, "just", client.send)
        kept = command.read_text()
        command.unlink()
        engine = engine_process(gateway)
        engine.send_signal(signal.SIGKILL)
        engine.wait(10)
        before = time.time()
        client.send("/stop")
        tombstones = gateway.state_dir / "clawstop/tombstones"
        until(lambda: list(tombstones.glob("*.json")), GONE, "a tombstone")
    gateway.kill()
    command.write_text(kept)
    since = time.time()
    gateway.start()
    receipt = receipt_since(gateway, session, before)
    assert receipt["trigger"] == "/stop (engine was down)"
    assert work.alive == []
    time.sleep(5)
    assert gateway.model.requests_since(since, "just") == []
    assert invoke(gateway, session)[0] == 403
    product.run(gateway.state_dir, "release", "everything")


# -- red

NO_REFUSAL = (
    Patch(
        "hooks/openclaw/index.js",
        "return refusal ? { handled: true } : undefined",
        "return undefined",
    ),
    Patch("hooks/openclaw/bridge.js", "if (refusal) this.#refuse(run, refusal);", ""),
    Patch("hooks/openclaw/bridge.js", "drain.dropWakes(sessions, execs);", ""),
    Patch(
        "hooks/openclaw/bridge.js",
        "drain.cancelTasks(this.api, sessions, execs)",
        "[]",
    ),
)


@pytest.mark.soak
def test_without_the_interlock_they_come_back(tmp_path: Path) -> None:
    # Who comes back at once writes on, and the rollback would say that it was not made.
    for attempt in ("first", "second"):  # the host takes its time, and sometimes all of it
        with protected(tmp_path / attempt, *NO_REFUSAL, overrides=DEEP) as running:
            if comes_back(running, "--keep"):
                return
    pytest.fail("nothing came back")
