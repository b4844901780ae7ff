"""Takeovers as a person has set them up; what comes with a message; a crash in the middle."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from product import Patch

from .gateway import Gateway
from .model import Step, execute
from .protected import GONE, TURN, Work, last_receipt, protected, receipt_since
from .scenario import alive, until
from .telegram import Telegram
from .test_takeover import numbers

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

SETTING = "plugins.entries.clawstop.config"
PIXEL = base64.b64encode(b"GIF89a\x01\x00\x01\x00\x00\x00\x00;").decode()
QUIET = 3.0  # seconds in which what must not come would


@pytest.fixture(scope="module")
def telegram() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, telegram: Telegram) -> Iterator[Gateway]:
    with protected(tmp_path_factory.mktemp("choices"), telegram=telegram) as (gateway, _):
        yield gateway


@contextmanager
def chosen(gateway: Gateway, key: str, value: str) -> Iterator[None]:
    """A setting, changed while the gateway runs."""
    assert gateway.cli("config", "set", f"{SETTING}.{key}", value).returncode == 0
    time.sleep(2)  # the host loads the plugin again
    try:
        yield
    finally:
        assert gateway.cli("config", "unset", f"{SETTING}.{key}").returncode == 0
        time.sleep(2)


def last_request(gateway: Gateway, name: str) -> str:
    return str(gateway.model.requests_since(0.0, name)[-1].messages)


def test_pictures_come_along(gateway: Gateway) -> None:
    picture = {"type": "image", "fileName": "dot.gif", "mimeType": "image/gif", "content": PIXEL}
    sent: dict[str, Any] = {"attachments": [picture]}
    gateway.model.scripts |= {"idle-picture": [Step("seen")], "busy-picture": [Step("seen too")]}
    with gateway.client("agent:dev1:idle-picture") as client:
        client.wait_final(client.send("[[idle-picture]] look", **sent)["runId"])
    with gateway.client("agent:dev1:busy-picture") as client:
        work = Work(gateway, "before-picture", client.send)
        client.wait_final(client.send("[[busy-picture]] look", **sent)["runId"])
    assert work.alive == []
    idle, busy = (last_request(gateway, f"{how}-picture") for how in ("idle", "busy"))
    assert idle.count(".gif") == busy.count(".gif") > 0, "the model hears of it in the same way"


def test_quotes_come_along(gateway: Gateway, telegram: Telegram) -> None:
    gateway.model.scripts["quoting"] = [Step("I see")]
    work = Work(gateway, "before-quote", telegram.say)
    telegram.say("[[quoting]] what about that?", quote="the words of yesterday")
    until(lambda: "I see" in telegram.shown(), GONE, "an answer")
    assert work.alive == []
    assert "the words of yesterday" in last_request(gateway, "quoting")


def test_the_old_task_can_be_forgotten(gateway: Gateway) -> None:
    session = "agent:dev1:forgetting"
    gateway.model.scripts |= {"hi": [Step("hello")], "fresh": [Step("fresh answer")]}
    setting = chosen(gateway, "rollback", '{"takeover": true}')
    with setting, gateway.client(session) as client:
        client.wait_final(client.send("[[hi]] good morning")["runId"])
        work = Work(gateway, "forgettable", client.send)
        before = time.time()
        client.wait_final(client.send("[[fresh]] rather this")["runId"])
        receipt = receipt_since(gateway, session, before)
        assert [row.get("did") for row in receipt["memory"]] == ["remove"], receipt["memory"]
        request = last_request(gateway, "fresh")
        assert work.name not in request
        assert work.front not in request
        assert "good morning" in request


@pytest.mark.parametrize("way", ["steer", "off"])
def test_a_message_joins_the_run_where_a_person_wants_that(gateway: Gateway, way: str) -> None:
    session, name = f"agent:dev1:{way}", f"joined-{way}"
    command = f"sleep 4; : {next(numbers)}"
    gateway.model.scripts[name] = [Step(tools=[execute(command)]), Step("with both")]
    with chosen(gateway, "takeover", way), gateway.client(session) as client:
        client.send(f"[[{name}]] go")
        until(lambda: alive(gateway, command), TURN, "it works")
        client.send("and mind the gap")
        until(lambda: "mind the gap" in last_request(gateway, name), TURN, "it reads both")
        time.sleep(QUIET)
        newest = last_receipt(gateway)
        assert newest is None or session not in newest["sessions"], "nothing was stopped"


def test_a_crash_while_a_message_takes_over_loses_nothing_and_brings_nothing_back(
    tmp_path: Path,
) -> None:
    crash = Patch(
        "hooks/openclaw/takeover.js",
        "if (settings?.rollback?.takeover) await",
        'process.kill(process.pid, "SIGKILL"); await',
    )
    session = "agent:main:main"
    with protected(tmp_path, crash) as (gateway, _):
        gateway.model.scripts["fresh"] = [Step("read it now")]
        with gateway.client(session) as client:
            work = Work(gateway, "cut", client.send)
            client.send("[[fresh]] never read")
            with pytest.raises(ConnectionError):
                client.wait(lambda frame: False, GONE)
        gateway.kill()  # it is dead; this only waits for it
        back = time.time()
        gateway.start()
        until(lambda: gateway.model.requests_since(back, "fresh"), TURN, "it goes on")
        time.sleep(QUIET)
        assert len(gateway.model.requests_since(back, "fresh")) == 1
        assert work.alive == []
        assert not work.later(back), "the old run does not come back"
