"""The bridge in a host that names its runs late, as up to 2026.7: whose a run is, and whose not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from clawstop.paths import Paths
from nodes import Node, S, node, stop
from wire import engine

GROUP = {"ChatType": "group", "OriginatingChannel": "telegram", "OriginatingTo": "telegram:-1"}
ENDED = "[Internal task completion event]\nsource: subagent\nsession_key: {}\nresult: done"


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    return paths


async def said(bridge: Node, id: str, text: str, **more: Any) -> None:
    told = {"session": S, "sender": "me", "authorised": True, "id": id, "text": text}
    await bridge.message({**told, **more})


async def named(bridge: Node, run: str, prompt: str, trigger: str = "user") -> str:
    """The host tells what it calls a run: what we call it."""
    return str((await bridge.place(run, S, {"prompt": prompt, "trigger": trigger}))["run"])


async def about(bridge: Node, run: str) -> dict[str, Any]:
    return dict((await bridge.about(run))[1])


def test_a_run_of_the_hosts_own_is_not_a_persons(place: Paths) -> None:
    """It tidies its memory between a message and its run."""

    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.older()
            await said(bridge, "m1", "tidy up")
            await bridge.turn(None, S, {"prompt": "tidy up", "trigger": "user"})
            flush = await named(bridge, "flush", "write down what matters", trigger="memory")
            assert flush == "flush"
            await bridge.admit(flush, S, {"trigger": "memory"})
            await bridge.runEnded(flush, True)
            mine = await named(bridge, "host-1", "they say: tidy up")
            assert (await about(bridge, mine))["message"] == "m1"

    asyncio.run(scenario())


@pytest.mark.parametrize("run", ["announce:v1:agent:main:subagent:c:r", "clawstop-resume-1"])
def test_what_says_itself_what_it_is_takes_nobodys_place(place: Paths, run: str) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.older()
            await said(bridge, "m1", "tidy up")
            await bridge.turn(None, S, {"prompt": "tidy up", "trigger": "user"})
            assert await named(bridge, run, "it has ended") == run
            assert await named(bridge, "host-1", "they say: tidy up") != "host-1"

    asyncio.run(scenario())


def test_a_wake_is_not_one_with_a_turn_that_waits_for_its_name(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.older()
            await said(bridge, "m1", "tidy up")
            await bridge.turn(None, S, {"prompt": "tidy up", "trigger": "user"})
            await bridge.turn(None, S, {"prompt": "exec ended", "trigger": "heartbeat"})
            woken = await named(bridge, "host-2", "exec ended", trigger="heartbeat")
            assert (await about(bridge, woken))["cause"] == "heartbeat"
            mine = await named(bridge, "host-1", "they say: tidy up")
            assert (await about(bridge, mine))["message"] == "m1"

    asyncio.run(scenario())


def test_the_end_of_a_child_does_not_take_the_message_that_waits(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.older()
            await said(bridge, "m1", "no, this")
            child = ENDED.format("agent:main:subagent:c")
            await bridge.turn(None, S, {"prompt": child, "trigger": "user"})
            first = await named(bridge, "host-0", child)
            assert (await about(bridge, first))["cause"] == "announce"
            await bridge.turn(None, S, {"prompt": "no, this", "trigger": "user"})
            mine = await named(bridge, "host-1", "they say: no, this")
            assert (await about(bridge, mine))["message"] == "m1"

    asyncio.run(scenario())


def test_a_message_in_the_hosts_queue_is_bound_when_its_turn_comes(place: Paths) -> None:
    """Somebody else's message waits; its owner's takes over meanwhile, and ends nothing of it."""

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.older()
            await said(bridge, "m1", "mine", **GROUP)
            await bridge.turn(None, S, {"prompt": "mine", "trigger": "user"})
            first = await named(bridge, "host-1", "they say: mine")
            await bridge.started(first, S, "id-1")
            await said(bridge, "m2", "and me?", sender="you", **GROUP)
            assert await bridge.turn(None, S, {"prompt": "and me?", "trigger": "user"}) is None
            takes_over = asyncio.ensure_future(said(bridge, "m3", "no, this", **GROUP))
            await asyncio.sleep(1)
            await bridge.runEnded(first)
            await takes_over
            await bridge.turn(None, S, {"prompt": "no, this", "trigger": "user"})
            mine = await named(bridge, "host-2", "they say: and me?")
            assert await bridge.admit(mine, S, {"prompt": "they say: and me?"}) is None
            assert (await about(bridge, mine))["message"] == "m2"
            assert server.engine.store.generation(S) == 2
            assert await bridge.tool(mine) is None
            owners = await named(bridge, "host-3", "they say: no, this")
            assert (await about(bridge, owners))["message"] == "m3"

    asyncio.run(scenario())


def test_a_command_of_the_menu_is_for_the_agent_of_its_own_bot(place: Paths) -> None:
    """One person writes to two bots, each another agent's."""

    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            route = {"channel": "telegram", "to": "telegram:42"}
            for agent in ("dev", "main"):
                heard = {"id": agent, "text": "hello", "sender": "42", "route": route}
                await bridge.chat("heard", f"agent:{agent}:main", heard)
            slash = {"id": "s", "text": "/stop", "sender": "42", "route": route}
            await bridge.chat("heard", "agent:dev:telegram:slash:42", slash)
            meant = await bridge.place(None, "agent:dev:telegram:slash:42")
            assert meant["session"] == "agent:dev:main"

    asyncio.run(scenario())


def test_a_newer_plugin_knows_whose_a_run_is(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.older()
            await said(bridge, "m1", "tidy up")
            await bridge.turn(None, S, {"prompt": "tidy up", "trigger": "user"})
            mine = await named(bridge, "host-1", "they say: tidy up")
            other = "agent:main:telegram:default:direct:42"
            await bridge.place("host-1", other)
            await bridge.replace()
            assert await bridge.place("host-1", other) == {"run": mine, "session": S}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("row", "is_it"),
    [
        ("中断", True),
        ("[Wed 2026-11-18 14:00 UTC] 中断", True),
        ("中断 was a mistake, go on", False),
        ("do not 中断", False),
    ],
)
def test_only_what_was_said_to_us_is_kept_out(place: Paths, row: str, is_it: bool) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            page = {"OriginatingChannel": "webchat"}
            await said(bridge, "m0", "hello", **page)
            await said(bridge, "m1", "中断", **page)
            message = {"role": "user", "content": [{"type": "text", "text": row}]}
            assert await bridge.chat("isClaimed", S, message) is is_it

    asyncio.run(scenario())


def test_a_run_at_work_that_is_in_no_list_is_not_over(place: Paths) -> None:
    """Another runtime behind the gateway: it is in none of the host's lists."""

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.older()
            await bridge.admit("cli", S, {"sessionId": "id-1"})
            await bridge.started("cli", S, "id-1")
            receipt = await stop(server, S)
            assert not receipt["converged"]
            assert [run["run"] for run in receipt["alive"]] == ["cli"]

    asyncio.run(scenario())


def test_a_stop_while_a_process_is_prepared_refuses_it(place: Paths) -> None:
    """Where the call brings cookie and cage, finding them takes time: the gate comes last."""

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.register(500)
            await bridge.until("connected")
            await bridge.admit("r1", S, {})
            event = {"toolName": "exec", "params": {"command": "date"}, "runId": "r1"}
            told = ("before_tool_call", {**event, "toolCallId": "c1"}, {"sessionKey": S})
            fine = await bridge.hook(*told)
            assert "CLAWSTOP_COOKIE" in fine["params"]["env"]
            late = asyncio.ensure_future(bridge.hook(*told))
            await asyncio.sleep(0.2)
            await stop(server, S)
            assert (await late)["block"] is True

    asyncio.run(scenario())
