"""Messages, stops and resets within milliseconds of each other: none is lost, none runs twice."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from clawstop.limits import HOLDS, QUEUES
from product import Product

from .client import Client
from .conftest import Limited
from .gateway import Gateway
from .model import Step, execute
from .protected import FRIEND, GONE, HELD, TURN, patience, receipt_since
from .scenario import alive, transcript, until
from .telegram import GROUP, PERSON, Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]
numbers = itertools.count(61300)  # a sleep of its own for each, so that each can be told
STEP = 0.005  # seconds
WATCH = 3.0  # seconds in which a second answer would come


def busy(gateway: Gateway, session: str, client: Client) -> str:
    """A run in a tool; returns the tool's command."""
    command = f"sleep {next(numbers)}"
    gateway.model.scripts[command.replace(" ", "-")] = [
        Step("on it", tools=[execute(command)]),
        Step("stale"),
    ]
    client.send(f"[[{command.replace(' ', '-')}]] go", session)
    until(lambda: alive(gateway, command), TURN, "the old run is in its tool")
    return command


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Each a few milliseconds after the one before, whatever that one waits for."""
    results: list[Any] = [None] * len(acts)

    def act(index: int) -> None:
        results[index] = acts[index]()

    threads = [threading.Thread(target=act, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
        time.sleep(STEP)
    for thread in threads:
        thread.join()
    return results


def said_to_model(gateway: Gateway, since: float, words: str) -> list[Any]:
    """The requests whose last words of a person hold these."""
    return [
        request
        for request in gateway.model.requests_since(since)
        if words in str([m for m in request.messages if m["role"] == "user"][-3:])
    ]


@pytest.mark.parametrize("turn", range(3))
def test_two_messages_at_once_are_both_read_and_the_last_is_answered(
    running: Running, limit: Limited, turn: int
) -> None:
    gateway, _ = running
    session = f"agent:dev1:two-{turn}"
    other_command = f"sleep {next(numbers)}"
    gateway.model.scripts |= {
        f"first{turn}": [Step(tools=[execute(other_command)]), Step("one")],
        f"second{turn}": [Step("two")],
    }
    with gateway.client(session) as client, gateway.client(session) as other:
        command = busy(gateway, session, client)
        said = time.time()
        at_once(
            lambda: client.send(f"[[first{turn}]] first words"),
            lambda: other.send(f"[[second{turn}]] second words"),
        )
        read = partial(said_to_model, gateway, said, "second words")
        if limit(
            HOLDS
        ):  # the first is no run for a minute: the second waits behind it, and says so
            waits = "Your message waits"
            until(lambda: read() or waits in str(other.events), HELD, "it is read, or told")
            return
        until(read, GONE, "the second is read")
        time.sleep(WATCH)
        assert not alive(gateway, command)
        assert not alive(gateway, other_command)
        users = [line for line in transcript(client) if line.startswith("user:")]
        assert sorted(line.split("]] ")[1] for line in users[-2:]) == [
            "first words",
            "second words",
        ]
        requests = gateway.model.requests_since(said)
        assert [r for r in requests if r.script == f"second{turn}" and r.outcome == "done"]
        finished = [r.script for r in requests if r.outcome == "done"]
        assert len(finished) == len(set(finished)), "none runs twice"
        both = [r for r in requests if "first words" in str(r.messages[-6:])]
        assert any("second words" in str(r.messages) for r in both), "they were read together"


def test_each_message_takes_over_from_the_one_before(running: Running) -> None:
    gateway, _ = running
    session = "agent:dev1:each"
    with gateway.client(session) as client:
        commands = [busy(gateway, session, client) for _ in range(4)]
        until(lambda: not any(alive(gateway, c) for c in commands[:-1]), GONE, "the last one alone")
        assert alive(gateway, commands[-1])
        client.send("/stop")
        until(lambda: not alive(gateway, commands[-1]), GONE, "nothing runs")


@pytest.mark.parametrize("turn", range(2))
def test_a_message_right_after_a_stop_is_answered_once(running: Running, turn: int) -> None:
    gateway, _ = running
    session = f"agent:dev1:after-stop-{turn}"
    gateway.model.scripts[f"hello{turn}"] = [Step("here I am")]
    with gateway.client(session) as client, gateway.client(session) as other:
        command = busy(gateway, session, client)
        said = time.time()
        _, ack = at_once(lambda: client.send("/stop"), lambda: other.send(f"[[hello{turn}]] hello"))
        receipt = receipt_since(gateway, session, said)
        assert receipt["converged"], receipt["left"]
        assert receipt["trigger"] == "/stop"
        assert not alive(gateway, command)
        if ack.get("status") != "timeout":  # else the host took it in first: it was stopped too
            until(
                lambda: gateway.model.requests_since(said, f"hello{turn}"),
                patience(gateway),
                "an answer",
            )
            time.sleep(WATCH)
            assert len(gateway.model.requests_since(said, f"hello{turn}")) == 1


@pytest.mark.parametrize("turn", range(2))
def test_a_stop_right_after_a_message_stops_both(running: Running, turn: int) -> None:
    gateway, _ = running
    session = f"agent:dev1:before-stop-{turn}"
    gateway.model.scripts[f"late{turn}"] = [Step(tools=[execute(f"touch late{turn}-effect")])]
    with gateway.client(session) as client, gateway.client(session) as other:
        command = busy(gateway, session, client)
        said = time.time()
        at_once(lambda: client.send(f"[[late{turn}]] go"), lambda: other.send("/stop"))
        until(lambda: receipt_since(gateway, session, said), GONE, "a receipt")
        until(lambda: not alive(gateway, command), GONE, "the old run's tool is dead")
        time.sleep(WATCH)
        assert not [*gateway.root.glob(f"workspaces/*/late{turn}-effect")]


@pytest.mark.parametrize("how", ["/new", "/reset"])
def test_a_message_right_after_new_begins_the_fresh_conversation(
    running: Running, how: str
) -> None:
    gateway, _ = running
    session = f"agent:dev1:anew{how.replace('/', '-')}-race"
    name = f"fresh{how.strip('/')}"
    gateway.model.scripts[name] = [Step("fresh answer")]
    with gateway.client(session) as client, gateway.client(session) as other:
        command = busy(gateway, session, client)
        said = time.time()
        at_once(lambda: client.send(how), lambda: other.send(f"[[{name}]] hello"))
        until(lambda: gateway.model.requests_since(said, name), GONE, "an answer")
        time.sleep(WATCH)
        [request] = gateway.model.requests_since(said, name)
        assert command not in str(request.messages), "of the old conversation it knows nothing"
        assert not alive(gateway, command)
        assert transcript(client)[-1].startswith("assistant: fresh answer")


def test_in_a_group_a_message_takes_over_only_its_own_senders_task(
    running: Running, telegram: Telegram, limit: Limited
) -> None:
    gateway, _ = running
    command, name = f"sleep {next(numbers)}", "group-task"
    gateway.model.scripts[name] = [Step(tools=[execute(command)]), Step("done")]
    gateway.model.scripts["mine"] = [Step("yours")]
    telegram.say(f"[[{name}]] go", chat=GROUP, sender=PERSON)
    until(lambda: alive(gateway, command), TURN, "the task runs")
    for other, who in ((77, "a stranger"), (FRIEND, "somebody else")):
        telegram.say("and what about me?", chat=GROUP, sender=other)
        time.sleep(WATCH)
        assert alive(gateway, command), f"{who}'s message ends nothing"
    said = time.time()
    if limit(QUEUES):
        telegram.say("/stop", chat=GROUP, sender=PERSON)
        until(lambda: not alive(gateway, command), GONE, "its owner's stop goes past them")
        return
    telegram.say("[[mine]] something else", chat=GROUP, sender=PERSON)
    until(lambda: "yours" in telegram.shown(GROUP), GONE, "an answer to its owner")
    assert not alive(gateway, command)
    assert receipt_since(gateway, group_session(gateway), said)["trigger"] == "new message"


def group_session(gateway: Gateway) -> str:
    return f"agent:main:telegram:group:{GROUP}"
