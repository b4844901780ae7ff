"""What the best peers test, on the embedded host: each a few lines, each a second."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from clawstop import receipts, wrapping
from clawstop.embedded import Exec, Say, Script
from stage import Stage, staged

A, B = "agent:a:main", "agent:b:main"
SCRIPTS: dict[str, Script] = {
    "work": [Say("working"), Exec("sleep 30", background=True), Exec("sleep 30"), Say("done")],
    "batch": [Exec("sleep 30"), Exec("touch two"), Exec("touch three")],
    "short": [Exec("true"), Say("short done")],
    "quick": [Exec("sleep 0.3", background=True), Say("left something running")],
}


# What hides, and how.
ZOO = {
    "plain": "{sleep}",
    "deaf": "trap '' TERM HUP INT; {sleep}; :",
    "in a session of its own": "setsid {sleep}",
    "a daemon": "(setsid sh -c '{sleep} & :' &)",
    "a daemon without a cookie": "(env -i setsid sh -c '({sleep} &) ; :' &)",
    "behind nohup": "nohup {sleep} &",
    "forking as fast as it can": (
        "f() {{ [ $1 -gt 6 ] || {{ f $(($1+1)) & f $(($1+1)) & }}; {sleep}; }}; f 0"
    ),
    "deep down": 'sh -c \'sh -c "sh -c \\"{sleep}; :\\"; :"; :\'',
}


Scenario = Callable[[Stage], Awaitable[None]]


async def stopping_a_leaves_b_running(stage: Stage) -> None:
    for session in (A, B):
        await stage.host.send(session, "work")
        await stage.until(session, "tool", 2)
    assert (await stage.stop("a"))["converged"]
    assert stage.alive(A) == 0
    assert stage.alive(B) > 0
    await stage.host.send(B, "short")
    await stage.until(B, "said", 2)


async def a_batch_stops_after_the_tool_that_runs(stage: Stage) -> None:
    await stage.host.send(A, "batch")
    await stage.until(A, "tool")
    receipt = await stage.stop(A)
    assert [call["outcome"] for call in receipt["tools"]] == ["outcome unknown"]
    await asyncio.sleep(0.2)
    assert stage.seen(A, "tool") == ["sleep 30"]
    assert not (stage.host.workspace(A) / "two").exists()


async def a_stopped_agent_is_not_woken_by_its_dying_process(stage: Stage) -> None:
    await stage.host.send(A, "work")
    await stage.until(A, "tool", 2)
    await stage.stop(A)
    await stage.until(A, "woken")
    await stage.until(A, "refused")
    assert stage.seen(A, "run") == ["message"]


async def an_idle_agent_is_woken_as_usual(stage: Stage) -> None:
    await stage.host.send(A, "quick")
    await stage.until(A, "woken")
    await stage.until(A, "run", 2)
    assert stage.seen(A, "run") == ["message", "heartbeat"]


async def the_next_message_releases_only_its_own_session(stage: Stage) -> None:
    await stage.host.send(A, "short")
    await stage.until(A, "said")
    await stage.stop("everything")
    await stage.host.send(A, "short")
    await stage.until(A, "said", 2)
    assert stage.server.engine.store.standing(B).refusal


async def stopping_what_is_idle_changes_nothing_and_converges(stage: Stage) -> None:
    await stage.host.send(A, "short")
    await stage.over(A)
    before = stage.host.transcript(A)
    receipt = await stage.stop(A)
    assert (receipt["converged"], receipt["runs"], receipt["processes"]) == (True, [], [])
    assert stage.host.transcript(A) == before


async def stopping_twice_is_defined(stage: Stage) -> None:
    await stage.host.send(A, "work")
    await stage.until(A, "tool", 2)
    first, second = await asyncio.gather(stage.stop(A), stage.stop(A))
    assert first["converged"]
    assert second["converged"]
    assert sorted([first["sessions"][A], second["sessions"][A]]) == [[1, 2], [2, 3]]


async def an_engine_that_goes_away_allows_nothing(stage: Stage) -> None:
    await stage.host.send(A, "short")
    await stage.until(A, "ended")
    stage.host._peer.close()
    await stage.host.send(A, "short")
    assert stage.seen(A, "refused") == ["run: the engine does not answer"]


async def the_transcript_is_a_chain_of_parents(stage: Stage) -> None:
    await stage.host.send(A, "short")
    await stage.until(A, "ended")
    entries = stage.host.transcript(A)
    assert [entry["parentId"] for entry in entries] == [None, *(e["id"] for e in entries[:-1])]
    roles = [entry["message"]["role"] for entry in entries]
    assert roles == ["user", "assistant", "toolResult", "assistant"]


async def nobody_of_the_zoo_outlives_the_stop(stage: Stage) -> None:
    numbers = itertools.count(61_000 + os.getpid() % 1000 * 20)
    commands = {kind: f"sleep {next(numbers)}" for kind in ZOO}
    stage.host.scripts["zoo"] = [
        Exec(ZOO[kind].format(sleep=command), background=True) for kind, command in commands.items()
    ]
    await stage.host.send(A, "zoo")
    await stage.until(A, "tool", len(ZOO))
    async with asyncio.timeout(10):
        while living(commands) != set(ZOO):
            await asyncio.sleep(0.02)
    receipt = await stage.stop(A)
    assert receipt["converged"], receipt["left"]
    assert living(commands) == set()
    proofs = {row["command"]: row["proof"] for row in receipt["processes"]}
    assert proofs[commands["a daemon without a cookie"]] == "cgroup"


def living(commands: dict[str, str]) -> set[str]:
    running = {" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])}
    return {kind for kind, command in commands.items() if command in running}


async def frozen_work_goes_on_after_its_release(stage: Stage) -> None:
    stage.host.scripts["steps"] = [
        Exec("while :; do date +%N > beat; sleep 0.02; done", background=True),
        Exec("sleep 1.5"),
        Exec("touch after"),
        Say("all done"),
    ]
    beat = stage.host.workspace(A) / "beat"
    await stage.host.send(A, "steps")
    await stage.until(A, "tool", 2)
    async with asyncio.timeout(10):
        while not beat.exists():
            await asyncio.sleep(0.01)
    answer = await stage.server.engine.commands.freeze(None, {"target": A, "pid": 1})
    assert len(answer["frozen"]) >= 2
    assert stage.states(A) == {"T"}
    last = beat.read_bytes()
    await asyncio.sleep(0.6)
    assert beat.read_bytes() == last
    assert not (stage.host.workspace(A) / "after").exists()
    status = await stage.server.engine.commands.status(None, {})
    assert status["frozen"] == [A]
    released = await stage.server.engine.commands.release(None, {"target": A, "pid": 1})
    assert released["released"] == [A]
    await stage.until(A, "said")
    assert (stage.host.workspace(A) / "after").exists()
    assert stage.seen(A, "refused") == []
    await asyncio.sleep(0.2)
    assert beat.read_bytes() != last


async def frozen_work_is_stopped_for_good(stage: Stage) -> None:
    await stage.host.send(A, "batch")
    await stage.until(A, "tool")
    await stage.server.engine.commands.freeze(None, {"target": "a", "pid": 1})
    receipt = await stage.stop(A)
    assert receipt["converged"], receipt["left"]
    assert stage.alive(A) == 0
    frozen = stage.server.engine.store.frozen
    assert frozen() == ["agent:a"], "a stop of one session leaves the rest of the agent frozen"
    assert (await stage.stop("a"))["converged"]
    assert frozen() == []
    await stage.host.send(A, "short")
    await stage.until(A, "said")


async def a_stop_flag_may_ask_for_a_gentler_word(stage: Stage) -> None:
    await stage.host.send(A, "work")
    await stage.until(A, "tool", 2)
    content = {"sessionId": A, "timestamp": int(time.time() * 1000), "signal": "SIGINT"}
    file = stage.host.paths.flags / f"agent-stop-{quote(A, safe='')}.flag"
    file.write_text(json.dumps(content))
    stage.server.engine.tick()
    await stage.until(A, "told")
    receipt = next(receipts.latest(stage.host.paths.receipts))
    assert (receipt["trigger"], receipt["converged"]) == ("stop flag", True)
    assert "INT" in {row["signal"] for row in receipt["processes"]}
    assert "TERM" not in {row["signal"] for row in receipt["processes"]}


async def a_wider_freeze_holds_what_a_narrower_release_names(stage: Stage) -> None:
    commands = stage.server.engine.commands
    await stage.host.send(A, "work")
    await stage.until(A, "tool", 2)
    await commands.freeze(None, {"target": "a", "pid": 1})
    await commands.freeze(None, {"target": A, "pid": 1})
    released = await commands.release(None, {"target": A, "pid": 1})
    assert released["frozen"] == ["agent:a"]
    assert stage.states(A) == {"T"}
    released = await commands.release(None, {"target": "a", "pid": 1})
    assert (released["released"], released["frozen"]) == (["agent:a"], [])
    assert "T" not in stage.states(A)


async def a_subagent_that_is_born_frozen_waits_too(stage: Stage) -> None:
    engine = stage.server.engine
    await stage.host.send(A, "short")
    await stage.until(A, "ended")
    await engine.commands.freeze(None, {"target": A, "pid": 1})
    (peer,) = [bridge.peer for bridge in engine.bridges]
    await engine.on_child(peer, {"child": "agent:a:subagent:1", "session": A})
    assert engine.freezer.held_by("agent:a:subagent:1")
    await engine.commands.release(None, {"target": A, "pid": 1})
    assert not engine.freezer.held_by("agent:a:subagent:1")


async def who_starts_after_the_freeze_is_stopped_too(stage: Stage) -> None:
    engine = stage.server.engine
    await stage.host.send(A, "work")
    await stage.until(A, "tool", 2)
    engine.store.freeze([A])
    async with asyncio.timeout(10):
        while stage.states(A) != {"T"}:
            engine.tick()
            await asyncio.sleep(0.1)


async def what_was_frozen_when_the_engine_died_is_frozen_again(stage: Stage) -> None:
    await stage.host.send(A, "work")
    await stage.until(A, "tool", 2)
    stage.server.engine.store.freeze([A])
    await stage.server.engine.startup()
    async with asyncio.timeout(10):
        while stage.states(A) != {"T"}:
            await asyncio.sleep(0.02)


async def a_run_that_takes_too_long_is_stopped_and_told(stage: Stage) -> None:
    engine = stage.server.engine
    engine.settings = replace(engine.settings, max_run_minutes=1)
    await stage.host.send(A, "work")
    await stage.until(A, "tool", 2)
    engine.tick()
    await asyncio.sleep(0.2)
    assert stage.alive(A) > 0, "its time is not over yet"
    engine.store._clock = lambda: time.time() + 61
    engine.tick()
    await stage.until(A, "told")
    assert stage.alive(A) == 0
    assert "Stopped: 1 run ended" in stage.seen(A, "told")[0]
    engine.tick()
    await asyncio.sleep(0.2)
    assert len(stage.seen(A, "told")) == 1


async def a_lease_that_is_over_ends_what_outlived_its_run(stage: Stage) -> None:
    launch = f"{sys.executable} -I -S {Path(wrapping.__file__).with_name('launch.py')}"
    state = f"OPENCLAW_STATE_DIR={stage.host.paths.openclaw}"
    stage.host.scripts["leased"] = [
        Exec(f"{state} {launch} --lease keep:2s -- sleep 30", background=True),
        Exec("sleep 30"),
    ]
    await stage.host.send(A, "leased")
    await stage.until(A, "tool", 2)
    async with asyncio.timeout(10):
        while len(kept := stage.leased(A)) < 2:  # the wrapper and its command
            await asyncio.sleep(0.02)
    receipt = await stage.stop(A)
    assert receipt["converged"], receipt["left"]
    assert {row["pid"] for row in receipt["leased"]} >= kept
    assert stage.leased(A) == kept
    async with asyncio.timeout(20):
        while stage.leased(A):
            stage.server.engine.tick()
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    "scenario",
    [
        nobody_of_the_zoo_outlives_the_stop,
        frozen_work_goes_on_after_its_release,
        frozen_work_is_stopped_for_good,
        what_was_frozen_when_the_engine_died_is_frozen_again,
        a_stop_flag_may_ask_for_a_gentler_word,
        a_wider_freeze_holds_what_a_narrower_release_names,
        a_subagent_that_is_born_frozen_waits_too,
        who_starts_after_the_freeze_is_stopped_too,
        a_run_that_takes_too_long_is_stopped_and_told,
        a_lease_that_is_over_ends_what_outlived_its_run,
        stopping_a_leaves_b_running,
        a_batch_stops_after_the_tool_that_runs,
        a_stopped_agent_is_not_woken_by_its_dying_process,
        an_idle_agent_is_woken_as_usual,
        the_next_message_releases_only_its_own_session,
        stopping_what_is_idle_changes_nothing_and_converges,
        stopping_twice_is_defined,
        an_engine_that_goes_away_allows_nothing,
        the_transcript_is_a_chain_of_parents,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test(tmp_path: Path, scenario: Scenario) -> None:
    async def play() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            await scenario(stage)

    asyncio.run(play())
