"""The Feishu channel: which words stop a run there, and what they leave to the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from product import Product

from .feishu import Feishu, install
from .gateway import Gateway
from .install import HostUnavailable, host
from .model import Step, execute
from .protected import GONE, Work, receipt_since
from .scenario import alive, until

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(400)]  # the first one installs the channel

TURN = 90.0  # seconds; the first turn of a fresh gateway takes about 20 with this channel
DM = "agent:main:main"


@pytest.fixture(scope="module")
def feishu() -> Iterator[Feishu]:
    try:
        server = Feishu()
    except HostUnavailable as missing:
        pytest.skip(str(missing))
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, feishu: Feishu) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("feishu")
    product = Product(root / "clawstop")
    try:
        running = Gateway(
            root / "gateway",
            host(),
            plugin=product.plugin,
            overrides=feishu.overrides(product.plugin),
            env=feishu.env(),
        )
        install(running)
    except HostUnavailable as missing:
        pytest.skip(str(missing))
    product.wire(running.state_dir)
    with running:
        yield running


@pytest.mark.parametrize("word", ["stop", "停止"])
def test_a_native_word_stops_for_real_and_the_next_message_goes_on(
    gateway: Gateway, feishu: Feishu, word: str
) -> None:
    name = f"feishu{len(word)}"
    work = Work(gateway, name, feishu.say)
    before = time.time()
    feishu.say(word)
    receipt = receipt_since(gateway, DM, before)
    assert receipt["converged"], receipt["left"]
    assert work.alive == []
    until(lambda: any(receipt["id"][:8] in text for text in feishu.shown()), GONE, "our line")
    assert not any("aborted" in text for text in feishu.shown())
    assert work.later(before + 0.5) == []
    gateway.model.scripts[f"{name}-after"] = [Step(f"{name} is back")]
    feishu.say(f"[[{name}-after]] hello")
    until(lambda: f"{name} is back" in feishu.shown(), TURN, "the next message is answered")


def test_any_other_word_stops_an_idle_chat(gateway: Gateway, feishu: Feishu) -> None:
    process = f"sleep {next(Work.numbers)}"
    gateway.model.scripts["fsidle"] = [
        Step(tools=[("exec", {"command": process, "background": True})]),
        Step("fsidle runs"),
    ]
    feishu.say("[[fsidle]] go")
    until(lambda: "fsidle runs" in feishu.shown(), TURN, "it is started")
    assert alive(gateway, process)
    before = time.time()
    feishu.say("中断")
    receipt = receipt_since(gateway, DM, before)
    assert receipt["converged"], receipt["left"]
    assert not alive(gateway, process)
    until(lambda: any(receipt["id"][:8] in text for text in feishu.shown()), GONE, "our line")


def test_in_a_busy_chat_it_waits_for_the_run(gateway: Gateway, feishu: Feishu) -> None:
    """The channel hands over a chat's messages one by one: nobody sees those that wait."""
    gateway.model.scripts["deaf"] = [Step(tools=[execute("sleep 8")]), Step("slept to the end")]
    feishu.say("[[deaf]] go")
    until(lambda: alive(gateway, "sleep 8"), TURN, "the sleep runs")
    before = time.time()
    feishu.say("中断")
    until(lambda: "slept to the end" in feishu.shown(), TURN, "it was not stopped")
    receipt_since(gateway, DM, before)  # and then it is
