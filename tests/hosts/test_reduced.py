"""Without the permission to read conversations, and with each mechanism taken out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from product import Patch

from .gateway import Gateway
from .model import Step, execute
from .processes import end
from .protected import TURN, Work, invoke, protected, receipt_since
from .scenario import alive, until
from .telegram import Telegram
from .test_drain import job

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

BRIEF = 6.0  # seconds in which a mechanism that is there has long done its work


def test_without_the_permission_gate_kill_words_and_abort_at_start_hold(tmp_path: Path) -> None:
    with protected(tmp_path, plugin_hooks=False) as (gateway, product):

        def reduced() -> list[str]:
            problems = product.json(gateway.state_dir, "status")["problems"]
            return [problem for problem in problems if problem.startswith("reduced: openclaw")]

        [told] = until(reduced, TURN, "status says so")
        assert "allowConversationAccess" in told
        doctor = product.run(gateway.state_dir, "doctor")
        assert (doctor.returncode, "reduced" in doctor.stdout) == (1, True)
        session = "agent:dev1:reduced"
        with gateway.client(session) as client:
            work = Work(gateway, "reduced", client.send)
            before = time.time()
            client.send("中断")
            receipt = receipt_since(gateway, session, before)
            assert receipt["converged"], receipt["left"]
            assert work.alive == []
            assert invoke(gateway, session)[0] == 403
            time.sleep(BRIEF)
            assert work.later(before + 0.5) == [], "a wake is ended before it asks the model"


# -- red: each mechanism out of one gateway; none of them serves another's scenario

OUT = (
    Patch("hooks/openclaw/chat.js", "if (authorised && !ctx.media?.length)", "if (false)"),
    Patch("hooks/openclaw/frames.js", 'name === "message" && this._isServer &&', "false &&"),
    Patch("hooks/openclaw/host.js", 'event.reason === "fast_abort"', "false"),
    Patch("hooks/openclaw/chat.js", '["new", "reset"].includes(anew)', "false"),
    Patch("hooks/openclaw/chat.js", "if (session && !typed)", "if (false)"),
    Patch(
        "hooks/openclaw/index.js",
        'const STOPPED = new Set(["stop", "rpc"]);',
        "const STOPPED = new Set();",
    ),
    Patch("skill/clawstop/engine.py", "for flag in flags.fresh(", "for flag in () and ("),
    Patch("hooks/openclaw/drain.js", "await cron.update(id, { enabled });", ""),
    Patch("hooks/openclaw/drain.js", "const match = stale(entry);", "const match = false;"),
    Patch("hooks/openclaw/shell.js", "return cage;\n", "return undefined;\n"),
    Patch("hooks/openclaw/index.js", "{ ...LAST, timeoutMs: FROZEN_MS }", "LAST"),
)


@pytest.fixture(scope="module")
def phone() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture(scope="module")
def bare(
    tmp_path_factory: pytest.TempPathFactory, phone: Telegram
) -> Iterator[tuple[Gateway, Any]]:
    # A word that is no order is a message, and would take over.
    options: dict[str, Any] = {"telegram": phone, "plugin_config": {"takeover": "off"}}
    with protected(tmp_path_factory.mktemp("bare"), *OUT, **options) as both:
        yield both


@pytest.mark.soak
@pytest.mark.parametrize("how", ["/stop", "中断", "chat.abort", "/new", "sessions.reset", "flag"])
def test_on_a_page_its_processes_live_on_without(bare: tuple[Gateway, Any], how: str) -> None:
    gateway, _ = bare
    name = f"red{how.strip('/').replace('.', '-')}"
    session = f"agent:dev1:{name}"
    with gateway.client(session) as client:
        work = Work(gateway, name, client.send)
        time.sleep(1)  # the host itself ends a process whose tool call has not returned yet
        if how == "flag":
            entries = client.call("sessions.list", {})["sessions"]
            id = next(entry["sessionId"] for entry in entries if entry["key"] == session)
            flag = gateway.state_dir / f"clawstop/flags/agent-stop-{id}.flag"
            flag.write_text(json.dumps({"timestamp": int(time.time() * 1000)}))
        elif how == "chat.abort":
            client.abort(session)
        elif how == "sessions.reset":
            client.call("sessions.reset", {"key": session})
        else:
            client.send(how)
        time.sleep(BRIEF)
        assert work.back in work.alive


@pytest.mark.soak
@pytest.mark.parametrize("word", ["/stop", "/new", "中断"])
def test_on_telegram_its_processes_live_on_without(
    bare: tuple[Gateway, Any], phone: Telegram, word: str
) -> None:
    gateway, product = bare
    work = Work(gateway, f"redphone{len(word)}", phone.say)
    time.sleep(1)
    phone.say(word)
    time.sleep(BRIEF)
    assert work.back in work.alive
    product.run(gateway.state_dir, "stop", "everything")
    product.run(gateway.state_dir, "release", "everything")


@pytest.mark.soak
def test_a_daemon_without_a_cookie_lives_on_without(bare: tuple[Gateway, Any]) -> None:
    gateway, product = bare
    session = "agent:dev1:reddaemon"
    needle = f"sleep {next(Work.numbers)}"
    daemon = f"(env -i setsid sh -c '({needle} &) ; :' >/dev/null 2>&1 &); sleep 0.3"
    gateway.model.scripts["reddaemon"] = [Step(tools=[execute(daemon)]), Step(hang=True)]
    with gateway.client(session) as client:
        client.send("[[reddaemon]] go")
        until(lambda: alive(gateway, needle, anywhere=True), TURN, "it is there")
        product.run(gateway.state_dir, "stop", session)
        left = alive(gateway, needle, anywhere=True)
        for process in left:
            end(process)
        assert left, "only its cage knows whose it is"


@pytest.mark.soak
def test_a_frozen_tool_is_refused_after_a_while_without(bare: tuple[Gateway, Any]) -> None:
    gateway, product = bare
    session = "agent:dev1:redfrozen"
    late = Step(tools=[execute("touch redfrozen")], delay=3.0)
    gateway.model.scripts["redfrozen"] = [late, Step("done")]
    with gateway.client(session) as client:
        client.send("[[redfrozen]] go")
        until(lambda: gateway.model.requests_since(0, "redfrozen"), TURN, "it runs")
        product.run(gateway.state_dir, "freeze", session)
        until(
            lambda: len(gateway.model.requests_since(0, "redfrozen")) == 2,
            40,
            "the host gives up on the hook after 15 s, and tells the model",
        )
        product.run(gateway.state_dir, "release", session)
        time.sleep(BRIEF)
        assert not (gateway.workspace("dev1") / "redfrozen").exists()


@pytest.mark.soak
def test_a_job_stays_on_without(bare: tuple[Gateway, Any]) -> None:
    gateway, product = bare
    session = "agent:dev1:redjob"
    front = f"sleep {next(Work.numbers)}"
    gateway.model.scripts["redjob"] = [Step(tools=[job("nag")]), Step(tools=[execute(front)])]
    with gateway.client(session) as client:
        client.send("[[redjob]] go")
        until(lambda: alive(gateway, front), TURN, "it made the job and went on")
        product.run(gateway.state_dir, "stop", session)
        listed = client.call("cron.list", {"includeDisabled": True})["jobs"]
        assert [one["enabled"] for one in listed if one["name"] == "nag"] == [True]


@pytest.mark.soak
def test_an_undelivered_message_stays_without(bare: tuple[Gateway, Any], phone: Telegram) -> None:
    gateway, product = bare
    gateway.model.scripts["redlate"] = [Step("said too late")]
    phone.refuse("sendMessage")
    phone.say("[[redlate]] go")
    until(lambda: phone.refused("said too late"), TURN, "it was tried once")
    before = time.time()
    product.run(gateway.state_dir, "stop", "agent:main:main")
    phone.refuse()
    assert receipt_since(gateway, "agent:main:main", before)["drained"]["outbound"] == []
