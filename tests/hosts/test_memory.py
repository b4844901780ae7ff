"""Memory on a real gateway: after a stop the model sees nothing of the task, after a restore all of
it; and what came before is never touched."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from product import Product

from .client import Client
from .gateway import Gateway
from .model import Step, execute
from .protected import GONE, TURN, receipt_since
from .scenario import alive, until

pytestmark = [pytest.mark.gateway, pytest.mark.slow]
Running = tuple[Gateway, Product]
NUMBERS = itertools.count(61000)


def history(client: Client, session: str) -> list[dict[str, Any]]:
    """What a person sees of the conversation, but for lines of clawstop's."""
    rows = until(lambda: _history(client, session), GONE, "the history can be read")
    return [row for row in rows if row.get("model") != "gateway-injected"]


def _history(client: Client, session: str) -> list[dict[str, Any]] | None:
    try:
        return list(client.call("chat.history", {"sessionKey": session})["messages"])
    except Exception as error:
        if "rebuilding" in str(error):
            return None
        raise


def talk(gateway: Gateway, client: Client, session: str, name: str) -> None:
    """A turn that is over."""
    gateway.model.scripts[name] = [Step(f"ANSWER-{name}")]
    client.wait_final(client.send(f"[[{name}]] hello BEFORE-{name}", session)["runId"])


def task(gateway: Gateway, client: Client, session: str, name: str) -> str:
    """A turn in the middle of a tool; its words are all over the transcript."""
    sleep = f"sleep {next(NUMBERS)}"
    gateway.model.scripts[name] = [
        Step(f"SAID-{name}", tools=[execute(f"echo OUTPUT-{name}")]),
        Step(tools=[execute(f"{sleep}; echo TOOL-{name}")]),
        Step("never"),
    ]
    client.send(f"[[{name}]] TASK-{name}", session)
    until(lambda: alive(gateway, sleep), TURN, "the tool runs")
    return sleep


def asked(gateway: Gateway, client: Client, session: str, name: str) -> str:
    """The whole of the next request to the model."""
    gateway.model.scripts[name] = [Step(f"ANSWER-{name}")]
    since = time.time()
    client.wait_final(client.send(f"[[{name}]] and now", session)["runId"])
    requests = gateway.model.requests_since(since, name)
    assert requests
    return json.dumps(requests[0].messages)


def traces(text: str, name: str) -> list[str]:
    return [word for word in ("TASK", "SAID", "OUTPUT", "TOOL") if f"{word}-{name}" in text]


def test_after_a_stop_nothing_of_the_task_is_left_and_after_a_restore_all_of_it_is(
    running: Running,
) -> None:
    gateway, product = running
    session = "agent:dev1:memory"
    with gateway.client(session) as client:
        talk(gateway, client, session, "early")
        before = history(client, session)
        task(gateway, client, session, "first")
        during = history(client, session)
        since = time.time()
        client.send("/stop", session)
        receipt = receipt_since(gateway, session, since)
        assert receipt["converged"], receipt["left"]
        (move,) = receipt["memory"]
        assert move["did"] == "remove"
        assert history(client, session) == before, "what came before the task is unchanged"
        entries = [json.loads(line) for line in Path(move["backup"]).read_text().splitlines()]
        assert entries[0]["receipt"] == receipt["id"]
        assert traces(json.dumps(entries[1:]), "first") == ["TASK", "SAID", "OUTPUT", "TOOL"]
        assert Path(move["backup"]).stat().st_mode & 0o777 == 0o600
        status = product.json(gateway.state_dir, "status")
        (row,) = [row for row in status["sessions"] if row["session"] == session]
        assert row["standby"] is True

        done = product.run(gateway.state_dir, "restore")
        assert done.returncode == 0, done.stderr
        assert history(client, session) == during
        text = asked(gateway, client, session, "after")
        assert traces(text, "first") == ["TASK", "SAID", "OUTPUT", "TOOL"]
        assert "BEFORE-early" in text
