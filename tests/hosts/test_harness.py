"""The harness on a real gateway: turns, tools, a native stop, Telegram, two agents, a crash."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from .client import Client, RpcError
from .gateway import Gateway
from .install import HostUnavailable, host
from .model import Step, execute
from .scenario import alive, transcript, until
from .telegram import GROUP, Telegram

# Everything else here runs on it, and would be red too.
pytestmark = [pytest.mark.gateway, pytest.mark.soak, pytest.mark.timeout(300)]

TURN = 60.0  # seconds; the first turn of a fresh gateway takes about 10


@pytest.fixture(scope="module")
def telegram() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, telegram: Telegram) -> Iterator[Gateway]:
    try:
        release = host()
    except HostUnavailable as missing:
        pytest.skip(str(missing))
    root = tmp_path_factory.mktemp("gateway")
    with Gateway(root, release, agents=("main", "dev1"), telegram=telegram) as running:
        yield running


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as connected:
        yield connected


def test_a_turn_runs_its_tool_and_answers(gateway: Gateway, client: Client) -> None:
    proof = gateway.workspace() / "proof"
    gateway.model.scripts["turn"] = [
        Step("On it.", tools=[execute(f"echo done > {proof}")]),
        Step("All done."),
    ]
    before = time.time()
    run = client.send("[[turn]] go", "agent:main:turn")["runId"]
    _, final = client.wait_final(run)
    assert final["payload"]["state"] == "final"
    assert proof.read_text() == "done\n"
    seen = gateway.model.requests_since(before, "turn")
    assert [(request.step, request.outcome) for request in seen] == [(0, "done"), (1, "done")]
    assert "exec" in seen[0].tools
    lines = transcript(client, "agent:main:turn")
    assert lines[0] == "user: [[turn]] go"
    assert any("<toolCall exec>" in line for line in lines)
    assert lines[-1].startswith("assistant: All done.")


def test_a_native_stop_ends_a_foreground_exec(gateway: Gateway, client: Client) -> None:
    client.session = "agent:main:stopped"
    gateway.model.scripts["sleeper"] = [Step(tools=[execute("sleep 48211")]), Step("never said")]
    run = client.send("[[sleeper]] go")["runId"]
    until(lambda: alive(gateway, "sleep 48211"), TURN, "the sleep runs")
    assert alive(gateway, "sleep 48211", anywhere=True)
    assert client.send("/stop")["aborted"] is True
    _, final = client.wait_final(run)
    assert final["payload"]["state"] == "aborted"
    until(lambda: not alive(gateway, "sleep 48211"), 10, "the sleep is gone")
    assert "never said" not in "\n".join(transcript(client))


def test_a_hung_model_request_notices_the_hang_up(gateway: Gateway, client: Client) -> None:
    client.session = "agent:main:hung"
    gateway.model.scripts["hung"] = [Step(hang=True)]
    before = time.time()
    client.send("[[hung]] go")
    (request,) = until(lambda: gateway.model.requests_since(before, "hung"), TURN, "a request")
    client.abort()
    until(lambda: request.outcome.startswith("client-gone"), 10, "the model sees the hang-up")


def test_a_telegram_message_is_answered(gateway: Gateway, telegram: Telegram) -> None:
    gateway.model.scripts["dm"] = [Step("hello from the DM")]
    before = time.time()
    telegram.say("[[dm]] hi")
    until(lambda: telegram.shown() == ["hello from the DM"], TURN, "the answer in the DM")
    assert {call.method for call in telegram.outbound(before)} >= {"sendMessage"}


def test_a_group_message_is_answered_in_the_group(gateway: Gateway, telegram: Telegram) -> None:
    gateway.model.scripts["group"] = [Step("hello from the group")]
    before = time.time()
    telegram.say("[[group]] hi", chat=GROUP, sender=77)
    until(lambda: telegram.shown(GROUP) == ["hello from the group"], TURN, "the group's answer")
    assert not telegram.outbound(before, chat=77)


def test_two_agents_answer_separately(gateway: Gateway, client: Client) -> None:
    sessions = {name: f"agent:{name}:pair" for name in gateway.agents}
    for name in sessions:
        gateway.model.scripts[name] = [Step(tools=[execute("pwd > here")]), Step(f"I am {name}")]
    runs = [client.send(f"[[{name}]] who", key)["runId"] for name, key in sessions.items()]
    for run in runs:
        client.wait_final(run)
    for name, key in sessions.items():
        assert transcript(client, key)[-1].startswith(f"assistant: I am {name}")
        assert (gateway.workspace(name) / "here").read_text().strip() == str(
            gateway.workspace(name)
        )


def test_a_refused_call_is_an_rpc_error(client: Client) -> None:
    with pytest.raises(RpcError, match=r"no\.such\.method"):
        client.call("no.such.method")


def test_what_outlives_a_killed_gateway_is_reported_and_then_ended(
    gateway: Gateway, client: Client
) -> None:
    """The last test: it takes the gateway down."""
    command = "setsid nohup sleep 48212 >/dev/null 2>&1 & echo started"
    gateway.model.scripts["daemon"] = [Step(tools=[execute(command)]), Step("started")]
    client.wait_final(client.send("[[daemon]] go", "agent:main:daemon")["runId"])
    assert alive(gateway, "sleep 48212")
    gateway.kill()
    assert gateway.pid is None
    assert any("sleep 48212" in command for _, command in gateway.leftovers())
    gateway.restart()
    assert alive(gateway, "sleep 48212")
    gateway.stop()
    assert any("sleep 48212" in command for _, command in gateway.leftovers())
    assert not alive(gateway, "sleep 48212", anywhere=True)
