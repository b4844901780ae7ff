"""The JavaScript bridge under Node: against the real engine, and against one that says anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from clawstop import receipts
from clawstop.paths import Paths, write_private
from wire import engine

S = "agent:main:main"
T = "agent:main:other"
PLUGIN = Path(__file__).parent.parent / "hooks" / "openclaw" / "bridge.js"
DRIVER = Path(__file__).parent / "bridge_driver.mjs"
WAIT = 10.0  # seconds; Node starts in a tenth of one


class Node:
    """The bridge in a process of its own; `node.gate(...)` calls the bridge's method."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"])
            if "error" in answer:
                future.set_exception(AssertionError(answer["error"]))
            else:
                future.set_result(answer["result"])

    def __getattr__(self, call: str) -> Callable[..., Awaitable[Any]]:
        def ask(*args: Any) -> Awaitable[Any]:
            number = next(self._ids)
            future = self._waiting[number] = asyncio.get_running_loop().create_future()
            line = json.dumps({"id": number, "call": call, "args": args})
            assert self.process.stdin
            self.process.stdin.write(line.encode() + b"\n")
            return asyncio.wait_for(future, WAIT)

        return ask

    async def tool(self, run: str = "r1", session: str = S) -> str | None:
        call = {"id": "c", "run": run, "session": session, "tool": "exec"}
        refusal: str | None = await self.gate(call)
        return refusal

    async def until(self, call: str, *args: Any) -> None:
        async with asyncio.timeout(WAIT):
            while not await getattr(self, call)(*args):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def node(place: Paths) -> AsyncIterator[Node]:
    binary = shutil.which("node")
    assert binary, "Node is needed: the bridge is JavaScript"
    process = await asyncio.create_subprocess_exec(
        binary,
        str(DRIVER),
        str(PLUGIN),
        str(place.root),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    one = Node(process)
    try:
        await one.start()
        yield one
    finally:
        assert process.stdin
        process.stdin.close()
        await asyncio.wait_for(process.wait(), WAIT)
        await one.reading


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    return paths


async def stop(server: Any, target: str) -> dict[str, Any]:
    return dict(await server.engine.do_stop(None, {"target": target, "pid": 1}))


# -- with the real engine


def test_a_stop_reaches_the_bridge_before_it_returns(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            assert await bridge.tool() is None
            await bridge.reply(S, "r1")
            receipt = await stop(server, S)
            assert [run["run"] for run in receipt["runs"]] == ["r1"]
            assert await bridge.aborted() == [S]
            assert "was stopped" in str(await bridge.tool())
            assert "was stopped" in str(await bridge.tool("r2"))
            assert await bridge.tool("r3", T) is None

    asyncio.run(scenario())


def test_a_stop_finished_late_does_not_end_what_a_person_started_since(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            assert await bridge.tool("old") is None
            await bridge.runEnded("old")
            await stop(server, S)
            await bridge.message({"session": S, "id": "m1", "sender": "me", "authorised": True})
            await bridge.reply(S, "new")
            assert await bridge.tool("new") is None
            (connected,) = server.engine.bridges
            answer = await connected.peer.ask("end", {"sessions": [S], "scopes": [S]}, 5)
            assert answer == {"ended": [], "alive": []}
            assert await bridge.aborted() == []

    asyncio.run(scenario())


def test_a_dead_run_beside_a_new_one_is_not_hidden(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            assert await bridge.tool("old") is None
            receipt = await stop(server, S)  # nobody plays the host: it cannot be ended
            assert receipt["left"] == [f"run old of {S} is still alive"]
            await bridge.message({"session": S, "id": "m1", "sender": "me", "authorised": True})
            assert await bridge.tool("new") is None
            (connected,) = server.engine.bridges
            answer = await connected.peer.ask("end", {"sessions": [S], "scopes": [S]}, 5)
            assert answer == {"ended": [], "alive": [{"run": "old", "session": S}]}

    asyncio.run(scenario())


def test_a_dead_run_says_nothing_also_after_its_end(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            words = {"run": "r1", "session": S, "kind": "final"}
            assert await bridge.emit(words) is None
            await bridge.reply(S, "r1")
            await stop(server, S)
            assert await bridge.emit(words) == "the run was stopped"

    asyncio.run(scenario())


def test_a_typed_stop_is_one_stop_however_often_the_host_tells_it(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            await asyncio.gather(*(bridge.runStopped("r1", S) for _ in range(3)))
            await bridge.runEnded("r1")
            await bridge.runStopped("r1", S)
            assert await bridge.latched(S)
            while server.engine.stops.busy or not list(receipts.read(place.receipts)):
                await asyncio.sleep(0.02)
            assert len(list(receipts.read(place.receipts))) == 1
            assert server.engine.store.standing(S).refusal

    asyncio.run(scenario())


def test_a_second_stop_brakes_at_once_although_an_old_latch_is_there(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await stop(server, S)
            await bridge.message({"session": S, "id": "m1", "sender": "me", "authorised": True})
            assert not await bridge.latched(S)
            monkeypatch.setattr(server.engine.stops, "stop", _never)  # it is slow to latch
            await bridge.tool("r2")
            await bridge.runStopped("r2", S)
            await server.engine.bridges.push(server.engine.stops.mirror([T]))
            assert await bridge.latched(S)

    asyncio.run(scenario())


async def _never(*_: Any) -> dict[str, Any]:
    await asyncio.sleep(30)
    return {}


def test_a_child_spawned_while_the_engine_is_away_is_known_when_it_is_back(place: Paths) -> None:
    child = "agent:main:subagent:1"

    async def scenario() -> None:
        async with node(place) as bridge:
            await bridge.childSpawned({"child": child, "parent": S})
            async with engine(place) as server:
                await bridge.until("connected")
                assert server.engine.store.descendants(S) == [child]

    asyncio.run(scenario())


def test_the_bridge_starts_again_in_the_same_process(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await stop(server, S)
            await bridge.stop()
            assert await bridge.latched(S), "what is closed stays closed"
            await bridge.start()
            await bridge.until("connected")
            assert await bridge.tool("r1", T) is None

    asyncio.run(scenario())


def test_a_new_version_of_the_plugin_inherits_what_is_closed(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            await bridge.runStopped("r1", S)  # no engine: only a brake and a tombstone
            await bridge.replace()
            assert await bridge.latched(S)
            assert list(place.tombstones.glob("*.json"))

    asyncio.run(scenario())


def test_a_message_from_before_a_stop_does_not_release_it_when_the_engine_is_back(
    place: Paths,
) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            said = {"session": S, "id": "m1", "sender": "me", "authorised": True}
            held = asyncio.ensure_future(bridge.message(said))
            await bridge.runStopped("r1", S)
            async with engine(place) as server:
                await bridge.until("connected")
                await held
                assert server.engine.store.standing(S).refusal

    asyncio.run(scenario())


MESSAGE = {"session": S, "id": "m1", "sender": "me", "authorised": True}


def test_a_reply_aborted_by_a_message_that_the_host_used_up_is_a_stop(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.tool("r1")
            await bridge.received(S, "m1")
            await bridge.message(MESSAGE)  # steered into the run, and still waiting
            aborted = asyncio.ensure_future(bridge.replyAborted("r1", S))
            await asyncio.sleep(0.06)
            await bridge.received(S, "stop")  # told after what it did
            await aborted
            assert await bridge.latched(S)

    asyncio.run(scenario())


def test_a_reply_aborted_by_a_new_message_or_by_the_host_is_no_stop(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.tool("r1")
            await bridge.replyAborted("r1", S)
            await bridge.received(S, "m1")
            await bridge.message(MESSAGE)
            await bridge.replyAborted("r1", S)
            assert not await bridge.latched(S)

    asyncio.run(scenario())


def test_a_message_held_while_a_stop_came_from_elsewhere_does_not_release_it(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            held = asyncio.ensure_future(bridge.message(MESSAGE))
            await asyncio.sleep(0.3)
            async with engine(place) as server:
                server.engine.store.begin_stop("s1", {}, [S], [S])
                await held
                assert server.engine.store.standing(S).refusal

    asyncio.run(scenario())


def test_a_stopped_run_says_nothing_although_no_engine_can_bump_it(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            admitted = asyncio.ensure_future(bridge.admit("r1", S, {}))
            await bridge.runStopped("r1", S)
            words = {"run": "r1", "session": S, "kind": "final"}
            assert await bridge.emit(words) == "the run was stopped"
            admitted.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ["{}", '{"port": 99999}', '{"socket": 7}', "[]"])
def test_an_endpoint_that_makes_no_sense_does_not_take_the_gateway_down(
    place: Paths, text: str
) -> None:
    write_private(place.endpoint, text)
    write_private(place.command, '{"command": [5]}')

    async def scenario() -> None:
        async with node(place) as bridge:
            await bridge.runStopped("unknown", None)
            assert await bridge.tool()

    asyncio.run(scenario())


# -- no engine


def test_without_an_engine_a_tool_is_held_and_then_refused_with_the_fix(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            refusal = await bridge.tool()
            assert "clawstop does not answer" in str(refusal)
            assert "clawstop doctor" in str(refusal)

    asyncio.run(scenario())


def test_an_engine_that_comes_back_in_time_answers_the_held_call(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            held = asyncio.ensure_future(bridge.tool())
            await asyncio.sleep(0.2)
            async with engine(place):
                assert await held is None

    asyncio.run(scenario())


def test_a_run_that_no_person_asked_for_waits_for_the_first_engine(place: Paths) -> None:
    """A restarting host replays announces before anything else is up."""
    child = "agent:main:subagent:1"

    async def scenario() -> None:
        async with engine(place) as server:
            server.engine.store.adopt(child, S)
            await stop(server, S)
            server.engine.store.admit("m1", S)
        async with node(place) as bridge:
            waiting = asyncio.ensure_future(bridge.admit(f"announce:v1:{child}:run", S, {}))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            async with engine(place):
                assert await waiting, "the child is dead, and so is what it reports"

    asyncio.run(scenario())


def test_a_command_file_that_others_can_write_is_not_run(place: Paths, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    write_private(place.command, json.dumps({"command": ["/bin/sh", "-c", f"touch {proof}"]}))
    place.command.chmod(0o666)

    async def scenario() -> None:
        async with node(place) as bridge:
            assert await bridge.tool()
            assert not proof.exists()
            place.command.chmod(0o600)
            assert await bridge.tool()
            assert proof.exists(), "a private one is"

    asyncio.run(scenario())


# -- an engine that says anything


@asynccontextmanager
async def scripted(place: Paths, *lines: bytes) -> AsyncIterator[list[dict[str, Any]]]:
    """An engine whose every answer to hello is these lines, in one write."""
    heard: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(json.loads(await reader.readline()))
        writer.write(b"".join(lines))
        async for line in reader:
            heard.append(json.loads(line))
        writer.close()

    path = place.root / "scripted.sock"
    listening = await asyncio.start_unix_server(serve, path)
    write_private(place.endpoint, json.dumps({"socket": str(path), "token": "t"}))
    try:
        yield heard
    finally:
        listening.close()
        place.endpoint.unlink()


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def welcome(**latches: int) -> bytes:
    mirror = {"first": 1, "latches": latches, "sessions": {}}
    return line(id=1, result={"state": "00", "settings": {}, "mirror": mirror})


def test_a_mirror_right_behind_the_hello_is_not_overwritten_by_it(place: Paths) -> None:
    news = {"first": 1, "latches": {S: 1}, "sessions": {S: [2, 0]}}
    behind = line(id=9, method="mirror", params=news)

    async def scenario() -> None:
        async with scripted(place, welcome(), behind) as heard, node(place) as bridge:
            await bridge.until("connected")
            assert await bridge.latched(S)
            assert {"id": 9, "result": None} in heard

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage\n",
        line(id=1, error={"code": "protocol", "message": "another version"}),
        line(id=1, result={}),
        b"",
    ],
    ids=["garbage", "refused", "empty", "silence"],
)
def test_an_engine_that_makes_no_sense_allows_nothing(place: Paths, answer: bytes) -> None:
    async def scenario() -> None:
        async with scripted(place, answer), node(place) as bridge:
            assert await bridge.tool()
            assert not await bridge.connected()

    asyncio.run(scenario())
