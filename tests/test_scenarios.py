"""What the best peers test, on the embedded host: each a few lines, each a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from clawstop import ownership
from clawstop.embedded import EmbeddedHost, Exec, Say, Script
from clawstop.paths import Paths
from clawstop.server import Server
from wire import engine

A, B = "agent:a:main", "agent:b:main"
SCRIPTS: dict[str, Script] = {
    "work": [Say("working"), Exec("sleep 30", background=True), Exec("sleep 30"), Say("done")],
    "batch": [Exec("sleep 30"), Exec("touch two"), Exec("touch three")],
    "short": [Exec("true"), Say("short done")],
    "quick": [Exec("sleep 0.3", background=True), Say("left something running")],
}


class Stage:
    def __init__(self, server: Server, host: EmbeddedHost) -> None:
        self.server, self.host = server, host

    async def stop(self, target: str) -> dict[str, Any]:
        return await self.server.engine.commands.stop(None, {"target": target, "pid": 1})

    def seen(self, session: str, kind: str) -> list[str]:
        return [e.text for e in self.host.events if e.session == session and e.kind == kind]

    async def until(self, session: str, kind: str, count: int = 1) -> None:
        async with asyncio.timeout(10):
            while len(self.seen(session, kind)) < count:
                await asyncio.sleep(0.01)

    def alive(self, session: str) -> int:
        state = self.host.paths.state_id  # other tests use the same session keys at the same time
        return len(ownership.find(lambda o: (o.state, o.session) == (state, session)))


@asynccontextmanager
async def staged(tmp_path: Path) -> AsyncIterator[Stage]:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        host = EmbeddedHost(paths, SCRIPTS)
        await host.start()
        try:
            yield Stage(server, host)
        finally:
            await host.stop()
            await server.engine.commands.stop(None, {"target": "everything", "pid": 1, "grace": 0})


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
    await stage.until(A, "ended")
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


@pytest.mark.parametrize(
    "scenario",
    [
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
        async with staged(tmp_path) as stage:
            await scenario(stage)

    asyncio.run(play())
