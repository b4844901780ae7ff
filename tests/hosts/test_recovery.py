"""A crash of a real gateway: who was cut off goes on once, on the channel it came from."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from clawstop import receipts
from product import Product

from .gateway import Gateway
from .model import Step, execute, text_of
from .protected import TURN, noted, protected
from .scenario import alive, until
from .telegram import GROUP, Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(600)]

Running = tuple[Gateway, Product]
BACK = 120.0  # seconds: the host takes one after the other, and so do the people who wait


@pytest.fixture(scope="module")
def phone() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, phone: Telegram) -> Iterator[Running]:
    with protected(tmp_path_factory.mktemp("recovery"), telegram=phone) as both:
        yield both


def once(name: str, then: str = "") -> list[Step]:
    """A task whose tool takes for ever, the first time."""
    command = f"test -e {name}.mark || {{ touch {name}.mark; {then} sleep 41000; }}"
    return [Step("On it.", tools=[execute(command)]), Step(f"{name} is done")]


def begun(gateway: Gateway, name: str) -> bool:
    return bool(list(gateway.root.glob(f"workspaces/*/{name}.mark")))


def ends(gateway: Gateway, name: str) -> int:
    asked = gateway.model.requests_since(0, name)
    return sum(one.step == 1 and one.outcome == "done" for one in asked)


def report(running: Running) -> dict[str, dict[str, Any]]:
    gateway, product = running
    return {row["session"]: row for row in product.json(gateway.state_dir, "recover", "--all")}


def test_each_goes_on_once_where_it_came_from_and_what_was_stopped_does_not(
    running: Running, phone: Telegram
) -> None:
    gateway, product = running
    scripts = gateway.model.scripts
    for name in ("page", "stopped"):
        scripts[name] = once(name)
    scripts["chat"] = once("chat", "setsid -f sleep 41001;")
    scripts["early"] = [Step("early is done", delay=1.0)]  # not before the crash
    group = GROUP - 8001
    with gateway.client() as client:
        client.send("[[page]] go", "agent:dev1:page")
        client.send("[[stopped]] go", "agent:dev1:stopped")
        phone.say("[[chat]] go", chat=group)
        for name in ("page", "stopped", "chat"):
            until(partial(begun, gateway, name), TURN, f"{name} runs")
        until(lambda: alive(gateway, "sleep 41001"), TURN, "what hides")
        assert product.run(gateway.state_dir, "stop", "agent:dev1:stopped").returncode == 0
        client.send("[[early]] go", "agent:dev1:early")  # not a run yet when the crash comes
        until(lambda: noted(gateway, "agent:dev1:early"), TURN, "it came in")
    stopped = time.time()
    gateway.kill()
    gateway.start()
    until(lambda: not alive(gateway, "sleep 41001"), TURN, "the old gateway's processes are dead")
    names = ("page", "chat", "early")
    until(lambda: all(ends(gateway, name) or _early(gateway, name) for name in names), BACK, "all")
    until(lambda: any("chat is done" in text for text in phone.shown(group)), 30, "the answer")
    time.sleep(8)
    assert [ends(gateway, name) for name in ("page", "chat")] == [1, 1]
    assert _early(gateway, "early") == 1
    assert sum("chat is done" in text for text in phone.shown(group)) == 1
    assert gateway.model.requests_since(stopped, "stopped") == []
    rows = [
        row
        for receipt in receipts.read(gateway.state_dir / "clawstop/receipts.jsonl")
        for row in receipt.get("recovered", ())
    ]
    assert {"agent:dev1:page", "agent:dev1:early"} <= {row["session"] for row in rows}
    assert "agent:dev1:stopped" not in {row["session"] for row in rows}
    assert report(running)["agent:dev1:stopped"]["state"] == "stopped"


def _early(gateway: Gateway, name: str) -> int:
    """How often it was answered: its first step is its last."""
    asked = gateway.model.requests_since(0, name) if name == "early" else []
    return sum(one.outcome == "done" for one in asked)


def test_who_is_to_be_asked_is_asked_and_yes_lets_it_go_on(
    running: Running, phone: Telegram
) -> None:
    gateway, product = running
    group = GROUP - 8002
    gateway.model.scripts["asked"] = once("asked")
    phone.say("[[asked]] go and tidy up", chat=group)
    until(partial(begun, gateway, "asked"), TURN, "it runs")
    will = ("--session", f"agent:main:telegram:group:{group}", "--progress", "12 of 15", "--ask")
    assert product.run(gateway.state_dir, "will", "set", *will).returncode == 0
    crashed = time.time()
    gateway.kill()
    gateway.start()

    def question() -> list[str]:
        return [text for text in phone.shown(group) if "Shall it go on?" in text]

    until(question, BACK, "the question")
    assert "12 of 15" in question()[0]
    time.sleep(10)  # the host would have gone on by itself
    assert gateway.model.requests_since(crashed, "asked") == []
    assert product.run(gateway.state_dir, "recover").returncode == 3, "somebody is waited for"
    phone.say("/boot-resume", chat=group)
    until(lambda: any("CUT OFF" in text for text in phone.shown(group)), 30, "what was found")
    phone.say("yes", chat=group)
    until(lambda: any("it goes on" in text.lower() for text in phone.shown(group)), 30, "our line")
    until(lambda: any("asked is done" in text for text in phone.shown(group)), BACK, "its answer")
    (first, *_) = gateway.model.requests_since(crashed, "asked")
    told = "\n".join(text_of(message) for message in first.messages)
    assert "go and tidy up" in told, "its message is quoted"
    assert "12 of 15" in told
    time.sleep(5)
    assert ends(gateway, "asked") == 1
    assert "yes" not in [text_of(m).strip() for m in first.messages], "our answer is no part of it"


def test_a_service_that_is_restarted_goes_on_too(running: Running) -> None:
    gateway, _ = running
    gateway.model.scripts["planned"] = once("planned")
    with gateway.client() as client:
        client.send("[[planned]] go", "agent:dev1:planned")
        until(partial(begun, gateway, "planned"), TURN, "it runs")
    gateway.halt(timeout=4)  # SIGTERM, and SIGKILL for who takes too long, as a service manager
    gateway.start()
    until(lambda: ends(gateway, "planned"), BACK, "it goes on")
    time.sleep(8)
    assert ends(gateway, "planned") == 1


def test_with_recovery_off_only_the_host_goes_on(running: Running) -> None:
    gateway, _ = running
    gateway.model.scripts["off"] = once("off")
    with gateway.client() as client:
        client.send("[[off]] go", "agent:dev1:off")
        until(partial(begun, gateway, "off"), TURN, "it runs")
    gateway.kill()
    config = json.loads(gateway.config_path.read_text())
    entry = config["plugins"]["entries"]["clawstop"]
    entry["config"] = {**entry.get("config", {}), "recovery": "off"}
    gateway.config_path.write_text(json.dumps(config))
    gateway.start()
    until(lambda: ends(gateway, "off"), BACK, "the host goes on by itself")
    time.sleep(8)
    assert ends(gateway, "off") == 1
