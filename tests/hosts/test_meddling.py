"""Somebody else's plugin in the same hooks: slow, claiming, rewriting. A stop holds anyway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .gateway import Gateway
from .model import Step, execute
from .protected import GONE, TURN, Work, protected, receipt_since
from .scenario import until
from .telegram import PERSON, Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

SLOW = 3.0  # seconds; what the meddler takes its time for
SETTLED = 0.5


@pytest.fixture(scope="module")
def telegram() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, telegram: Telegram) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("meddling")
    meddler = Path(__file__).parent / "meddler"
    with protected(root, telegram=telegram, beside=meddler) as (gateway, _):
        yield gateway


@pytest.mark.parametrize("word", ["中断", "kill main"])
def test_a_word_that_another_plugin_claims_still_stops(gateway: Gateway, word: str) -> None:
    session = f"agent:main:claimed-{len(word)}"
    with gateway.client(session) as client:
        work = Work(gateway, f"claimed{len(word)}", client.send)
        before = time.time()
        client.send(word)
        assert receipt_since(gateway, session, before)["converged"]
        assert work.alive == []


def test_a_tool_that_another_plugin_holds_does_not_run_after_the_stop(gateway: Gateway) -> None:
    session = "agent:dev1:held"
    gateway.model.scripts["held"] = [Step(tools=[execute("touch slowly-effect")]), Step("done")]
    with gateway.client(session) as client:
        client.send("[[held]] go")
        until(lambda: gateway.model.requests_since(0.0, "held"), TURN, "it asks for the tool")
        time.sleep(SETTLED)
        client.send("/stop")
        time.sleep(SLOW + SETTLED)
        assert not [*gateway.root.glob("workspaces/*/slowly-effect")]


def test_a_tool_that_another_plugin_rewrites_still_runs(gateway: Gateway) -> None:
    session = "agent:dev1:rewritten"
    gateway.model.scripts["rw"] = [Step(tools=[execute("touch rewrite-effect")]), Step("done")]
    with gateway.client(session) as client:
        client.wait_final(client.send("[[rw]] go")["runId"])
        assert [*gateway.root.glob("workspaces/*/rewritten-effect")], "both are in the hook"


def test_a_final_that_another_plugin_holds_is_fenced_when_it_comes(
    gateway: Gateway, telegram: Telegram
) -> None:
    gateway.model.scripts["slow"] = [Step("slowly said")]
    telegram.say("[[slow]] go")
    until(lambda: gateway.model.requests_since(0.0, "slow"), TURN, "it answers")
    time.sleep(1.5)  # its final is in the meddler's hands now
    before = time.time()
    telegram.say("/stop")
    until(lambda: any("topped" in text for text in telegram.shown()), GONE, "our line")
    time.sleep(SLOW)
    assert not [text for text in telegram.shown() if "slowly" in text]
    assert not [call for call in telegram.outbound(before, PERSON) if "meddled" in call.text]
