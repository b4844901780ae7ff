"""After a crash, when things come in another order than they should: refused runs, lost
connections, somebody else's words, a disk that is full."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clawstop import processes, wills
from clawstop.cuts import Cut, Cuts, Stage
from clawstop.errors import StoreError
from clawstop.paths import Paths, write_private
from clawstop.recovery import Recovery, Speaker
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
from wire import Wire, bridge, engine

PAGE = {"channel": "webchat"}
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


# -- what was taken over, told late, or told twice


async def gone_on(one: Wire) -> str:
    """What was cut off goes on by our message; the run that does."""
    await until(lambda: resumed(one))
    run = str(resumed(one)[0]["run"])
    answer = await one.result("run_start", run=run, session=S, cause="resume")
    assert answer["refusal"] is None
    return run


@played
async def test_a_task_that_goes_on_and_is_taken_over_elsewhere_does_not_come_back(
    place: Paths,
) -> None:
    """It was asked for on a channel; the same person sits at a page now."""
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1")
        async with gateway(place) as two:
            run = await gone_on(two)
            who = {"session": S, "sender": "operator"}
            text = {"text": "forget it, do this", "route": PAGE}
            await two.result("message", **who, id="p1", authorised=True, **text)
            taken = {"trigger": "new message", "latch": False, "taken": True}
            await two.result("stop", **who, id="b" * 32, **taken)
            await two.result("run_end", run=run, session=S, finished=False)
            await two.result("run_start", run="p1", session=S, cause="message", message="p1")
            await two.result("run_end", run="p1", session=S, finished=True)
            await quiet()
            assert len(resumed(two)) == 1


def write(one: Wire, method: str, **params: Any) -> None:
    """What a bridge tells and does not wait for."""
    one.write(json.dumps({"id": 900, "method": method, "params": params}).encode() + b"\n")


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Sweeps take until this is set."""
    over = asyncio.Event()
    sweep = Recovery._sweep

    async def slow(self: Recovery, bridge: Any) -> Any:
        await over.wait()
        return await sweep(self, bridge)

    monkeypatch.setattr(Recovery, "_sweep", slow)
    return over


@played
async def test_a_run_that_is_over_before_its_start_was_answered_is_over(
    place: Paths, sweeps: asyncio.Event
) -> None:
    async with engine(place) as running:
        sweeps.set()
        async with gateway(place) as one:
            await begin(one, "r1", T)
        sweeps.clear()
        async with gateway(place) as two:
            told = {"session": S, "id": "m2", "sender": "42", "authorised": True}
            await two.result("message", **told, text="what time is it?", route=ROUTE)
            write(two, "run_start", run="r2", session=S, cause="message", message="m2")
            await asyncio.sleep(0.1)
            write(two, "run_end", run="r2", session=S, ended=now(), finished=True)
            await asyncio.sleep(0.1)
            sweeps.set()
            await until(lambda: resumed(two))
            assert S not in [session for _, session, _ in running.engine.store.live_runs()]


@played
async def test_a_recovery_of_the_hosts_that_gave_up_while_we_swept_is_not_what_went_on(
    place: Paths, sweeps: asyncio.Event
) -> None:
    async with engine(place):
        sweeps.set()
        async with gateway(place) as one:
            await begin(one, "r1")
        sweeps.clear()
        async with gateway(place, pending=[S]) as two:
            write(two, "run_start", run="h1", session=S, cause="recovery")
            await asyncio.sleep(0.1)
            write(two, "run_end", run="h1", session=S, ended=now(), finished=False)
            await asyncio.sleep(0.1)
            sweeps.set()
            await until(lambda: resumed(two) or said(two))


@played
async def test_of_the_hosts_run_and_our_message_one_goes_on_when_an_engine_dies_between(
    place: Paths,
) -> None:
    async with engine(place), gateway(place) as one:
        await begin(one, "r1")
    pid = next(PIDS)
    async with engine(place), bridge(place, pid=pid, born=now()) as two:
        two.answers |= {"pending": lambda asked: [], "resume": None}
        await until(lambda: resumed(two))
        ours = resumed(two)[0]["run"]
    async with engine(place), bridge(place, pid=pid, born=now()) as same:
        same.answers |= {"pending": lambda asked: [S], "resume": None}
        first = await same.result("run_start", run="h1", session=S, cause="recovery")
        second = await same.result("run_start", run=ours, session=S, cause="resume")
        assert first["refusal"] is None
        assert second["refusal"]


@played
async def test_a_gateway_that_nobody_has_reaped_is_dead(place: Paths) -> None:
    """In a container without an init it stays a zombie."""
    old = subprocess.Popen(["sleep", "1000"])
    ident = processes.ident_of(old.pid)
    assert ident
    try:
        async with engine(place):
            place.bridges.mkdir(exist_ok=True, mode=0o700)
            about = json.dumps({"pid": old.pid, "start": ident.start})
            write_private(place.bridges / f"{old.pid}.json", about)
            async with bridge(place, pid=old.pid, born=now()) as one:
                await begin(one, "r1")
                old.kill()
            await until(lambda: processes.gone(ident))
            async with gateway(place) as two:
                await until(lambda: resumed(two))
    finally:
        old.kill()
        old.wait()


@played
async def test_a_message_that_was_stopped_is_not_run_when_it_is_told_again(place: Paths) -> None:
    """Also when another one has released the session, and by another gateway."""
    async with engine(place):
        async with gateway(place) as one:
            await begin(one, "r1", text="delete everything")
            await one.result("stop", id="c" * 32, session=S, trigger="/stop", sender="42")
            await one.result("run_end", run="r1", session=S, finished=False)
            await begin(one, "r2", text="hello there")
            await one.result("run_end", run="r2", session=S, finished=True)
        async with gateway(place) as two:
            told = {"session": S, "sender": "42", "authorised": True, "route": ROUTE}
            again = await two.result("message", id="m-r1", text="delete everything", **told)
            assert again["continued"], "nobody runs it"
            answered = await two.result("message", id="m-r2", text="hello there", **told)
            assert not answered["continued"], "that was never stopped"


# -- of several people


@played
async def test_what_one_wrote_is_not_answered_to_another(place: Paths) -> None:
    """Their direct chats share a session, and the crash came before anything was read."""
    async with engine(place):
        async with gateway(place) as one:
            for who in ("42", "7"):
                told = {"session": S, "id": f"m{who}", "sender": who, "authorised": True}
                route = {"channel": "telegram", "to": f"telegram:{who}"}
                await one.result("message", **told, text=f"a secret of {who}", route=route)
        async with gateway(place) as two:
            await until(lambda: resumed(two) and said(two))
            [on] = resumed(two)
            assert on["route"]["to"] == "telegram:7"
            assert "secret of 42" not in on["message"]
            [again] = [asked["params"] for asked in two.asked if asked["method"] == "say"]
            assert "secret of 42" in again["text"]
            assert again["route"]["to"] == "telegram:42"


@played
async def test_a_task_that_waits_for_its_person_outlives_anothers_crash(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1", text="Alice's long task")
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as two:
            two.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: said(two))
            told = {"session": S, "id": "m2", "sender": "7", "authorised": True, "group": True}
            await two.result("message", **told, text="Bob's task", route=ROUTE)
            await two.result("run_start", run="r2", session=S, cause="message", message="m2")
        await quiet(0.1)
        forget_starts(running)
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as three:
            three.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: len(said(three)) > 1)
            assert any("Alice" in line for line in said(three)), "she is asked again"
            assert any("Bob" in line for line in said(three)), "he is told to send it again"


# -- one that goes wrong


@played
async def test_a_full_disk_while_unread_messages_are_taken_leaves_no_question_out(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            told = {"session": T, "id": "m9", "sender": "42", "authorised": True}
            await one.result("message", **told, text="do the thing", route=ROUTE)
        full(monkeypatch, running.engine.store.cuts, lambda cut: cut.session == T)
        async with bridge(place, pid=next(PIDS), born=now(), config=ASK) as two:
            two.answers |= {"pending": lambda asked: [], "resume": None}
            await until(lambda: len(said(two)) == 2)


@played
async def test_a_full_disk_when_a_message_of_ours_failed_keeps_nobody(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
        failed = full(
            monkeypatch,
            running.engine.store.cuts,
            lambda cut: cut.stage is Stage.FOUND and bool(cut.tries),
        )
        async with gateway(place) as two:
            two.answers |= {"resume": refuse_once()}
            await until(lambda: len(resumed(two)) == 2)
            assert failed == ["full"]


def full(monkeypatch: pytest.MonkeyPatch, cuts: Cuts, when: Callable[[Cut], bool]) -> list[str]:
    """The disk refuses the first such row; what it has refused."""
    put, refused = cuts.put, list[str]()

    def once(cut: Cut) -> Cut:
        if not refused and when(cut):
            refused.append("full")
            raise StoreError("the disk is full")
        return put(cut)

    monkeypatch.setattr(cuts, "put", once)
    return refused


def refuse_once() -> Callable[[Any], None]:
    asked: list[Any] = []

    def answer(params: Any) -> None:
        asked.append(params)
        if len(asked) == 1:
            raise RuntimeError("not ready")

    return answer


@played
async def test_a_row_that_makes_no_sense_keeps_no_other_from_going_on(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1", T)
        odd: Any = "yesterday"
        running.engine.store.cuts.put(Cut(S, 1, "x", "message", 0.0, 0.0, odd))
        async with gateway(place) as two:
            await until(lambda: resumed(two))
            assert resumed(two)[0]["session"] == T


@played
async def test_a_will_under_the_hosts_name_of_a_session_counts(place: Paths) -> None:
    async with engine(place) as running:
        async with gateway(place) as one:
            await begin(one, "r1")
            running.engine.store.name(S, "0b1c-host")
            wills.write(place.wills, "0b1c-host", {"can_resume": False})
        async with gateway(place) as two:
            await until(lambda: said(two))
            assert stage_of(running) is Stage.ASKED
            assert not resumed(two)
