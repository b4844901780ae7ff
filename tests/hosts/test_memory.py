"""Memory on a real gateway: after a stop the model sees nothing of the task, after a restore all of
it; and what came before is never touched."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from clawstop.limits import WAITS
from product import Product, crash_at

from .client import Client
from .conftest import Limited
from .gateway import Gateway
from .model import Step, execute, searched
from .protected import GONE, TURN, last_receipt, protected, receipt_since
from .scenario import alive, in_files, until
from .telegram import Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.slow, pytest.mark.timeout(300)]
Running = tuple[Gateway, Product]
NUMBERS = itertools.count(61000)


def history(client: Client, session: str) -> list[dict[str, Any]]:
    """What a person sees of the conversation, but for lines of clawstop's."""
    (rows,) = until(lambda: _history(client, session), GONE, "the history can be read")
    for row in rows:  # where the host's own index has it
        row.get("__openclaw", {}).pop("transcriptPosition", None)
    return [row for row in rows if row.get("model") != "gateway-injected"]


def _history(client: Client, session: str) -> tuple[list[dict[str, Any]]] | None:
    try:
        return (client.call("chat.history", {"sessionKey": session})["messages"],)
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
        back = history(client, session)
        assert back[: len(during)] == during
        late = {row["role"] for row in back[len(during) :]}  # what the host wrote at the abort
        assert late <= ({"toolResult", "assistant"} if gateway.host.before("2026.9.1") else set())
        text = asked(gateway, client, session, "after")
        assert traces(text, "first") == ["TASK", "SAID", "OUTPUT", "TOOL"]
        assert "BEFORE-early" in text


def forgotten(gateway: Gateway, session: str, since: float) -> dict[str, Any]:
    """The receipt of a stop that took something out of the session's memory."""
    receipt = receipt_since(gateway, session, since)
    assert receipt["converged"], receipt["left"]
    assert session in [move["session"] for move in receipt["memory"] if "did" in move], receipt
    return receipt


def test_on_a_channel_and_back_by_a_word_there(
    running: Running, telegram: Telegram, limit: Limited
) -> None:
    gateway, _ = running
    session, scripts = "agent:main:main", gateway.model.scripts
    sleep = f"sleep {next(NUMBERS)}"
    scripts["tg-early"] = [Step("EARLY-ANSWER")]
    scripts["tg-task"] = [Step("SAID-tg", tools=[execute(sleep)])]
    scripts["tg-next"] = [Step("NEXT-ANSWER")]
    scripts["tg-last"] = [Step("LAST-ANSWER")]
    telegram.say("[[tg-early]] hello")
    until(lambda: "EARLY-ANSWER" in telegram.shown(), TURN, "an answer")
    telegram.say("[[tg-task]] TASK-tg")
    until(lambda: alive(gateway, sleep), TURN, "the tool runs")
    since = time.time()
    telegram.say("/stop")
    receipt = forgotten(gateway, session, since)
    until(lambda: receipt["id"][:8] in " ".join(telegram.shown()), GONE, "the person is told")
    telegram.say("/restore")
    until(lambda: "remembers the task again" in " ".join(telegram.shown()), GONE, "it is back")
    telegram.say("[[tg-next]] and now")
    until(lambda: "NEXT-ANSWER" in telegram.shown(), TURN, "an answer")
    text = json.dumps(gateway.model.requests_since(since, "tg-next")[0].messages)
    assert traces(text, "tg") == ["TASK", "SAID"]
    assert "/restore" not in text

    telegram.say("/restore")
    until(lambda: "is back already" in " ".join(telegram.shown()), GONE, "a clear answer")
    scripts["tg-task"] = [Step("SAID-tg2", tools=[execute(sleep)])]
    telegram.say("[[tg-task]] TASK-tg2")
    until(lambda: alive(gateway, sleep), TURN, "the tool runs")
    since = time.time()
    telegram.say("停止" if limit(WAITS) else "中断")
    forgotten(gateway, session, since)
    # To who answers a message the host shows what else was said there.
    telegram.say("[[tg-last]] and now", quote="hello")
    until(lambda: "LAST-ANSWER" in telegram.shown(), TURN, "an answer")
    text = json.dumps(gateway.model.requests_since(since, "tg-last")[0].messages)
    assert traces(text, "tg2") == []
    assert "NEXT-ANSWER" in text
    telegram.say("/restore")
    until(lambda: "/restore --force" in " ".join(telegram.shown()), GONE, "it asks first")


def test_an_idle_chat_is_not_told_to_go_on(running: Running, telegram: Telegram) -> None:
    """The host would: that a run was interrupted, and to continue the unfinished work."""
    gateway, _ = running
    gateway.model.scripts["idle-tg"] = [Step("IDLE-ANSWER")]
    gateway.model.scripts["idle-tg-next"] = [Step("IDLE-NEXT")]
    telegram.say("[[idle-tg]] hello")
    until(lambda: "IDLE-ANSWER" in telegram.shown(), TURN, "an answer")
    time.sleep(1.5)
    since = time.time()
    telegram.say("/stop")
    receipt = receipt_since(gateway, "agent:main:main", since)
    assert receipt["memory"] == []
    until(lambda: receipt["id"][:8] in " ".join(telegram.shown()), GONE, "the person is told")
    telegram.say("[[idle-tg-next]] and now")
    until(lambda: "IDLE-NEXT" in telegram.shown(), TURN, "an answer")
    text = json.dumps(gateway.model.requests_since(since, "idle-tg-next")[0].messages)
    assert "interrupted" not in text
    assert "IDLE-ANSWER" in text


def test_each_session_of_an_agent_has_its_own(running: Running) -> None:
    gateway, product = running
    sessions = ["agent:dev1:own-1", "agent:dev1:own-2"]
    idle = "agent:dev1:own-idle"
    with gateway.client() as client:
        for number, session in enumerate(sessions):
            talk(gateway, client, session, f"own{number}")
        talk(gateway, client, idle, "own-idle")
        before = {session: history(client, session) for session in (*sessions, idle)}
        for number, session in enumerate(sessions):
            task(gateway, client, session, f"task{number}")
        done = product.json(gateway.state_dir, "stop", "dev1")
        assert done["converged"], done["left"]
        assert {move["session"] for move in done["memory"]} == set(sessions)
        assert {session: history(client, session) for session in before} == before
        for number, session in enumerate(sessions):
            assert traces(asked(gateway, client, session, f"next{number}"), f"task{number}") == []
        product.run(gateway.state_dir, "release", "dev1")


@pytest.mark.since("2026.8.1", "a page cannot say that its message shall be steered in")
def test_what_was_steered_in_belongs_to_the_task(running: Running) -> None:
    gateway, _ = running
    session = "agent:dev1:steered"
    sleep, short = f"sleep {next(NUMBERS)}", f"sleep 3.{next(NUMBERS)}"
    with gateway.client(session) as client:
        talk(gateway, client, session, "steered-early")
        before = history(client, session)
        gateway.model.scripts["steered"] = [
            Step(tools=[execute(short)]),
            Step(tools=[execute(sleep)]),
        ]
        client.send("[[steered]] TASK-steered", session)
        until(lambda: alive(gateway, short), TURN, "the first tool runs")
        client.send("[[steered]] SAID-steered, by the way", session, queueMode="steer")
        until(lambda: alive(gateway, sleep), TURN, "the second tool runs")
        assert "SAID-steered" in json.dumps(history(client, session))
        since = time.time()
        client.send("/stop", session)
        receipt = forgotten(gateway, session, since)
        assert history(client, session) == before
        (move,) = receipt["memory"]
        assert traces(Path(move["backup"]).read_text(), "steered") == ["TASK", "SAID"]
        assert traces(asked(gateway, client, session, "steered-next"), "steered") == []


def test_text_that_was_on_its_way_is_forgotten_too(running: Running) -> None:
    """The host writes what was said so far after the run has ended."""
    gateway, _ = running
    session = "agent:dev1:streaming"
    with gateway.client(session) as client:
        talk(gateway, client, session, "streaming-early")
        before = history(client, session)
        words = "SAID-streaming " * 200
        gateway.model.scripts["streaming"] = [Step(words, chunk_delay=0.1)]
        mark = client.mark()
        client.send("[[streaming]] TASK-streaming", session)
        until(lambda: "SAID-streaming" in str(client.events[mark:]), TURN, "it is being said")
        since = time.time()
        client.send("/stop", session)
        forgotten(gateway, session, since)
        time.sleep(2)  # nothing comes late
        assert history(client, session) == before
        assert traces(asked(gateway, client, session, "streaming-next"), "streaming") == []


def test_a_subagents_session_goes_with_the_task(running: Running) -> None:
    gateway, _ = running
    session = "agent:dev1:spawning"
    sleep = f"sleep {next(NUMBERS)}"
    scripts = gateway.model.scripts
    scripts["spawning"] = [
        Step(tools=[searched("sessions_spawn", task="[[spawned]] TASK-spawned")]),
        Step(tools=[execute(f"sleep {next(NUMBERS)}")]),
    ]
    scripts["spawned"] = [Step("SAID-spawned", tools=[execute(sleep)])]
    with gateway.client(session) as client:
        client.send("[[spawning]] TASK-spawning", session)
        until(lambda: alive(gateway, sleep), TURN, "the child is at work")
        since = time.time()
        client.send("/stop", session)
        receipt = forgotten(gateway, session, since)
        children = [key for key in receipt["sessions"] if "subagent" in key]
        assert children
        assert {move["session"] for move in receipt["memory"]} == {session, *children}
        assert "TASK-spawned" not in json.dumps(history(client, children[0]))
        assert history(client, session) == []
        assert traces(asked(gateway, client, session, "spawning-next"), "spawning") == []


@pytest.mark.parametrize("word", ["/stop --keep", "停止 --keep"])
def test_the_person_may_want_it_to_be_remembered(running: Running, word: str) -> None:
    gateway, _ = running
    name = f"keep{len(word)}"
    session = f"agent:dev1:{name}"
    with gateway.client(session) as client:
        sleep = task(gateway, client, session, name)
        since = time.time()
        client.send(word, session)
        receipt = receipt_since(gateway, session, since)
        assert receipt["converged"], receipt["left"]
        assert receipt["memory"] == []
        assert not alive(gateway, sleep)
        assert "TASK" in traces(asked(gateway, client, session, f"{name}-next"), name)


def test_the_stop_of_an_idle_session_removes_nothing(running: Running) -> None:
    gateway, product = running
    session = "agent:dev1:memory-idle"
    with gateway.client(session) as client:
        talk(gateway, client, session, "idle-early")
        before = history(client, session)
        since = time.time()
        client.send("/stop", session)
        assert receipt_since(gateway, session, since)["memory"] == []
        assert history(client, session) == before
        done = product.json(gateway.state_dir, "stop", session)
        assert done["memory"] == [], "it was finished"
        done = product.json(gateway.state_dir, "stop", session, "--turns", "1")
        assert [move["did"] for move in done["memory"]] == ["remove"]
        assert history(client, session) == []


def test_what_was_begun_anew_does_not_go_back(running: Running) -> None:
    """The host would move nothing, and not say so."""
    gateway, product = running
    session = "agent:dev1:anew"
    with gateway.client(session) as client:
        task(gateway, client, session, "anew")
        since = time.time()
        client.send("/stop", session)
        receipt = forgotten(gateway, session, since)
        client.call("sessions.reset", {"key": session})
        talk(gateway, client, session, "anew-talk")
        now = history(client, session)
        gone_on = ("has gone on", "was begun anew", "is not what it was")
        for options, why in [((), gone_on), (("--force",), ("begun anew", "is not there"))]:
            done = product.run(gateway.state_dir, "restore", receipt["id"], *options)
            assert done.returncode == 1, done.stdout
            assert any(one in done.stderr for one in why), done.stderr
        assert history(client, session) == now
        assert "BEFORE-anew-talk" in asked(gateway, client, session, "anew-next")


def test_without_its_gateway_memory_waits_for_it(tmp_path: Path) -> None:
    """And an engine that dies right before the rollback does it later."""
    session = "agent:dev1:waits"
    crash = crash_at("rolled = await self._roll_back(request")
    with protected(tmp_path, *crash) as (gateway, product):
        with gateway.client(session) as client:
            talk(gateway, client, session, "waits-early")
            before = history(client, session)
            task(gateway, client, session, "waits")
            since = time.time()
            client.send("/stop", session)
            forgotten(gateway, session, since)
            assert (gateway.state_dir / "clawstop/crash0").exists()
            assert history(client, session) == before
            assert len(list(gateway.state_dir.glob("agents/dev1/interrupt-logs/*.jsonl"))) == 1
            task(gateway, client, session, "gone")
        gateway.kill()
        since = time.time()
        done = product.run(gateway.state_dir, "stop", "dev1")
        if in_files(gateway):  # nobody has to be asked
            assert done.returncode == 0, done.stdout
        else:
            assert done.returncode == 3
            assert "when the gateway is back" in done.stdout
        gateway.start()
        until(lambda: _removed(gateway, session, since), TURN, "it is done when it is back")
        time.sleep(10)  # the host loses a message that comes while it recovers from a restart
        with gateway.client(session) as client:
            assert history(client, session) == before
            assert traces(asked(gateway, client, session, "waits-next"), "gone") == []


def _removed(gateway: Gateway, session: str, since: float) -> bool:
    last = last_receipt(gateway)
    rows = last["memory"] if last and last["at"] > since else []
    return any(row["session"] == session and row.get("did") == "remove" for row in rows)
