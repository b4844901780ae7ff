"""Orders that are given in one chat and are about another agent, or about clawstop: they act, harm
nothing where they are typed, and are in nobody's memory."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from clawstop.limits import WAITS
from product import Product

from .conftest import Limited
from .gateway import Gateway
from .model import Step, execute
from .protected import GONE, TURN, Work, last_receipt, receipt_since
from .scenario import alive, transcript, until
from .telegram import GROUP, PERSON, Telegram
from .test_triggers import said

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]
STRANGER = 77


@pytest.fixture(autouse=True)
def released(running: Running) -> Iterator[None]:
    """Other tests need dev1."""
    yield
    gateway, product = running
    product.run(gateway.state_dir, "release", "dev1")


class Own:
    """A run in the session in which the order is typed."""

    def __init__(self, gateway: Gateway, name: str) -> None:
        self.gateway, self.name = gateway, name
        self.command = f"sleep {next(Work.numbers)}.5"
        self.go = gateway.root / f"{name}-go"
        wait = f"{self.command} & while [ ! -e {self.go} ]; do sleep 0.1; done; kill $!"
        gateway.model.scripts[name] = [
            Step("on it", tools=[execute(wait)]),
            Step(tools=[execute("true")]),
            Step(f"{name} is done"),
        ]

    def runs(self) -> None:
        until(lambda: alive(self.gateway, self.command), TURN, "its own run is in a tool")

    def finish(self) -> None:
        self.go.touch()


@pytest.mark.parametrize("order", ["kill dev1", "/kill dev1", "杀掉 dev1"])
def test_killing_another_agent_on_a_page_harms_nothing_here(running: Running, order: str) -> None:
    gateway, _ = running
    number = ["kill dev1", "/kill dev1", "杀掉 dev1"].index(order)
    here, there = f"agent:main:boss-{number}", f"agent:dev1:worker-{number}"
    own = Own(gateway, f"boss{number}")
    with gateway.client(here) as client, gateway.client(there) as other:
        work = Work(gateway, f"worker{number}", other.send)
        run = client.send(f"[[{own.name}]] go")["runId"]
        own.runs()
        before, seen = time.time(), client.mark()
        client.send(order)
        receipt = receipt_since(gateway, there, before)
        assert receipt["converged"], receipt["left"]
        assert (receipt["trigger"], receipt["scopes"]) == (order, ["agent:dev1"])
        assert work.alive == []
        word = "已停止 dev1" if "杀" in order else "Stopped dev1"
        until(lambda: said(client, seen, word), GONE, "a line where it was typed")
        assert alive(gateway, own.command), "the run here goes on"
        own.finish()
        _, frame = client.wait_final(run)
        assert f"{own.name} is done" in str(frame["payload"].get("message"))
        gateway.model.scripts["after"] = [Step("fine")]
        client.wait_final(client.send("[[after]] and now?")["runId"])
        request = gateway.model.requests[-1]
        assert order not in str(request.messages), "no trace of it"
        assert not any(order in line for line in transcript(client) if line.startswith("user"))


def test_killing_another_agent_on_a_channel_is_answered_at_once(
    running: Running, telegram: Telegram
) -> None:
    gateway, _ = running
    own = Own(gateway, "dmboss")
    with gateway.client("agent:dev1:dm-worker") as other:
        work = Work(gateway, "dmworker", other.send)
        telegram.say(f"[[{own.name}]] go")
        own.runs()
        before = time.time()
        telegram.say("kill dev1")
        until(lambda: any("Stopped dev1" in text for text in telegram.shown()), GONE, "a line")
        assert work.alive == []
        assert alive(gateway, own.command), "the answer did not wait for the run here"
        own.finish()
        until(lambda: f"{own.name} is done" in telegram.shown(), GONE, "its final")
        assert receipt_since(gateway, "agent:dev1:dm-worker", before)["who"] == str(PERSON)


@pytest.mark.parametrize("words", ["kill it with fire", "stop the docker container", "kill ev1"])
def test_what_names_nobody_is_the_agents_to_read(running: Running, words: str) -> None:
    gateway, _ = running
    session = f"agent:main:words-{len(words)}"
    with gateway.client(session) as client:
        before = time.time()
        client.wait_final(client.send(words)["runId"])
        assert words in str(gateway.model.requests_since(before)[-1].messages)


@pytest.mark.parametrize(
    ("words", "answer"), [("/kill dev9", "Did you mean dev1?"), ("/kill xyzzy", "dev1, main")]
)
def test_an_order_for_nobody_is_answered_with_names(
    running: Running, words: str, answer: str
) -> None:
    gateway, _ = running
    with gateway.client(f"agent:main:nobody-{words[6:]}") as client:
        before, seen = time.time(), client.mark()
        client.send(words)
        until(lambda: said(client, seen, answer), GONE, "the nearest, or all agents")
        assert not gateway.model.requests_since(before)


# -- from the channel's own menu


def test_the_menu_has_our_commands(running: Running, telegram: Telegram) -> None:
    def listed() -> bool:
        return any(
            call.method == "setMyCommands"
            and all(name in str(call.params) for name in ("halt", "stops", "restore"))
            for call in telegram.calls
        )

    until(listed, TURN, "halt, stops and restore in the menu")


def test_halt_from_the_menu_stops_and_restore_brings_back(
    running: Running, telegram: Telegram, limit: Limited
) -> None:
    gateway, _ = running
    work = Work(gateway, "menu", telegram.say)
    before = time.time()
    telegram.say("/stop" if limit(WAITS) else "/halt")
    receipt = receipt_since(gateway, "agent:main:main", before)
    assert receipt["converged"], receipt["left"]
    assert work.alive == []
    until(lambda: lines(telegram, before), GONE, "one line")
    telegram.say("/stops")
    until(lambda: any("converged" in t for t in lines(telegram, before)), GONE, "the stops")
    telegram.say("/restore")
    until(
        lambda: any("remembers the task again" in t for t in lines(telegram, before)),
        GONE,
        "it is back",
    )
    stopped = [text for text in lines(telegram, before) if text.startswith("Stopped: 1 run")]
    assert len(stopped) == 1, "one line, and no notice of the host's"


def lines(telegram: Telegram, since: float, chat: int = PERSON) -> list[str]:
    return [call.text for call in telegram.outbound(since, chat) if call.text]


@pytest.mark.parametrize("order", ["/halt", "/stops", "/restore", "kill dev1"])
def test_a_stranger_in_a_group_commands_nothing(
    running: Running, telegram: Telegram, order: str
) -> None:
    gateway, _ = running
    name = f"theirs{order.strip('/').replace(' ', '')}"
    work = Work(gateway, name, lambda text: telegram.say(text, chat=GROUP))
    before = time.time()
    telegram.say(order, chat=GROUP, sender=STRANGER)
    time.sleep(3)
    assert work.alive == [work.front, work.back], "nothing was stopped"
    newest = last_receipt(gateway)
    assert newest is None or newest["at"] < before, "nor brought back"
    ours = ("converged", "Stopped", "remembers", "forgotten", "nothing was stopped")
    told = lines(telegram, before, GROUP)
    assert not [text for text in told if any(word in text for word in ours)]
    said = time.time()
    telegram.say("/stop", chat=GROUP)
    until(lambda: work.alive == [], GONE, "its owner's stop works")
    until(lambda: "Stopped" in str(lines(telegram, said, GROUP)), GONE, "and is answered")


def test_a_stranger_in_an_open_chat_kills_no_other_agent(
    running: Running, telegram: Telegram
) -> None:
    gateway, _ = running
    with gateway.client("agent:dev1:not-theirs") as other:
        work = Work(gateway, "nottheirs", other.send)
        telegram.say("kill dev1", sender=STRANGER)
        until(lambda: any("may not" in t for t in telegram.shown(STRANGER)), GONE, "a refusal")
        assert work.alive == [work.front, work.back]
        other.send("/stop")
        until(lambda: work.alive == [], GONE, "it is stopped")
