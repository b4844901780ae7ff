"""Every way to say stop, on a page and on a channel: each ends, kills, gates and is answered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from clawstop import receipts
from clawstop.limits import ANYBODY, NOTICE, STUCK, WAITS
from product import Product

from .client import Client
from .conftest import Limited
from .gateway import Gateway
from .model import Step
from .protected import GONE, MENTIONED, TURN, Work, invoke, is_stopped, receipt_since
from .scenario import alive, transcript, until
from .telegram import GROUP, NATIVE, PERSON, Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]
WORDS = ["/stop", "stop", "停止", "中断", "/中断", "please cancel", "/abort", "arrêt", "그만!"]
DM = "agent:main:main"
WATCH = 3.0  # seconds in which a stop would show itself
AROUND = 2.0  # seconds before its receipt a stop was said, at most
SETTLED = 0.5  # seconds after a stop in which what was on its way still arrives


def is_over(work: Work, receipt: dict[str, Any], since: float) -> None:
    """The run is ended, its processes are dead, nothing of it goes on."""
    assert receipt["converged"], receipt["left"]
    assert work.alive == []
    killed = [process["command"] for process in receipt["processes"]]
    assert [command for command in killed if command.endswith(work.back)]  # its shell, at first
    assert [run["session"] for run in receipt["runs"]], "the receipt knows that a run was ended"
    assert not work.later(since + SETTLED)


# -- on a page


@pytest.mark.parametrize("word", WORDS)
def test_a_word_typed_on_a_page(running: Running, word: str) -> None:
    gateway, _ = running
    session = f"agent:dev1:page-{WORDS.index(word)}"
    with gateway.client(session) as client:
        work = Work(gateway, f"page{WORDS.index(word)}", client.send)
        before, seen = time.time(), client.mark()
        client.send(word)
        receipt = receipt_since(gateway, session, before)
        is_over(work, receipt, before)
        assert receipt["trigger"] == word
        assert invoke(gateway, session)[0] == 403
        line = until(lambda: said(client, seen, receipt["id"][:8]), GONE, "a line in chat")
        chinese = word.strip("/") in ("停止", "中断")
        assert line.startswith("已停止" if chinese else "Stopped")
        gateway.model.scripts["after"] = [Step("here I am")]
        client.wait_final(client.send("[[after]] hello")["runId"])
        last = gateway.model.requests[-1].messages
        assert not any(word == m.get("content") for m in last), "the word is no part of it"
        assert transcript(client)[-1].startswith("assistant: here I am")


def said(client: Client, since: int, words: str) -> str:
    """The first final text that holds these words."""
    for _, frame in client.events[since:]:
        payload = frame.get("payload") or {}
        if frame.get("event") == "chat" and payload.get("state") == "final":
            text = json.dumps(payload.get("message"), ensure_ascii=False)
            if words in text:
                parts = payload["message"]["content"]
                return str(parts if isinstance(parts, str) else parts[0]["text"])
    return ""


def test_who_may_not_read_is_shown_nothing(running: Running) -> None:
    gateway, _ = running
    session = "agent:dev1:unread"
    with gateway.client(session) as client, gateway.client(session, scopes=["pairing"]) as other:
        Work(gateway, "unread", client.send)
        before, seen = time.time(), client.mark()
        client.send("/stop")
        receipt = receipt_since(gateway, session, before)
        until(lambda: said(client, seen, receipt["id"][:8]), GONE, "a line in chat")
        assert not said(other, 0, receipt["id"][:8])


OPERATOR: dict[str, Callable[[Client, str], Any]] = {
    "chat.abort": lambda client, session: client.abort(session),
    "sessions.abort": lambda client, session: client.call("sessions.abort", {"key": session}),
}


@pytest.mark.parametrize("method", OPERATOR)
def test_an_operators_call(running: Running, method: str) -> None:
    gateway, _ = running
    session = f"agent:dev1:{method.replace('.', '-')}"
    with gateway.client(session) as client:
        work = Work(gateway, method, client.send)
        before = time.time()
        OPERATOR[method](client, session)
        is_over(work, receipt_since(gateway, session, before), before)
        assert invoke(gateway, session)[0] == 403


@pytest.mark.parametrize("word", ["/stop", "stop", "中断", "chat.abort"])
def test_a_session_without_a_run_but_with_a_process(running: Running, word: str) -> None:
    """The host answers the page that nothing was running, and no hook of it fires."""
    gateway, _ = running
    session = f"agent:dev1:idle-{ord(word[0])}-{len(word)}"
    process = f"sleep {next(Work.numbers)}"
    with gateway.client(session) as client:
        gateway.model.scripts["idle"] = [
            Step(tools=[("exec", {"command": process, "background": True})]),
            Step("started it"),
        ]
        client.wait_final(client.send("[[idle]] go")["runId"])
        assert alive(gateway, process)
        before = time.time()
        if word == "chat.abort":
            client.abort(session)
        else:
            client.send(word)
        receipt = receipt_since(gateway, session, before)
        assert receipt["converged"], receipt["left"]
        assert not alive(gateway, process)
        assert invoke(gateway, session)[0] == 403


@pytest.mark.parametrize("how", ["/new", "/reset", "sessions.reset"])
def test_a_conversation_begun_anew(running: Running, how: str) -> None:
    gateway, _ = running
    session = f"agent:dev1:anew-{how.strip('/').replace('.', '-')}"
    name = how.strip("/")
    with gateway.client(session) as client:
        work = Work(gateway, name, client.send)
        before = time.time()
        if how == "sessions.reset":
            client.call("sessions.reset", {"key": session})
        else:
            client.send(how)
        receipt = receipt_since(gateway, session, before)
        is_over(work, receipt, before)
        assert invoke(gateway, session)[0] == 200, "the fresh conversation is not stopped"
        gateway.model.scripts["fresh"] = [Step("fresh")]
        client.wait_final(client.send("[[fresh]] hello")["runId"])
        assert transcript(client)[-1].startswith("assistant: fresh")


# -- from a shell


@pytest.mark.parametrize("target", ["agent:dev1:shell-0", "dev1", "all", "everything"])
def test_the_command_line(running: Running, target: str) -> None:
    gateway, product = running
    session = "agent:dev1:shell-0"
    with gateway.client(session) as client:
        product.run(gateway.state_dir, "release", "everything")
        work = Work(gateway, f"shell-{target.split(':')[-1]}", client.send)
        before = time.time()
        done = product.run(gateway.state_dir, "stop", target)
        is_stopped(gateway, done)
        is_over(work, receipt_since(gateway, session, before), before)
        stopped = {"agent:dev1:shell-0": [session], "dev1": [session, "agent:dev1:other"]}
        for key in stopped.get(target, [session]):
            assert invoke(gateway, key)[0] == 403
        free = {"all": DM, "dev1": DM, "agent:dev1:shell-0": "agent:dev1:other"}
        if target in free:
            assert invoke(gateway, free[target])[0] == 200
        else:
            assert invoke(gateway, DM)[0] == 403
        assert product.run(gateway.state_dir, "release", "everything").returncode == 0


def test_a_stop_flag(running: Running) -> None:
    gateway, _ = running
    session = "agent:dev1:flag"
    with gateway.client(session) as client:
        work = Work(gateway, "flag", client.send)
        entries = client.call("sessions.list", {})["sessions"]
        id = next(entry["sessionId"] for entry in entries if entry["key"] == session)
        before = time.time()
        flag = gateway.state_dir / f"clawstop/flags/agent-stop-{id}.flag"
        flag.write_text(json.dumps({"sessionId": id, "timestamp": int(before * 1000)}))
        is_over(work, receipt_since(gateway, session, before), before)
        assert invoke(gateway, session)[0] == 403


# -- on a channel


def stop_on_telegram(
    running: Running,
    telegram: Telegram,
    limit: Limited,
    name: str,
    word: str,
    chat: int | None = None,
) -> dict[str, Any]:
    gateway, _ = running
    session = DM if chat is None else f"agent:main:telegram:group:{chat}"
    mention = "@scripted_bot " if chat == MENTIONED else ""
    work = Work(gateway, name, lambda text: telegram.say(mention + text, chat=chat))
    before = time.time()
    telegram.say(word, chat=chat)
    if word not in NATIVE and limit(WAITS):
        telegram.say("/stop", chat=chat)
    receipt = receipt_since(gateway, session, before)
    is_over(work, receipt, before)
    assert receipt["who"] == str(PERSON)
    return receipt


@pytest.mark.parametrize("word", WORDS)
def test_a_word_on_telegram(
    running: Running, telegram: Telegram, limit: Limited, word: str
) -> None:
    gateway, _ = running
    name = f"phone{WORDS.index(word)}"
    receipt = stop_on_telegram(running, telegram, limit, name, word)

    def lines() -> list[str]:
        return [text for text in telegram.shown() if receipt["id"][:8] in text]

    [line] = until(lines, GONE, "one line in chat")
    said = "/stop" if word not in NATIVE and limit(WAITS) else word
    chinese = said.strip("/") in ("停止", "中断")
    assert line.startswith("已停止" if chinese else "Stopped")
    texts = [call.text for call in telegram.outbound(receipt["at"] - AROUND)]
    notices = [text for text in texts if "aborted" in text or "couldn't" in text]
    assert len(notices) <= (1 if limit(NOTICE) else 0), texts
    gateway.model.scripts[f"{name}-after"] = [Step(f"{name} is back")]
    telegram.say(f"[[{name}-after]] hello")
    until(lambda: f"{name} is back" in telegram.shown(), TURN, "the next message is answered")


@pytest.mark.parametrize("word", ["/new", "/reset"])
def test_a_conversation_begun_anew_on_telegram(
    running: Running, telegram: Telegram, limit: Limited, word: str
) -> None:
    gateway, _ = running
    name = f"tg{word.strip('/')}"
    stop_on_telegram(running, telegram, limit, name, word)
    gateway.model.scripts[f"{name}-after"] = [Step(f"{name} is fresh")]
    telegram.say(f"[[{name}-after]] hello")
    until(lambda: f"{name} is fresh" in telegram.shown(), TURN, "the next message is answered")


def test_sessions_abort_of_a_channels_session(running: Running, telegram: Telegram) -> None:
    gateway, _ = running
    with gateway.client() as client:
        work = Work(gateway, "tg-rpc", telegram.say)
        before = time.time()
        client.call("sessions.abort", {"key": DM})
        is_over(work, receipt_since(gateway, DM, before), before)
        assert invoke(gateway, DM)[0] == 403


@pytest.mark.parametrize("word", ["/stop", "停止"])
def test_an_idle_chat_with_a_process(running: Running, telegram: Telegram, word: str) -> None:
    gateway, _ = running
    process = f"sleep {next(Work.numbers)}"
    name = f"tg-idle-{len(word)}"
    gateway.model.scripts[name] = [
        Step(tools=[("exec", {"command": process, "background": True})]),
        Step(f"{name} runs"),
    ]
    telegram.say(f"[[{name}]] go")
    until(lambda: f"{name} runs" in telegram.shown(), TURN, "it is started")
    before = time.time()
    telegram.say(word)
    receipt = receipt_since(gateway, DM, before)
    assert receipt["converged"], receipt["left"]
    assert not alive(gateway, process)


GROUPS = [("中断", GROUP), ("stop", GROUP), ("@scripted_bot stop", MENTIONED), ("/stop", MENTIONED)]


@pytest.mark.parametrize(("word", "chat"), GROUPS)
def test_a_word_in_a_group(
    running: Running, telegram: Telegram, limit: Limited, word: str, chat: int
) -> None:
    stop_on_telegram(running, telegram, limit, f"group{GROUPS.index((word, chat))}", word, chat)


STRANGERS = ["/stop", "stop", "中断", "/new", "@scripted_bot stop"]


@pytest.mark.parametrize("word", STRANGERS)
def test_a_stranger_in_a_group_stops_nothing(
    running: Running, telegram: Telegram, limit: Limited, word: str
) -> None:
    gateway, _ = running
    name = f"stranger{len(word)}{ord(word[-1])}"
    chat = GROUP - 10 - STRANGERS.index(word)
    session = f"agent:main:telegram:group:{chat}"
    gateway.model.scripts[name] = [
        Step(tools=[("exec", {"command": "sleep 3", "yieldMs": 120_000})]),
        Step(f"{name} got to its end"),
    ]
    before = time.time()
    telegram.say(f"[[{name}]] go", chat=chat)
    until(lambda: gateway.model.requests_since(before, name), TURN, "it runs")
    telegram.say(word, chat=chat, sender=77)
    end = f"{name} got to its end"
    if word in ("/stop", "/new") and limit(ANYBODY):
        time.sleep(WATCH)
        assert end not in telegram.shown(chat), "the host has ended it"
    elif word == "stop" and limit(STUCK):
        asked = partial(gateway.model.requests_since, before, name)
        until(lambda: len(asked()) == 2, TURN, "it goes on, and its answer is held up")
    else:
        until(lambda: end in telegram.shown(chat), TURN, "it was not stopped")
    assert invoke(gateway, session)[0] == 200, "it is not latched"
    told = receipts.read(gateway.state_dir / "clawstop/receipts.jsonl")
    ours = [one["trigger"] for one in told if session in one["sessions"]]
    anew = word == "/new" and limit(ANYBODY)  # begun anew by the host, which tells nobody's name
    assert ours in ([], ["/new"] if anew else []), "nor was it we who ended it"
