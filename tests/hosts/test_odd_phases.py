"""A new message while the old run compacts its conversation, waits for an approval, or belongs to a
person who has chosen another way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from .gateway import Gateway
from .model import Step, execute
from .protected import GONE, TURN, protected, receipt_since
from .scenario import transcript, until
from .telegram import PERSON, Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

DM = "agent:main:main"
COMPACTING = 5.0  # seconds that the summary takes
ROUNDS = {"page": (2, 300), "dm": (4, 170)}  # turns, and words in each, until it compacts
ODD: dict[str, Any] = {
    "agents": {
        "defaults": {
            "compaction": {
                "mode": "default",
                "maxActiveTranscriptBytes": 9000,
                "keepRecentTokens": 100,
                "memoryFlush": {"enabled": False},
            }
        }
    },
    "tools": {"exec": {"host": "gateway", "security": "allowlist", "ask": "always"}},
}
APPROVERS = {"enabled": True, "approvers": [str(PERSON)], "target": "channel"}
ODD["channels"] = {"telegram": {"execApprovals": APPROVERS}}


@pytest.fixture(scope="module")
def telegram() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, telegram: Telegram) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("odd")
    with protected(root, telegram=telegram, overrides=ODD) as (gateway, _):
        gateway.model.scripts["squeeze"] = [Step("## Summary\nThey talked.", delay=COMPACTING)]
        for name, (_, words) in ROUNDS.items():
            # Its mark makes the summary's own request slow.
            gateway.model.scripts[f"fill-{name}"] = [
                Step("[[squeeze]] " + "filler words. " * words)
            ]
        yield gateway


def more(telegram: Telegram, before: int) -> bool:
    return len(telegram.shown()) > before


def squeezed(gateway: Gateway, since: float) -> list[Any]:
    return gateway.model.requests_since(since, "squeeze")


def test_while_it_compacts_on_a_page(gateway: Gateway) -> None:
    session = "agent:dev1:compacting"
    gateway.model.scripts |= {"early": [Step("stale")], "late": [Step("late answer")]}
    with gateway.client(session) as client:
        for _ in range(ROUNDS["page"][0]):
            client.wait_final(client.send("[[fill-page]] go")["runId"])
        said = time.time()
        client.send("[[early]] go")
        until(lambda: squeezed(gateway, said), TURN, "it compacts")
        run = client.send("[[late]] no, this")["runId"]
        _, frame = client.wait_final(run)
        assert "late answer" in str(frame["payload"].get("message"))
        time.sleep(1)
        assert len(gateway.model.requests_since(said, "late")) == 1
        assert not gateway.model.requests_since(said, "early")
        assert not [line for line in transcript(client) if "stale" in line]


def test_while_it_compacts_on_a_channel(gateway: Gateway, telegram: Telegram) -> None:
    gateway.model.scripts |= {"dearly": [Step("stale", delay=20)], "dlate": [Step("dm answer")]}
    for _ in range(ROUNDS["dm"][0]):
        before = len(telegram.shown())
        telegram.say("[[fill-dm]] go")
        until(partial(more, telegram, before), TURN, "filler")
    said = time.time()
    telegram.say("[[dearly]] go")
    until(lambda: squeezed(gateway, said), TURN, "it compacts")
    telegram.say("[[dlate]] no, this")
    until(lambda: "dm answer" in telegram.shown(), TURN, "the answer")
    assert len(gateway.model.requests_since(said, "dlate")) == 1
    assert not [text for text in telegram.shown() if "stale" in text or "couldn't" in text]


def test_while_it_waits_for_an_approval(gateway: Gateway) -> None:
    session = "agent:dev1:approving"
    gateway.model.scripts |= {
        "ask": [Step("may I?", tools=[execute("touch asked-effect")]), Step("stale")],
        "instead": [Step("instead answer")],
    }
    with gateway.client(session, caps=["exec-approvals"]) as client:
        client.send("[[ask]] go")
        asked = "exec.approval.requested"
        client.wait(lambda frame: frame.get("event") == asked)
        said, seen = time.time(), client.mark()
        run = client.send("[[instead]] no, this")["runId"]
        client.wait_final(run)
        resolved = "exec.approval.resolved"
        _, frame = client.wait(lambda frame: frame.get("event") == resolved, GONE, seen)
        assert frame["payload"]["decision"] == "deny"
        assert receipt_since(gateway, session, said)["converged"]
        assert not [*gateway.root.glob("workspaces/*/asked-effect")]
        assert len(gateway.model.requests_since(said, "instead")) == 1


def test_while_it_waits_for_an_approval_on_a_channel(gateway: Gateway, telegram: Telegram) -> None:
    gateway.model.scripts |= {
        "dask": [Step("may I?", tools=[execute("touch dasked-effect")]), Step("stale")],
        "dinstead": [Step("dm instead")],
    }
    before = time.time()
    telegram.say("[[dask]] go")
    asks = "touch dasked-effect"
    until(lambda: [c for c in telegram.outbound(before) if asks in c.text], TURN, "it asks")
    telegram.say("[[dinstead]] no, this")
    until(lambda: "dm instead" in telegram.shown(), TURN, "the answer")
    assert not [text for text in telegram.shown() if text == "stale" or "couldn't" in text]
    assert not [*gateway.root.glob("workspaces/*/dasked-effect")]


def test_a_person_who_has_chosen_another_way_is_left_alone(gateway: Gateway) -> None:
    session = "agent:dev1:chosen"
    gateway.model.scripts["chosen"] = [Step("working", delay=4), Step("finished")]
    with gateway.client(session) as client:
        client.send("/queue followup")
        before = time.time()
        run = client.send("[[chosen]] go")["runId"]
        until(lambda: gateway.model.requests_since(before, "chosen"), TURN, "it works")
        client.send("[[chosen]] and this later")
        _, frame = client.wait_final(run)
        assert "working" in str(frame["payload"].get("message")), "the run was not ended"
        later = "and this later"
        until(lambda: later in str(gateway.model.requests_since(before)[-1].messages), TURN, later)
