"""After a crash, where things go wrong: an engine that dies in between, a host that is early or
late, somebody else, a message that is told twice. Nothing is lost without a word, nothing runs
unasked."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from clawstop import cookies, crashes, recovery, wills
from clawstop.cookies import Owner
from clawstop.cuts import Cut, Stage
from clawstop.paths import Paths
from clawstop.verdicts import Evidence
from recovering import (
    PIDS,
    ROUTE,
    S,
    T,
    begin,
    forget_starts,
    gateway,
    hasten,
    now,
    quiet,
    resumed,
    said,
    stage_of,
    until,
)
from stage import played
from wire import bridge, engine

ABOUT = {"session": S, "sender": "42", "authorised": True, "route": ROUTE}
ASK = {"recovery": "ask"}


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    return paths


async def _never(*_: Any) -> Any:
    await asyncio.Event().wait()


# -- a host that is faster than the verdict


@played
async def test_the_host_waits_for_the_verdict(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as two:
            answer = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert answer["refusal"], "its person was not asked yet"


@played
async def test_a_verdict_that_takes_too_long_is_no_yes(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "JUDGE_SECONDS", 0.1)
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        monkeypatch.setattr(running.engine.recovery, "_judge", _never)
        async with gateway(place) as two:
            answer = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert "not judged yet" in answer["refusal"]


@played
async def test_also_when_it_has_waited_for_a_sweep(place: Paths) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(1, flush=True); time.sleep(60)"
    )
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        env = {**os.environ, cookies.VARIABLE: cookies.format(Owner(place.state_id, S, 1, "run"))}
        with subprocess.Popen(
            [sys.executable, "-c", deaf], env=env, stdout=subprocess.PIPE
        ) as stubborn:
            assert stubborn.stdout
            stubborn.stdout.readline()
            wills.write(place.wills, S, {"can_resume": False})
            async with gateway(place, pending=[S]) as two:
                answer = await two.result("run_start", run="h1", session=S, cause="recovery")
                assert stubborn.wait(10) != 0, "the sweep has ended it"
                assert answer["refusal"]


@played
async def test_a_message_of_ours_that_comes_late_begins_nothing(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            late = resumed(two)[0]["run"]
            await running.engine.commands.stop(None, {"target": S, "pid": 1})
            await begin(two, "r2", text="something else")
            await two.result("run_end", run="r2", session=S)
            answer = await two.result("run_start", run=late, session=S, cause="resume")
            assert answer["refusal"], "it was stopped, and what has run since changes nothing"


# -- an engine that dies in between


@played
async def test_an_engine_that_dies_before_it_has_judged_judges_afterwards(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = next(PIDS)
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            await one.result("run_start", run="c1", session="agent:dev1:cron:1:run:2", cause="cron")
        monkeypatch.setattr(running.engine.recovery, "_judge", _never)
        async with bridge(place, pid=pid, born=now(), config=ASK):
            await asyncio.sleep(0.3)
    async with engine(place), bridge(place, pid=pid, born=now(), config=ASK) as again:
        again.answers |= {"pending": lambda asked: [], "resume": None}
        await until(lambda: said(again))
        await quiet()
        assert resumed(again) == [], "its person is asked first, and a job is never resumed"


@played
async def test_an_engine_that_dies_while_it_sends_sends_again_under_the_same_name(
    place: Paths,
) -> None:
    pid = next(PIDS)
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=pid, born=now()) as two:
            two.answers |= {"pending": lambda asked: []}
            (there,) = running.engine.bridges
            there.resume = _never
            await until(lambda: stage_of(running) is Stage.RESUMED)
            cut = running.engine.store.cuts.get(S)
            assert cut is not None
    async with engine(place), bridge(place, pid=pid, born=now()) as again:
        again.answers |= {"pending": lambda asked: [], "resume": None}
        await until(lambda: resumed(again))
        assert resumed(again)[0]["run"] == cut.sent, "a host that knows it begins nothing twice"


@played
async def test_an_engine_that_was_away_when_the_run_ended(place: Paths) -> None:
    pid = next(PIDS)
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=pid, born=now()) as two:
            await two.result("run_start", run="h1", session=S, cause="recovery")
    async with engine(place) as running, bridge(place, pid=pid, born=now()):
        await until(lambda: stage_of(running) is Stage.DONE)


@played
async def test_an_engine_that_dies_while_it_takes_down_what_a_crash_left_loses_nothing(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]) as two:
            await two.result("run_start", run="h1", session=S, cause="recovery")
        forget_starts(running)

        def torn(_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as crash:
            crash.setattr(running.engine.store, "end_runs_but", torn)
            with pytest.raises(KeyboardInterrupt):
                running.engine.recovery.crashes.arrived("a gateway", [])
        async with gateway(place) as three:
            await until(lambda: resumed(three))
            assert "write the report" in resumed(three)[0]["message"]
            assert resumed(three)[0]["route"]["to"] == ROUTE["to"]


# -- a run that fails, a message that begins nothing


@played
async def test_a_run_that_fails_late_is_tried_again(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await two.result("run_start", run="h1", session=S, cause="recovery")
            await quiet(1.5)  # nobody looks any more
            await two.result("run_end", run="h1", session=S, finished=False)
            await until(lambda: resumed(two))


@played
async def test_a_message_of_ours_that_crashes_the_gateway_is_not_sent_for_ever(
    place: Paths,
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        sent = 0
        for _ in range(7):
            forget_starts(running)
            async with gateway(place) as two:
                await until(lambda two=two: resumed(two) or said(two))  # type: ignore[misc]
                sent += len(resumed(two))
        assert sent == recovery.TRIES
        assert stage_of(running) is Stage.SUSPENDED


@played
async def test_one_that_cannot_be_judged_is_asked_about_and_holds_nobody_up(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            await begin(one, "r2", T)
        real: Callable[[Cut], Coroutine[Any, Any, Evidence]] = running.engine.recovery._evidence

        async def once(cut: Cut) -> Evidence:
            if cut.session == T:
                raise OSError("the disk is gone")
            return await real(cut)

        monkeypatch.setattr(running.engine.recovery, "_evidence", once)
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            await quiet()
            assert [told["session"] for told in resumed(two)] == [S]
            assert stage_of(running, T) is Stage.ASKED


@played
async def test_crashes_of_yesterday_are_no_crash_loop(place: Paths) -> None:
    async with engine(place) as running:
        for number in range(crashes.RESTLESS[0]):
            running.engine.store.note(crashes.STARTS, time.time() - 86400 + number, 3)
        async with gateway(place) as one:
            await one.result("message", **ABOUT, id="m1", text="buy milk")
        async with gateway(place) as two:
            await until(lambda: resumed(two))


# -- nobody's words are lost


@played
async def test_a_message_that_waits_for_a_long_task_is_not_forgotten(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            await until(lambda: running.engine.recovery._looked)
            other = {**ABOUT, "sender": "7", "group": True, "age_ms": 700_000}
            await one.result("message", **other, id="m2", text="and the other thing")
            running.engine.tick()
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            await until(
                lambda: "and the other thing" in resumed(two)[0]["message"] + f"{said(two)}"
            )


@played
async def test_a_message_outlives_a_machine_that_was_off_for_a_while(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await one.result("message", **ABOUT, id="m1", text="buy milk", age_ms=700_000)
        async with gateway(place) as two:
            running.engine.tick()
            await until(lambda: resumed(two))


@pytest.mark.parametrize("why", ["off", "another tool"])
def test_a_message_that_nobody_goes_on_with_is_asked_for_again(
    place: Paths, tmp_path: Path, why: str
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    if why == "another tool":
        mark = {"pending": True, "sessionKey": S}
        (workspace / "restart-resume.json").write_text(json.dumps(mark))

    async def scenario() -> None:
        async with engine(place):
            async with gateway(place) as one:
                await one.result("message", **ABOUT, id="m1", text="buy milk")
            about = {"agents": ["main"], "workspaces": {"main": str(workspace)}}
            config = {"recovery": "off"} if why == "off" else {}
            async with bridge(place, pid=next(PIDS), born=now(), config=config, **about) as two:
                await until(lambda: said(two))
                assert "send it again: buy milk" in said(two)[0]
                assert resumed(two) == []

    asyncio.run(scenario())


@played
async def test_a_message_that_waited_for_the_one_before_is_not_that_one(place: Paths) -> None:
    """It came before the old run ended, and was cut off before the host noted its own."""
    sessions = place.openclaw / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True)
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r0", text="first task")
            await one.result("message", **ABOUT, id="m1", text="buy milk")
            await asyncio.sleep(0.05)
            noted = {"sessionId": "s", "status": "done", "endedAt": now()}
            (sessions / "sessions.json").write_text(json.dumps({S: noted}))
            words = [{"type": "text", "text": "First task is done."}]
            last = {"role": "assistant", "content": words, "stopReason": "stop"}
            entry = {"type": "message", "id": "e", "timestamp": now(), "message": last}
            (sessions / "s.jsonl").write_text(json.dumps(entry) + "\n")
            await one.result("run_end", run="r0", session=S)
            await asyncio.sleep(0.05)
            about = {"cause": "message", "message": "m1", "asked": now()}
            await one.result("run_start", run="r1", session=S, **about)
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            assert "buy milk" in resumed(two)[0]["message"]


@played
async def test_a_message_that_is_told_again_after_two_crashes_is_not_swallowed(
    place: Paths,
) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        for _ in range(2):  # the first time the gateway dies before it is a run
            async with gateway(place, pending=[S]) as two:
                told = await two.result("message", **ABOUT, id="m-r1", text="write the report")
                assert not told["continued"]


@played
async def test_a_message_that_is_told_again_while_its_run_lives_is_read_once(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
            await one.result("message", **ABOUT, id="m-r1", text="write the report")
            await one.result("run_end", run="r1", session=S)
        async with gateway(place) as two:
            await quiet(1.5)
            assert resumed(two) + said(two) == []


@played
async def test_who_writes_first_is_told_of_what_was_never_begun(place: Paths) -> None:
    """The host drops a message that was not answered for the one behind it."""
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1", text="send the report to Ann")
        async with gateway(place, pending=[S]) as two:
            await begin(two, "r2", text="and hurry")
            await until(lambda: said(two))
            assert "send it again: send the report to Ann" in said(two)[0]


@played
async def test_a_run_of_nobodys_does_not_take_the_place_of_words(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]) as two:
            await two.result("run_start", run="w1", session=S, cause="unknown")
        forget_starts(running)
        async with gateway(place) as three:
            await until(lambda: resumed(three))
            assert "write the report" in resumed(three)[0]["message"]


@played
async def test_a_picture_without_words_is_asked_for_again(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            about = {**ABOUT, "route": {**ROUTE, "media": True}}
            await one.result("message", **about, id="p1", text="")
        async with gateway(place) as two:
            await until(lambda: said(two))
            assert "a message without words" in said(two)[0]


@played
async def test_a_run_whose_pictures_nobody_has_seen_is_not_gone_on_with_by_its_words(
    place: Paths,
) -> None:
    async with engine(place):
        async with gateway(place) as one:
            about = {**ABOUT, "route": {**ROUTE, "media": True}}
            await one.result("message", **about, id="p1", text="what is this?")
            run = {"run": "r1", "cause": "message", "message": "p1"}
            await one.result("run_start", session=S, **run)
        async with gateway(place) as two:
            await until(lambda: said(two))
            assert "what is this?" in said(two)[0]
            await quiet()
            assert resumed(two) == []


@played
async def test_what_this_gateway_took_in_is_its_own_to_answer(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1", T)
        async with gateway(place) as two:
            await two.result("message", **ABOUT, id="m1", text="buy milk")
            await until(lambda: resumed(two))
            run = {"run": resumed(two)[0]["run"], "session": T, "cause": "resume"}
            await two.result("run_start", **run)
            await quiet()
            assert [told["session"] for told in resumed(two)] == [T]
            assert said(two) == []


@played
async def test_a_clock_that_was_put_back_loses_no_message(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await one.result("message", **ABOUT, id="m1", text="buy milk")
        async with bridge(place, pid=next(PIDS), born=now() - 3600_000) as two:
            two.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: said(two) + [told["message"] for told in resumed(two)])


# -- questions


@played
async def test_a_question_is_put_again_on_the_next_gateway(place: Paths) -> None:
    """Its channel may not have been up."""
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        pid = next(PIDS)
        async with bridge(place, pid=pid, born=now(), config=ASK) as two:
            await until(lambda: said(two))
        await asyncio.sleep(0.05)
        async with bridge(place, pid=pid, born=now(), config=ASK) as same:
            await quiet()
            assert said(same) == [], "only the plugin was loaded again"
        await asyncio.sleep(0.05)
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as three:
            await until(lambda: said(three))


@played
async def test_what_has_waited_for_too_long_by_the_next_gateway_is_asked_about(
    place: Paths,
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]):
            await until(lambda: stage_of(running) is Stage.FOUND)
        running.engine.recovery._clock = lambda: time.time() + 3600
        async with gateway(place, pending=[S]) as three:
            await until(lambda: said(three))
            assert resumed(three) == []


@played
async def test_a_yes_while_no_gateway_runs_is_kept(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as two:
            await until(lambda: said(two))
        await asyncio.sleep(0.05)
        yes = {"yes": True, "session": S, "pid": os.getpid(), "who": "me"}
        await running.engine.commands.recover(None, yes)
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as three:
            three.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: resumed(three))
            assert said(three) == []


@played
async def test_what_only_the_host_has_noted_goes_on_when_its_operator_says_so(
    place: Paths,
) -> None:
    sessions = place.openclaw / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "sessions.json").write_text(json.dumps({S: {"sessionId": "s"}}))
    words = {"role": "user", "content": [{"type": "text", "text": "write the report"}]}
    entry = {"type": "message", "id": "e", "timestamp": now(), "message": words}
    (sessions / "s.jsonl").write_text(json.dumps(entry) + "\n")
    async with engine(place) as running, gateway(place) as one:
        await quiet()
        assert resumed(one) == [], "by itself only what we know of goes on"
        yes = {"yes": True, "session": S, "pid": os.getpid(), "who": "me"}
        asked = asyncio.create_task(running.engine.commands.recover(None, yes))
        await until(lambda: resumed(one))
        run = {"run": resumed(one)[0]["run"], "session": S, "cause": "resume"}
        assert (await one.result("run_start", **run))["refusal"] is None
        await asked


# -- whose task it is


@played
async def test_in_a_direct_chat_that_two_share_the_task_is_its_own_senders(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as two:
            await until(lambda: said(two))
            about = {"session": S, "yes": True, "lang": "en"}
            told = await two.result("answer", **about, sender="7")
            assert told["lines"] == ["only who gave the task can say that"]
            await two.result("message", **{**ABOUT, "sender": "7"}, id="m7", text="and me?")
            assert stage_of(running) is Stage.ASKED
            await two.result("answer", **about, sender="at the page", page=True)
            assert stage_of(running) is Stage.FOUND, "who sits at the machine may"


@played
async def test_a_run_that_goes_on_is_still_whose_it_was(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]) as two:
            answer = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert (answer["sender"], answer["page"]) == ("42", False)


# -- stops and times


@played
async def test_what_waits_to_be_delivered_by_a_gateway_that_was_away_is_taken_away(
    place: Paths,
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        await running.engine.commands.stop(None, {"target": S, "pid": 1})
        for times in (1, 0):
            async with gateway(place) as two:
                await quiet(0.3)
                drains = [asked for asked in two.asked if asked["method"] == "drain"]
                assert [asked["params"]["scopes"] for asked in drains] == [[S]] * times


@played
async def test_a_crash_is_no_later_because_something_else_kept_the_engine_up(
    place: Paths,
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        later = time.time() + 7200
        running.engine._alive = 0
        running.engine._clock = running.engine.store._clock = lambda: later
        running.engine.tick()
        assert running.engine.store.last_alive < later


@played
async def test_no_tool_runs_while_a_sweep_takes_too_long(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SWEEP_SECONDS", 0.1)
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        monkeypatch.setattr(running.engine.recovery, "_sweep", _never)
        async with gateway(place) as two:
            answer = await two.result("tool", id="t1", run="r2", session=S, tool="exec")
            assert "try it again" in answer["refusal"]
