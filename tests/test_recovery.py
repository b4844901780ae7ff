"""After a crash: what was cut off goes on once, and what was stopped never does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from clawstop import cookies, crashes, receipts, recovery, wills
from clawstop.cookies import Owner
from clawstop.cuts import Stage
from clawstop.paths import Paths
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


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    return paths


# -- going on


@played
async def test_what_the_host_does_not_go_on_with_gets_one_message(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            (told,) = resumed(two)
            assert told["session"] == S
            assert told["route"]["to"] == ROUTE["to"], "where the person is"
            assert "write the report" in told["message"]
            run = told["run"]
            answer = await two.result("run_start", run=run, session=S, cause="resume")
            assert answer["refusal"] is None
            await quiet()
            assert len(resumed(two)) == 1
            await two.result("run_end", run=run, session=S)
            assert stage_of(running) is Stage.DONE
            refused = await two.result("run_start", run="late", session=S, cause="recovery")
            assert refused["refusal"], "the host is late: it went on already"
        async with gateway(place) as three:
            await quiet()
            assert resumed(three) == [], "what went on is over"


@played
async def test_what_the_host_goes_on_with_is_left_to_it_and_only_once(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]) as two:
            await asyncio.sleep(0.4)  # longer than for one that the host does not mean
            assert resumed(two) == []
            first = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert first["refusal"] is None
            again = await two.result("run_start", run="h2", session=S, cause="recovery")
            assert "went on already" in again["refusal"]
            await quiet(3.5)
            assert resumed(two) == []


@played
async def test_a_host_that_means_to_and_never_does_is_helped(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]) as two:
            await until(lambda: resumed(two))
            late = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert late["refusal"], "one of the two goes on, never both"


@played
async def test_a_message_that_no_run_has_read_goes_on(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            about = {"session": S, "sender": "42", "authorised": True}
            await one.result("message", **about, id="m1", text="buy milk", route=ROUTE)
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            assert "buy milk" in resumed(two)[0]["message"]
            run = resumed(two)[0]["run"]
            await two.result("run_start", run=run, session=S, cause="resume")
            again = await two.result("message", **about, id="m1", text="buy milk", route=ROUTE)
            assert again["continued"], "an open page sends it once more: it is not run twice"
            await quiet()
            assert len(resumed(two)) == 1


@played
async def test_several_that_no_run_has_read_go_on_together(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            about = {"session": S, "sender": "42", "authorised": True, "route": ROUTE}
            await one.result("message", **about, id="m1", text="buy milk")
            await one.result("message", **about, id="m2", text="and bread")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            assert "buy milk\n\nand bread" in resumed(two)[0]["message"]


@played
async def test_what_the_host_tells_again_is_the_hosts(place: Paths) -> None:
    async with engine(place) as running:
        about = {"session": S, "sender": "42", "authorised": True, "route": ROUTE}
        async with gateway(place) as one:
            await one.result("message", **about, id="m1", text="buy milk")
        async with gateway(place) as two:
            await two.result("message", **about, id="m1", text="buy milk")
            await two.result("run_start", run="r1", session=S, cause="message", message="m1")
            await quiet()
            assert resumed(two) + said(two) == []
            assert running.engine.store.cuts.every() == []


@played
async def test_what_came_behind_a_run_that_was_cut_off_goes_on_with_it(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
            about = {"session": S, "sender": "42", "authorised": True, "route": ROUTE}
            await one.result("message", **about, id="m2", text="and make it short")
        async with gateway(place, pending=[S]) as two:
            await until(lambda: resumed(two))
            told = resumed(two)[0]["message"]
            assert told.index("write the report") < told.index("and make it short")


@played
async def test_pictures_are_gone_so_the_person_is_asked_to_send_them_again(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            about = {"session": S, "sender": "42", "authorised": True, "id": "m1"}
            await one.result("message", **about, text="what is this?", route={**ROUTE, "media": 1})
        async with gateway(place) as two:
            await until(lambda: said(two))
            assert "send it again" in said(two)[0]
            assert resumed(two) == []


@played
async def test_a_person_who_writes_first_is_not_answered_with_the_old_task(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]) as two:
            await begin(two, "r2", text="something else")
            late = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert late["refusal"]
            await two.result("run_end", run="r2", session=S)
            await quiet(3.5)
            assert resumed(two) == []


# -- never what was stopped


@played
async def test_what_was_stopped_does_not_go_on(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            await begin(one, "r2", T)
            await running.engine.commands.stop(None, {"target": S, "pid": 1})
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            await quiet()
            assert {told["session"] for told in resumed(two)} == {T}
            back = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert back["refusal"]


@pytest.mark.parametrize("when", ["before it is judged", "while it waits", "once it goes on"])
def test_a_stop_after_the_crash_is_a_stop(place: Paths, when: str) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            stop = running.engine.commands.stop
            async with gateway(place) as one:
                await begin(one, "r1")
            if when == "before it is judged":
                await stop(None, {"target": S, "pid": 1})
            async with gateway(place, pending=[S]) as two:
                await asyncio.sleep(0.1)
                if when == "once it goes on":
                    await two.result("run_start", run="h1", session=S, cause="recovery")
                if when != "before it is judged":
                    await stop(None, {"target": S, "pid": 1})
                await quiet(3.5)
                assert resumed(two) == []
                after = await two.result("run_start", run="h2", session=S, cause="recovery")
                assert after["refusal"]
            async with gateway(place) as three:
                await quiet()
                assert resumed(three) == [], "nor after the next crash"

    asyncio.run(scenario())


# -- again and again


@played
async def test_what_is_cut_off_again_and_again_is_suspended(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r0")
        for number in range(1, recovery.TIMES):
            forget_starts(running)
            async with gateway(place, pending=[S]) as one:
                await until(lambda: stage_of(running) is Stage.FOUND)
                run = {"run": f"r{number}", "session": S, "cause": "recovery"}
                assert (await one.result("run_start", **run))["refusal"] is None, number
        forget_starts(running)
        async with gateway(place, pending=[S]) as one:
            await until(lambda: stage_of(running) is Stage.FOUND)
            await one.result("run_start", run="r3", session=S, cause="recovery")
        forget_starts(running)
        async with gateway(place, pending=[S]) as one:
            await until(lambda: said(one))
            assert "again and again" in said(one)[0]
            refused = await one.result("run_start", run="r4", session=S, cause="recovery")
            assert refused["refusal"]
            await quiet(3.5)
            assert resumed(one) == []
            await one.result("answer", session=S, yes=True, sender="42", lang="en")
            await until(lambda: resumed(one))  # a person lets it go on


@played
async def test_one_success_forgets_how_often_it_was_cut_off(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r0")
        async with gateway(place, pending=[S]) as one:
            await one.result("run_start", run="r1", session=S, cause="recovery")
            await one.result("run_end", run="r1", session=S)
            await begin(one, "r2")
        async with gateway(place, pending=[S]):
            await until(lambda: stage_of(running) is Stage.FOUND)
            cut = running.engine.store.cuts.get(S)
            assert cut is not None
            assert cut.times == 1


@played
async def test_a_gateway_that_crashes_every_second_is_left_alone(place: Paths) -> None:
    async with engine(place) as running:
        for number in range(crashes.RESTLESS[0]):
            async with gateway(place) as one:
                await begin(one, f"r{number}")
        async with gateway(place) as one:
            await until(lambda: stage_of(running) is Stage.SUSPENDED)
            await quiet()
            assert resumed(one) == []


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "START_SECONDS", 0.3)


@pytest.mark.usefixtures("_hasty")
@played
async def test_a_message_that_begins_no_run_is_tried_three_times(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r0")
        async with gateway(place) as two:
            await until(lambda: len(resumed(two)) == 2)
            late = {"run": resumed(two)[0]["run"], "session": S, "cause": "resume"}
            assert (await two.result("run_start", **late))["refusal"], "another one is on its way"
            await until(lambda: stage_of(running) is Stage.SUSPENDED, 10)
            assert len(resumed(two)) == recovery.TRIES
            assert len({told["run"] for told in resumed(two)}) == recovery.TRIES
            await until(lambda: said(two))  # the person knows


# -- asking


@played
async def test_an_old_crash_is_asked_about(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1", text="整理知识库")
        wills.write(place.wills, S, {"progress": "12/15"})
        running.engine.recovery._clock = lambda: time.time() + 3600
        async with gateway(place, pending=[S]) as two:
            await until(lambda: said(two))
            (question,) = said(two)
            assert "整理知识库" in question
            assert "12/15" in question
            assert "是否继续" in question
            refused = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert refused["refusal"], "not before the person has said so"
            await quiet(3.5)
            assert resumed(two) == []
            await two.result("answer", session=S, yes=True, sender="42")
            await until(lambda: resumed(two))
            assert "12/15" in resumed(two)[0]["message"]


@played
async def test_a_clock_that_was_put_back_makes_it_a_question(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        running.engine.recovery._clock = lambda: time.time() - 3600
        async with gateway(place) as two:
            await until(lambda: said(two))
            assert resumed(two) == []


@pytest.mark.parametrize(
    ("config", "will"), [({"recovery": "ask"}, {}), ({}, {"can_resume": False})]
)
def test_who_wants_to_be_asked_is_asked(
    place: Paths, config: dict[str, Any], will: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            async with gateway(place) as one:
                await begin(one, "r1")
            wills.write(place.wills, S, will)
            about = {"pid": next(PIDS), "born": now(), "config": config}
            async with bridge(place, **about) as two:
                await until(lambda: said(two))
                told = await two.result("answer", session=S, yes=False, sender="42", lang="en")
                assert told["lines"] == ["it does not go on"]
                await quiet()
                assert resumed(two) == []
                late = await two.result("run_start", run="h1", session=S, cause="recovery")
                assert late["refusal"], "no is no, for the host too"
                assert stage_of(running) is Stage.DONE

    asyncio.run(scenario())


@played
async def test_with_recovery_off_the_host_does_as_it_likes(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=next(PIDS), born=now(), config={"recovery": "off"}) as two:
            await quiet()
            assert resumed(two) + said(two) == []
            theirs = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert theirs["refusal"] is None


@pytest.mark.parametrize(
    ("session", "cause"),
    [
        ("agent:dev1:subagent:1", "unknown"),
        ("agent:dev1:cron:1:run:2", "cron"),
        ("agent:dev1:acp:1", "message"),
        (S, "heartbeat"),
        (S, "announce"),
    ],
)
def test_what_has_its_own_way_of_going_on_is_left_alone(
    place: Paths, session: str, cause: str
) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            async with gateway(place) as one:
                await one.result("run_start", run="r1", session=session, cause=cause)
            async with gateway(place) as two:
                await quiet()
                assert resumed(two) + said(two) == []
                assert stage_of(running, session) is Stage.LEFT

    asyncio.run(scenario())


@played
async def test_a_nod_is_not_gone_on_with(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1", text="thanks 👍")
        async with gateway(place) as two:
            await quiet()
            assert resumed(two) == []


@played
async def test_a_session_that_another_tool_resumes_is_left_alone(
    place: Paths, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "state").mkdir(parents=True)
    mark = '{"pending": true, "sessionKey": "agent:main:main"}'
    (workspace / "state" / "restart-resume.json").write_text(mark)
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        about = {"agents": ["main"], "workspaces": {"main": str(workspace)}}
        async with bridge(place, pid=next(PIDS), born=now(), **about) as two:
            await quiet()
            assert resumed(two) == []
            rows = await two.result("cuts", lang="en")
            assert "restart-resume.json" in rows["lines"][0]


# -- the same gateway


@played
async def test_an_engine_that_died_alone_cuts_nothing_off(place: Paths) -> None:
    pid = next(PIDS)
    async with engine(place), bridge(place, pid=pid, born=now()) as one:
        await begin(one, "r1")
        await begin(one, "r2", T)
    async with engine(place) as running:
        alive = [{"run": "r1", "session": S, "cause": "message", "reports": []}]
        async with bridge(place, pid=pid, born=now(), runs=alive) as two:
            await quiet()
            assert resumed(two) == []
            assert running.engine.store.cuts.every() == [], "r2 has ended meanwhile"


# -- orphans


def orphan(
    place: Paths, generation: int, lease: str = "run", session: str = S
) -> subprocess.Popen[bytes]:
    owner = Owner(place.state_id, session, generation, lease)
    env = {**os.environ, cookies.VARIABLE: cookies.format(owner)}
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)


@played
async def test_processes_of_a_dead_gateway_die_before_any_tool_runs(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        mine, persons, kept = orphan(place, 1), orphan(place, 0), orphan(place, 1, "agent")
        early = [{"run": "h1", "session": S, "cause": "recovery", "reports": []}]
        about = {"pid": next(PIDS), "born": now(), "runs": early}  # the host was faster
        try:
            async with bridge(place, **about) as two:
                await two.result("run_start", run="r2", session=S, cause="message")
                assert mine.poll() is not None, "dead before a run begins"
                assert persons.poll() is None
                assert kept.poll() is None
                await until(lambda: list(receipts.read(place.receipts)))
                receipt = next(receipts.read(place.receipts))
                assert receipt["trigger"] == "recovery"
                assert [row["pid"] for row in receipt["processes"]] == [mine.pid]
                assert [row["pid"] for row in receipt["leased"]] == [kept.pid]
        finally:
            for process in (mine, persons, kept):
                process.kill()
                process.wait()


@played
async def test_of_two_gateways_nobody_sweeps(place: Paths) -> None:
    async with engine(place), gateway(place) as one:
        await begin(one, "r1")
        mine = orphan(place, 1)
        try:
            async with gateway(place) as two:
                await quiet()
                assert mine.poll() is None
                assert resumed(one) + resumed(two) == []
        finally:
            mine.kill()
            mine.wait()


# -- odd ones


@played
async def test_what_was_stopped_stays_stopped_when_it_is_released_before_the_host_tries(
    place: Paths,
) -> None:
    async with engine(place) as running:
        commands = running.engine.commands
        async with gateway(place) as one:
            await begin(one, "r1")
        await commands.stop(None, {"target": S, "pid": 1})
        await commands.release(None, {"target": S, "pid": os.getpid()})
        for _ in range(2):  # nor after one more start
            async with gateway(place, pending=[S]) as two:
                back = await two.result("run_start", run="h1", session=S, cause="recovery")
                assert back["refusal"]
                await two.result("run_end", run="h1", session=S)
        async with gateway(place) as three:
            await begin(three, "r2", text="something new")
            await three.result("run_end", run="r2", session=S)
            assert running.engine.store.cuts.every() == [], "then it is history"


@played
async def test_a_row_that_nobody_can_read_keeps_nobody_from_stopping(place: Paths) -> None:
    async with engine(place) as running:
        row = (S, '{"session": "agent:main:main", "stage": "paused"}')
        running.engine.store._db.execute("INSERT INTO cuts VALUES (?, ?)", row)
        async with gateway(place):
            await running.engine.commands.stop(None, {"target": S, "pid": 1})
            assert running.engine.standing(S).refusal


@played
async def test_a_gateway_that_was_at_work_before_us_keeps_its_processes(place: Paths) -> None:
    """As after an update of the skill: the engine is new, the gateway is not."""
    mine = orphan(place, 1, session=T)  # of a turn that is over
    try:
        async with engine(place):
            alive = [{"run": "r1", "session": S, "cause": "message", "reports": []}]
            async with bridge(place, pid=next(PIDS), born=now(), runs=alive):
                await quiet()
                assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


@played
async def test_a_gateway_that_stays_when_another_leaves_is_not_new(place: Paths) -> None:
    pid = next(PIDS)
    async with engine(place):
        async with gateway(place), bridge(place, pid=pid, born=now()) as second:
            await begin(second, "r1")
        mine = orphan(place, 1, session=T)
        try:
            alive = [{"run": "r1", "session": S, "cause": "message", "reports": []}]
            async with bridge(place, pid=pid, born=now(), runs=alive) as again:
                await quiet()
                assert mine.poll() is None
                assert resumed(again) == []
        finally:
            mine.kill()
            mine.wait()


@played
async def test_what_waited_before_a_new_conversation_is_not_told_to_it(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
            about = {"session": S, "sender": "42", "authorised": True, "route": ROUTE}
            await one.result("message", **about, id="m2", text="now delete the old ones")
            await one.result("stop", session=S, id="n1", trigger="/new", latch=False)
        async with gateway(place) as two:
            await quiet()
            assert resumed(two) == []


@played
async def test_an_engine_that_dies_while_it_waits_goes_on_afterwards(place: Paths) -> None:
    pid = next(PIDS)
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=pid, born=now()) as two:
            await asyncio.sleep(0.05)
            assert resumed(two) == []
    async with engine(place), bridge(place, pid=pid, born=now()) as again:
        again.answers |= {"pending": lambda asked: [], "resume": None}
        await until(lambda: resumed(again))


@pytest.mark.parametrize("how", ["a command", "somebody else in the group"])
def test_not_every_word_ends_what_waits(place: Paths, how: str) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            async with gateway(place) as one:
                await begin(one, "r1")
            async with gateway(place, pending=[S]) as two:
                await until(lambda: stage_of(running) is Stage.FOUND)
                said = {"session": S, "id": "m9", "authorised": True, "route": ROUTE}
                if how == "a command":
                    await two.result("message", **said, sender="42")
                else:
                    await two.result("message", **said, sender="7", text="hey all", group=True)
                await until(lambda: resumed(two))

    asyncio.run(scenario())


@played
async def test_in_a_group_only_who_gave_the_task_answers(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        config = {"recovery": "ask"}
        async with bridge(place, pid=next(PIDS), born=now(), config=config) as two:
            await until(lambda: said(two))
            about = {"session": S, "yes": True, "group": True, "lang": "en"}
            told = await two.result("answer", **about, sender="7")
            assert told["lines"] == ["only who gave the task can say that"]
            assert stage_of(running) is Stage.ASKED
            again = {"session": S, "id": "m-r1", "sender": "42", "authorised": True}
            twice = await two.result("message", **again, text="write the report", route=ROUTE)
            assert twice["continued"], "a message that is told again is no yes"
            assert stage_of(running) is Stage.ASKED


@played
async def test_a_heartbeat_does_not_take_the_place_of_a_task(place: Paths) -> None:
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
            await one.result("run_start", run="z9", session=S, cause="heartbeat")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            assert "write the report" in resumed(two)[0]["message"]


@played
async def test_a_run_that_fails_has_not_gone_on(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await two.result("run_start", run="h1", session=S, cause="recovery")
            await two.result("run_end", run="h1", session=S, finished=False)
            assert stage_of(running) is Stage.FOUND
            await until(lambda: resumed(two))


@played
async def test_a_will_of_an_earlier_task_is_not_quoted(place: Paths) -> None:
    async with engine(place):
        will = wills.write(place.wills, S, {"progress": "OLD", "can_resume": False})
        will.write_text(will.read_text().replace('"timestamp": "20', '"timestamp": "19'))
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            assert "OLD" not in resumed(two)[0]["message"]


@played
async def test_a_stop_ends_the_question_in_the_gateway_too(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        config = {"recovery": "ask"}
        async with bridge(place, pid=next(PIDS), born=now(), config=config) as two:
            await until(lambda: said(two))
            await running.engine.commands.stop(None, {"target": S, "pid": 1})
            running.engine.tick()

            def known() -> list[str]:
                told = [m["params"]["sessions"] for m in two.asked if m["method"] == "questions"]
                return list(told[-1])

            await until(lambda: known() == [])


@played
async def test_odd_files_of_one_session_do_not_keep_others_from_going_on(
    place: Paths, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    os.mkfifo(workspace / "restart-resume.json")
    sessions = place.openclaw / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True)
    odd = {"sessionId": "x" * 300, "endedAt": 10**400, "status": 7}
    (sessions / "sessions.json").write_text(json.dumps({S: odd, "agent:main:b": []}))
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        about = {"agents": ["main"], "workspaces": {"main": str(workspace)}}
        async with bridge(place, pid=next(PIDS), born=now(), **about) as two:
            two.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: resumed(two))


@played
async def test_an_order_that_is_one_word_goes_on_once_the_agent_has_begun(place: Paths) -> None:
    sessions = place.openclaw / "agents" / "main" / "sessions"
    sessions.mkdir(parents=True)
    (sessions / "sessions.json").write_text(
        json.dumps({S: {"sessionId": "s", "status": "running"}})
    )
    call = {"type": "toolCall", "id": "c", "name": "exec", "arguments": {"command": "deploy"}}
    message = {"role": "assistant", "content": [call], "stopReason": "toolUse"}
    entry = {"type": "message", "id": "e", "timestamp": now() + 1000, "message": message}
    (sessions / "s.jsonl").write_text(json.dumps(entry) + "\n")
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1", text="ok")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            assert "Effect unknown: exec" in resumed(two)[0]["message"]
            assert "deploy" in resumed(two)[0]["message"]


@pytest.mark.usefixtures("_hasty")
@played
async def test_a_stop_between_two_tries_ends_them(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BACK_OFF", (0.0, 1.0, 1.0))
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            await until(lambda: stage_of(running) is Stage.FOUND)  # no run came of it
            await running.engine.commands.stop(None, {"target": S, "pid": 1})
            await quiet(2.0)
            assert len(resumed(two)) == 1
            assert stage_of(running) is Stage.DONE
