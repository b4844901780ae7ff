"""After a crash, when things come in another order than they should: refused runs, lost
connections, somebody else's words, a disk that is full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from clawstop.cuts import Cut, Stage
from clawstop.errors import StoreError
from clawstop.paths import Paths
from clawstop.recovery import Speaker
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

ASK = {"recovery": "ask"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    hasten(monkeypatch)
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    return paths


@played
async def test_a_run_that_was_refused_does_not_make_a_stop_history(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            await running.engine.commands.stop(None, {"target": S, "pid": 1})
        async with gateway(place) as two:
            again = {"run": "r2", "session": S, "cause": "message"}
            assert (await two.result("run_start", **again))["refusal"]
            await two.result("run_end", run="r2", session=S, finished=False)
            await running.engine.commands.release(None, {"target": S, "pid": 1})
            answer = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert answer["refusal"], "it was stopped, whatever came and went since"


@played
async def test_what_may_not_go_on_is_held_by_the_gate_too(place: Paths) -> None:
    """Where the host withholds the hook that answers it with silence, it runs all the same."""
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place, pending=[S]) as two:
            first = await two.result("run_start", run="h1", session=S, cause="recovery")
            assert first["refusal"] is None
            second = await two.result("run_start", run="h2", session=S, cause="recovery")
            assert second["refusal"]
            assert second["bound"] < first["bound"], "dead for fence and ladder"
            tool = {"id": "c", "session": S, "tool": "exec"}
            assert (await two.result("tool", run="h2", **tool))["refusal"]
            assert (await two.result("tool", run="h1", **tool))["refusal"] is None


@played
async def test_a_message_of_ours_whose_run_finds_another_engine_goes_on(place: Paths) -> None:
    async with engine(place), gateway(place) as one:
        await begin(one, "r1")
    pid = next(PIDS)
    async with engine(place), bridge(place, pid=pid, born=now()) as two:
        two.answers |= {"pending": lambda asked: [], "resume": None}
        await until(lambda: resumed(two))
        run = resumed(two)[0]["run"]
    async with engine(place) as running, bridge(place, pid=pid, born=now()) as same:
        same.answers |= {"pending": lambda asked: [S], "resume": None}
        answer = await same.result("run_start", run=run, session=S, cause="resume")
        assert answer["refusal"] is None
        await quiet()
        assert resumed(same) == [], "once"
        await same.result("run_end", run=run, session=S, finished=True)
        await until(lambda: stage_of(running) is Stage.DONE)


@played
async def test_a_sweep_that_outlives_its_connection_ends_nobodys_work(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(place) as running:
        recover, slow = running.engine.recovery, asyncio.Event()
        async with gateway(place) as one:
            await begin(one, "r1")
        sweep, pid = recover._sweep, next(PIDS)

        async def first(bridge: Any) -> Any:
            monkeypatch.setattr(recover, "_sweep", sweep)
            await slow.wait()
            return await sweep(bridge)

        monkeypatch.setattr(recover, "_sweep", first)
        async with bridge(place, pid=pid, born=now()):
            pass
        async with bridge(place, pid=pid, born=now()) as two:
            two.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: recover._going is not None)
            slow.set()
            await until(lambda: resumed(two))


@played
async def test_a_yes_that_waits_for_the_gateway_is_a_yes(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        given = {"wait": 10, "yes": True, "pid": 1, "who": "me"}
        asked = asyncio.create_task(running.engine.commands.recover(None, given))
        await asyncio.sleep(0.05)
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as two:
            two.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: resumed(two))
            run = resumed(two)[0]["run"]
            await two.result("run_start", run=run, session=S, cause="resume")
            (row,) = [row for row in (await asked)["sessions"] if row["session"] == S]
            assert row["did"] == Stage.RESUMED


@played
async def test_a_message_that_is_told_again_and_cut_off_again_is_not_lost(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        told = {"session": S, "id": "m-r1", "sender": "42", "authorised": True}
        async with gateway(place) as two:
            await two.result("message", **told, text="write the report", route=ROUTE)
            await until(lambda: stage_of(running) is Stage.DONE)
        forget_starts(running)
        async with gateway(place) as three:
            await until(lambda: resumed(three) or said(three))


@played
async def test_somebody_elses_takeover_leaves_what_waits(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as two:
            await until(lambda: stage_of(running) is Stage.ASKED)
            taken = {"session": S, "trigger": "new message", "latch": False, "taken": True}
            await two.result("stop", **taken, id="a" * 32, sender="7")
            assert stage_of(running) is Stage.ASKED
            await running.engine.recovery.answer(S, True, Speaker("42"))
            await until(lambda: resumed(two))
            await two.result("stop", **taken, id="b" * 32, sender="42")
            await until(lambda: stage_of(running) is Stage.DONE)


def test_in_a_chat_that_is_open_to_everybody_nobody_answers_for_an_operator() -> None:
    cut = Cut(S, 1, "r", "message", 0, 0, 0, sender="gateway-client", route={"channel": "webchat"})
    assert Speaker("42", listed=True).owns(cut)
    assert not Speaker("42").owns(cut)
    assert not Speaker("42", listed=True, group=True).owns(cut)
    assert Speaker(operator=True).owns(cut)


@played
async def test_a_disk_that_refuses_one_holds_up_nobody_for_long(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            await begin(one, "r2", T)
        cuts, left = running.engine.store.cuts, [S]
        put = cuts.put

        def full(cut: Cut) -> Cut:
            if cut.stage is Stage.FOUND and cut.session in left:
                left.remove(cut.session)
                raise StoreError("the disk is full")
            return put(cut)

        monkeypatch.setattr(cuts, "put", full)
        async with gateway(place) as two:
            await until(lambda: {one["session"] for one in resumed(two)} == {S, T})
        assert left == []


@played
async def test_a_person_who_writes_while_our_message_is_on_its_way_ends_the_old_task(
    place: Paths,
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            run = resumed(two)[0]["run"]
            await begin(two, "r2", text="no, something else")
            await two.result("run_end", run="r2", session=S, finished=True)
            answer = await two.result("run_start", run=run, session=S, cause="resume")
            assert answer["refusal"]
            assert stage_of(running) in (Stage.DONE, None)


@played
async def test_what_went_on_and_is_nowhere_any_more_is_judged_again(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            run = resumed(two)[0]["run"]
            await two.result("run_start", run=run, session=S, cause="resume")
            running.engine.store.end_run(run, S)  # nobody was told
        forget_starts(running)
        async with gateway(place) as three:
            await until(lambda: resumed(three))
