"""What waits or hangs at a stop goes with it: calls in flight, questions, deliveries, jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from product import Product

from .client import Client, RpcError
from .gateway import Gateway
from .hanging import LOOPBACK, Hanging
from .install import host
from .model import Step, ToolCall, execute, searched
from .protected import GONE, STUBBORN, TURN, Work, invoke, protected, receipt_since
from .scenario import alive, until
from .telegram import Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]
AT_ONCE = 1.0  # seconds in which a peer sees its connection close


@pytest.fixture(scope="module")
def hanging() -> Iterator[Hanging]:
    server = Hanging()
    yield server
    server.close()


@pytest.fixture(scope="module")
def telegram_here() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="module")
def drained(
    tmp_path_factory: pytest.TempPathFactory, hanging: Hanging, telegram_here: Telegram
) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("drain")
    with protected(
        root, telegram=telegram_here, beside=STUBBORN, overrides=hanging.config(host())
    ) as both:
        yield both


def stop(running: Running, target: str) -> tuple[float, dict[str, Any]]:
    """(when it was asked for, its receipt)"""
    gateway, product = running
    before = time.time()
    done = product.run(gateway.state_dir, "stop", target)
    assert done.returncode == 0, done.stdout + done.stderr
    return before, receipt_since(gateway, target, before)


# -- in flight


@pytest.mark.parametrize(
    "step", [Step(hang=True), Step("word " * 400, chunk_delay=0.05)], ids=["hanging", "streaming"]
)
def test_a_model_call_is_cut(drained: Running, step: Step) -> None:
    gateway, _ = drained
    name = "hang" if step.hang else "stream"
    session = f"agent:dev1:{name}"
    with gateway.client(session) as client:
        gateway.model.scripts[name] = [step]
        begun = time.time()
        client.send(f"[[{name}]] go")
        [request] = until(lambda: gateway.model.requests_since(begun, name), TURN, "a request")
        time.sleep(0.3)
        stop(drained, session)
        acknowledged = time.time()
        until(lambda: request.ended, GONE, "the model's connection is closed")
        assert request.ended is not None
        assert request.ended < acknowledged + AT_ONCE
        assert request.outcome.startswith("client-gone")
        assert gateway.model.requests_since(begun, name) == [request], "and not tried again"


FETCHES = {
    "web_fetch": "web_fetch",
    "hang_politely": "hang_politely",
    "hang_deaf": "hang_deaf",
    "mcp": "hanging__forever",
}


FETCHED = pytest.mark.since(LOOPBACK, "web_fetch is not let onto this machine")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=FETCHED if kind == "web_fetch" else ()) for kind in FETCHES]
)
def test_a_tool_in_flight(drained: Running, hanging: Hanging, kind: str) -> None:
    gateway, _ = drained
    session = f"agent:dev1:{kind.replace('_', '-')}"
    args = {} if kind == "mcp" else {"url": f"{hanging.url}/{kind}"}
    with gateway.client(session) as client:
        gateway.model.scripts[kind] = [Step(tools=[searched(FETCHES[kind], **args)]), Step("no")]
        seen = len(hanging.visits)
        client.send(f"[[{kind}]] go")
        until(lambda: len(hanging.visits) > seen, TURN, "the tool has called")
        before, receipt = stop(drained, session)
        acknowledged = time.time()
        assert receipt["converged"], receipt["left"]
        visit = hanging.visits[seen]
        if kind == "hang_deaf":  # nobody can end it: that is said
            names = {call["tool"]: call["outcome"] for call in receipt["tools"]}
            assert names["hang_deaf"] == "outcome unknown"
        elif kind == "mcp":  # its server is told, and may keep the connection
            until(lambda: hanging.cancelled and hanging.cancelled[-1] > before, GONE, "told")
            assert hanging.cancelled[-1] < acknowledged + AT_ONCE
        else:
            until(lambda: visit.gone, GONE, "the connection is closed")
            assert visit.gone is not None
            assert visit.gone < acknowledged + AT_ONCE
        assert len(gateway.model.requests_since(before, kind)) == 0


# -- questions


def test_a_pending_approval_is_denied(drained: Running) -> None:
    gateway, _ = drained
    session = "agent:dev1:approval"
    caps = ["approvals", "exec-approvals", "plugin-approvals"]
    with gateway.client(session, caps=caps) as client:
        gateway.model.scripts["first"] = [Step("hi")]
        client.wait_final(client.send("[[first]] hello")["runId"])
        client.call("sessions.patch", {"key": session, "permissionMode": "guarded"})
        gateway.model.scripts["asks"] = [Step(tools=[execute("touch approved")]), Step("no")]
        client.send("[[asks]] go")

        def pending() -> list[dict[str, Any]]:
            listed = client.call("exec.approval.list", {})
            rows = listed if isinstance(listed, list) else listed.get("approvals", [])
            return [row for row in rows if row["request"]["sessionKey"] == session]

        [question] = until(pending, TURN, "a question")
        _, receipt = stop(drained, session)
        assert receipt["converged"], receipt["left"]
        assert pending() == []
        decision = {"id": question["id"], "decision": "allow-once"}
        with pytest.raises(RpcError):
            client.call("exec.approval.resolve", decision)
        time.sleep(1)
        assert not (gateway.workspace("dev1") / "approved").exists()


# -- jobs


def job(name: str, **more: Any) -> ToolCall:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    turn = {"kind": "agentTurn", "message": f"[[{name}]] again"}
    schedule = {"kind": "at", "at": at}
    return searched(
        "automations",
        action="add",
        job={"name": name, "schedule": schedule, "sessionTarget": "isolated", "payload": turn}
        | more,
    )


def test_a_job_that_the_stopped_run_made_is_turned_off_and_comes_back(drained: Running) -> None:
    gateway, product = drained
    session = "agent:dev1:jobs"

    def enabled(client: Client) -> dict[str, bool]:
        listed = client.call("cron.list", {"includeDisabled": True})["jobs"]
        return {job["name"]: job["enabled"] for job in listed if "remind" in job["name"]}

    with gateway.client(session) as client:
        front = f"sleep {next(Work.numbers)}"
        gateway.model.scripts["makes"] = [
            Step(tools=[job("remind me")]),
            Step(tools=[execute(front)]),
        ]
        client.send("[[makes]] go")
        until(lambda: alive(gateway, front), TURN, "it made the job and went on")
        assert enabled(client) == {"remind me": True}
        _, receipt = stop(drained, session)
        assert enabled(client) == {"remind me": False}
        [row] = receipt["drained"]["jobs"]
        assert row["outcome"] == "off"
        assert "remind me" in row["about"]
        client.call("cron.run", {"id": row["id"], "mode": "force"})
        time.sleep(3)
        assert not gateway.model.requests_since(0, "remind"), "nor can it be forced to run"
        done = product.run(gateway.state_dir, "restore", receipt["id"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert enabled(client) == {"remind me": True}


# -- deliveries


def test_a_message_that_was_not_delivered_yet_never_is(
    drained: Running, telegram_here: Telegram
) -> None:
    gateway, _ = drained
    gateway.model.scripts["late"] = [Step("too late to say")]
    telegram_here.refuse("sendMessage")
    telegram_here.say("[[late]] go")
    until(lambda: telegram_here.refused("too late to say"), TURN, "it was tried once")
    before, receipt = stop(drained, "agent:main:main")
    telegram_here.refuse()
    time.sleep(10)
    assert "too late to say" not in telegram_here.shown()
    assert [call for call in telegram_here.outbound(before + 1) if "too late" in call.text] == []
    assert [row["about"] for row in receipt["drained"]["outbound"]] == ["too late to say"]


# -- through tool search


def test_the_gate_holds_for_a_tool_behind_tool_search(drained: Running) -> None:
    gateway, _ = drained
    session = "agent:dev1:search"
    with gateway.client(session) as client:
        gateway.model.scripts["search"] = [Step(tools=[searched("session_status")]), Step("ok")]
        client.wait_final(client.send("[[search]] go")["runId"])
        assert invoke(gateway, session)[0] == 200
        _, receipt = stop(drained, session)
        assert "session_status" in [call["tool"] for call in receipt["tools"]]
