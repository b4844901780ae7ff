"""The JavaScript bridge under Node: against the real engine, and against one that says anything."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clawstop import cookies, receipts
from clawstop.cuts import Cut, Stage
from clawstop.paths import Paths, write_private
from nodes import WAIT, S, node, stop
from wire import engine

T = "agent:main:other"


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    return paths


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


def test_a_gateway_that_has_just_started_waits_for_its_first_engine(place: Paths) -> None:
    """Longer than for one that went away: on a busy machine it takes some seconds to come."""
    true = shutil.which("true")
    write_private(place.command, json.dumps({"command": [true]}))

    async def scenario() -> None:
        async with node(place) as bridge:
            call = asyncio.ensure_future(bridge.tool())
            said = {"session": T, "id": "m1", "sender": "me", "authorised": True}
            message = asyncio.ensure_future(bridge.message(said))
            await asyncio.sleep(2.5)
            assert not call.done()
            assert not message.done()
            async with engine(place) as server:
                assert await call is None
                await message
                assert server.engine.store.prompts.has(T, "m1")

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
            assert receipt["left"][0].startswith(f"run old of {S} is still alive")
            await bridge.message({"session": S, "id": "m1", "sender": "me", "authorised": True})
            assert await bridge.tool("new") is None
            (connected,) = server.engine.bridges
            answer = await connected.peer.ask("end", {"sessions": [S], "scopes": [S]}, 5)
            assert answer["ended"] == []
            assert [(run["run"], run["session"]) for run in answer["alive"]] == [("old", S)]

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


def test_what_a_stopped_run_says_after_its_end_is_not_written_down(place: Paths) -> None:
    """The conversation is rolled back by then: it would hang on what is no longer there."""
    words, theirs = {"role": "assistant", "content": "late"}, {"role": "user", "content": "hello"}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            await bridge.reply(S, "r1")
            assert not await bridge.keepsOut(S, words), "it is at work"
            await stop(server, S)
            assert await bridge.keepsOut(S, words)
            assert not await bridge.keepsOut(S, theirs)
            assert not await bridge.keepsOut(T, words)
            await bridge.message({"session": S, "id": "m1", "sender": "me", "authorised": True})
            assert not await bridge.keepsOut(S, words), "it goes on"

    asyncio.run(scenario())


def test_a_turn_that_an_older_host_drops_on_its_way_is_over(place: Paths) -> None:
    """Such a host has no name for it yet, and tells nothing more of it."""

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.older()
            await bridge.message({"session": S, "id": "m1", "sender": "me", "authorised": True})
            assert await bridge.turn(None, S, {"prompt": "tidy up"}) is None
            receipt = await stop(server, S)
            assert receipt["converged"], receipt["left"]
            assert len(receipt["runs"]) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("words", ["something else", "tidy up"])
def test_a_turn_that_was_slow_to_begin_is_refused_and_not_taken_for_the_next(
    place: Paths, words: str
) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.older()
            message = {"session": S, "sender": "me", "authorised": True}
            await bridge.message({**message, "id": "m1", "text": "tidy up"})
            await bridge.turn(None, S, {"prompt": "tidy up"})
            await stop(server, S)
            await bridge.message({**message, "id": "m2", "text": words})
            assert await bridge.turn(None, S, {"prompt": words}) is None
            new = await bridge.place("host-2", S, {"prompt": f"they say: {words}"})
            old = await bridge.place("host-1", S, {"prompt": "they say: tidy up"})
            assert await bridge.admit(new["run"], S, {}) is None, "what they want now"
            assert await bridge.admit(old["run"], S, {}) == "it is over"
            assert await bridge.tool(new["run"]) is None
            assert await bridge.tool(old["run"]) is not None

    asyncio.run(scenario())


def test_a_turn_that_was_slow_to_begin_does_not_take_the_next_ones_message(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.older()
            message = {"session": S, "sender": "me", "authorised": True}
            await bridge.message({**message, "id": "m1", "text": "tidy up"})
            await bridge.turn(None, S, {"prompt": "tidy up"})
            await stop(server, S)
            await bridge.message({**message, "id": "m2", "text": "and now this"})
            old = await bridge.place("host-1", S, {"prompt": "they say: tidy up"})
            assert await bridge.admit(old["run"], S, {}) == "it is over"
            await bridge.turn(None, S, {"prompt": "and now this"})
            new = await bridge.place("host-2", S, {"prompt": "they say: and now this"})
            _, about = await bridge.about(new["run"])
            assert about["message"] == "m2"

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


# -- said in chat


def test_a_stop_on_a_channel_is_one_and_its_line_takes_the_hosts_place(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            await bridge.chat("heard", S, {"id": "m2", "text": "停止", "sender": "42"})
            await bridge.chat("channelStopped", S, "m2")
            assert await bridge.latched(S)
            line = await bridge.chat("instead", S)
            assert line.startswith("尚未完成：仍有 1 个任务在运行"), (
                "nobody plays the host: r1 lives on"
            )
            assert await bridge.chat("instead", S) is None, "one line"
            [receipt] = receipts.read(place.receipts)
            assert (receipt["trigger"], receipt["who"]) == ("停止", "42")
            assert server.engine.store.standing(S).refusal

    asyncio.run(scenario())


@pytest.mark.parametrize(("at", "read"), [(6000, False), (7000, True), (8000, True)])
def test_what_was_written_before_the_stop_and_comes_in_after_it_is_not_read(
    place: Paths, at: int, read: bool
) -> None:
    """A channel that hands over one message after the other; its clock counts seconds."""
    route = {"OriginatingChannel": "telegram", "OriginatingTo": "telegram:42", "Timestamp": at}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            heard = {"id": "m2", "text": "/stop", "sender": "42", "said": 7000}
            await bridge.chat("heard", S, heard)
            await bridge.chat("channelStopped", S, "m2")
            await bridge.chat("instead", S)
            claim = await bridge.message({**MESSAGE, "text": "and then tidy up", **route})
            assert (claim is None) == read
            assert (server.engine.store.standing(S).refusal is None) == read
            if not read:
                await bridge.until("said")
                assert "before you said stop" in str(await bridge.said())

    asyncio.run(scenario())


def test_a_stop_word_is_claimed_and_answered_where_it_was_said(place: Paths) -> None:
    route = {"OriginatingChannel": "telegram", "OriginatingTo": "telegram:42"}

    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.tool("r1")
            await bridge.reply(S, "r1")
            claim = await bridge.message({**MESSAGE, "text": "please cancel", **route})
            assert claim["handled"] is True
            assert await bridge.latched(S)
            await bridge.until("said")
            [[to, text]] = await bridge.said()
            assert to == "telegram:42"
            assert text.startswith("Stopped: 1 run ended")
            assert "was stopped" in str(await bridge.tool("r2"))

    asyncio.run(scenario())


def test_a_stop_word_of_a_stranger_is_only_talk(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            said = {**MESSAGE, "authorised": False, "text": "stop"}
            assert await bridge.message(said) is None
            assert not await bridge.latched(S)
            group = {"ChatType": "group", "InboundAccessAuthorized": True}
            assert await bridge.message({**said, "id": "m2", **group}) is None
            assert await bridge.message({**said, "id": "m3", "InboundEventKind": "room"}) is None
            assert not await bridge.latched(S)
            direct = {"ChatType": "direct", "InboundAccessAuthorized": True}
            assert (await bridge.message({**said, "id": "m4", **direct}))["handled"]
            assert await bridge.latched(S), "whoever the host lets into a direct chat may"

    asyncio.run(scenario())


def test_talk_is_not_claimed(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            for number, text in enumerate(["stop the docker container", "hi", "", "> stop"]):
                said = {**MESSAGE, "id": f"m{number}", "text": text}
                assert await bridge.message(said) is None
            picture = {**MESSAGE, "id": "p", "text": "stop", "media": [{"type": "image"}]}
            assert await bridge.message(picture) is None
            assert not await bridge.latched(S)

    asyncio.run(scenario())


def test_a_mention_of_the_bot_before_the_word_is_no_hindrance(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            said = {**MESSAGE, "text": "@alice stop", "BotUsername": "scripted_bot"}
            assert await bridge.message(said) is None
            said = {
                **MESSAGE,
                "id": "m2",
                "text": "@scripted_bot 中断",
                "BotUsername": "scripted_bot",
            }
            assert (await bridge.message(said))["handled"]
            assert await bridge.latched(S)

    asyncio.run(scenario())


def test_stops_are_told_in_chat_and_only_to_who_may_command(place: Paths) -> None:
    route = {"OriginatingChannel": "telegram", "OriginatingTo": "42"}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await stop(server, T)
            said = {**MESSAGE, "text": "/stops", **route}
            assert await bridge.message({**said, "authorised": False}) is None
            for id, kind in (("m2", "direct"), ("m3", "group")):
                claim = await bridge.message({**said, "id": id, "ChatType": kind})
                assert claim["handled"]
            while len(await bridge.said()) < 2:
                await asyncio.sleep(0.02)
            [[to, text], [_, shared]] = await bridge.said()
            assert to == "42"
            assert T in text
            assert shared == "nothing was stopped yet", "others read along: only what is theirs"

    asyncio.run(scenario())


def test_a_frozen_tool_waits_and_the_person_is_told_why(place: Paths) -> None:
    heard = {"id": "m1", "text": "开始", "route": {"channel": "telegram", "to": "42"}}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            assert await bridge.tool("r1") is None
            await bridge.chat("heard", S, heard)
            commands = server.engine.commands
            await commands.freeze(None, {"target": S, "pid": 1})
            waiting = asyncio.create_task(bridge.tool("r1"))
            await bridge.until("said")
            assert not waiting.done()
            [[to, text]] = await bridge.said()
            assert (to, "已冻结" in text) == ("42", True)
            await commands.release(None, {"target": S, "pid": 1})
            assert await asyncio.wait_for(waiting, WAIT) is None
            (connected,) = server.engine.bridges
            connected.tell(S, ["stopped", "for good"])
            while len(await bridge.said()) < 2:
                await asyncio.sleep(0.02)
            assert (await bridge.said())[1] == ["42", "stopped\nfor good"]

    asyncio.run(scenario())


def test_a_frozen_tool_that_is_stopped_is_refused(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            assert await bridge.tool("r1") is None
            await server.engine.commands.freeze(None, {"target": S, "pid": 1})
            waiting = asyncio.create_task(bridge.tool("r1"))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await stop(server, S)
            assert "stopped" in str(await asyncio.wait_for(waiting, WAIT))

    asyncio.run(scenario())


def test_new_is_typed_once_and_carried_out_once(place: Paths) -> None:
    turn = {"CommandTurn": {"authorized": True, "commandName": "new"}, "text": "/new"}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            assert await bridge.message({**MESSAGE, **turn}) is None, "the host carries it out"
            await bridge.chat("reset", S, "new")  # which it tells as well
            await bridge.runEnded("r1")
            while not list(receipts.read(place.receipts)):
                await asyncio.sleep(0.02)
            assert server.engine.store.generation(S) == 2
            assert not await bridge.latched(S)
            await bridge.message({**MESSAGE, "id": "m2"})
            assert await bridge.tool("r2") is None, "the fresh conversation goes on"
            await bridge.chat("reset", S, "reset")  # and one over RPC
            await bridge.runEnded("r2")
            while server.engine.store.generation(S) == 2:
                await asyncio.sleep(0.02)
            stranger = {**MESSAGE, "id": "m3", **turn, "authorised": False}
            await bridge.message(stranger)
            await asyncio.sleep(0.1)
            assert server.engine.store.generation(S) == 3

    asyncio.run(scenario())


def test_an_operators_stop_counts_also_when_nothing_runs(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.until("connected")
            told = {"session": "main", "text": "/stop", "method": "chat.send"}
            await bridge.chat("operatorStopped", told)
            await bridge.chat("operatorStopped", told)
            assert await bridge.latched(S), "a page calls the main session by a short name"
            while not list(receipts.read(place.receipts)):
                await asyncio.sleep(0.02)
            [receipt] = receipts.read(place.receipts)
            assert receipt["who"] == "operator"

    asyncio.run(scenario())


def test_a_message_steered_in_is_discarded_with_the_run_and_named(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            await bridge.reply(S, "r1")
            await bridge.message({**MESSAGE, "text": "and also this"})
            receipt = await stop(server, S)
            assert [row["text"] for row in receipt["drained"]["queued"]] == ["and also this"]
            assert await bridge.admit("r2", S, {"trigger": "user"}), "it does not become a run"

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


# -- what must not be mistaken


def test_the_host_talking_to_itself_releases_nothing(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await stop(server, S)
            inside = {"kind": "internal_system", "sourceTool": "restart-sentinel"}
            await bridge.message({**MESSAGE, "InputProvenance": inside})
            await bridge.message({**MESSAGE, "id": "m2", "InternalTurnSource": "goal"})
            assert await bridge.latched(S)
            assert await bridge.admit("r2", S, {"trigger": "user"})

    asyncio.run(scenario())


def test_a_stop_right_after_a_message_is_a_second_stop(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.until("connected")
            await bridge.message({**MESSAGE, "text": "stop"})
            await asyncio.gather(
                bridge.message({**MESSAGE, "id": "m2"}),
                bridge.message({**MESSAGE, "id": "m3", "text": "stop"}),
            )
            assert await bridge.latched(S)
            await server.engine.stops.settle()
            assert await bridge.tool("m2") is not None

    asyncio.run(scenario())


def test_a_stop_that_is_told_late_does_not_stop_what_came_after(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.until("connected")
            said = time.time() * 1000
            told = {"session": S, "text": "/stop", "method": "chat.send", "at": said}
            await bridge.tool("r1")
            await bridge.runStopped("r1", S)
            await asyncio.sleep(0.05)
            await bridge.message({**MESSAGE, "OriginatingChannel": "webchat"})
            assert await bridge.tool("m1") is None
            await bridge.chat("operatorStopped", told)  # the host's answer leaves only now
            assert not await bridge.latched(S)
            assert await bridge.tool("m1") is None

    asyncio.run(scenario())


def test_the_same_word_told_again_after_the_release_is_the_same_stop(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.until("connected")
            word = {**MESSAGE, "id": "w1", "text": "stop"}
            await bridge.message(word)
            await server.engine.stops.settle()
            await bridge.message({**MESSAGE, "id": "m2"})
            assert not await bridge.latched(S)
            await bridge.message(word)
            await server.engine.stops.settle()
            await asyncio.sleep(0.1)
            assert not await bridge.latched(S)
            assert server.engine.store.generation(S) == 2

    asyncio.run(scenario())


def test_an_engine_that_knows_better_lifts_the_brake(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            await bridge.runStopped("r1", S)  # nobody hears it but the brake and a tombstone
            async with engine(place) as server:  # takes the tombstone in, and is told to release
                server.engine.store.release(S)
                await bridge.until("connected")
                async with asyncio.timeout(10):
                    while await bridge.latched(S):
                        await asyncio.sleep(0.02)
                assert server.engine.store.generation(S) == 2, "it was one stop"

    asyncio.run(scenario())


def test_a_stop_that_the_engine_refuses_is_not_asked_for_again_and_again(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.until("connected")
            line = await bridge.chat("stopped", "agent:main:\n", {})
            assert line.startswith("Stopped.")
            assert await bridge.latched("agent:main:\n")

    asyncio.run(scenario())


def test_a_host_that_fails_to_abort_does_not_take_the_gateway_down(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            await bridge.stubborn(S)
            receipt = await stop(server, S)
            assert not receipt["converged"]
            assert "still alive" in receipt["left"][0]
            assert await bridge.latched(S)

    asyncio.run(scenario())


def test_the_ladder_stops_where_a_persons_new_run_begins(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")  # hangs: nobody plays the host for it
            stopping = asyncio.ensure_future(stop(server, S))
            await bridge.until("latched", S)
            await bridge.message(MESSAGE)
            await bridge.reply(S, "m1")
            assert await bridge.tool("m1") is None
            receipt = await stopping
            assert await bridge.aborted() == []
            assert [run["run"] for run in receipt["alive"]] == ["r1"]
            assert await bridge.tool("m1") is None

    asyncio.run(scenario())


def test_a_run_that_is_not_the_persons_does_not_take_their_message(place: Paths) -> None:
    page = {**MESSAGE, "OriginatingChannel": "webchat"}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            await stop(server, S)
            await bridge.message(page)
            assert await bridge.admit("recovery", S, {"trigger": "user"}), "r1 is still alive"
            assert await bridge.admit("m1", S, {"trigger": "user"}) is None

    asyncio.run(scenario())


def test_what_was_said_with_new_is_not_lost(place: Paths) -> None:
    turn = {"CommandTurn": {"authorized": True, "commandName": "new"}, "text": "/new fix it"}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.tool("r1")
            await bridge.message({**MESSAGE, **turn, "OriginatingChannel": "webchat"})
            await server.engine.stops.settle()
            [receipt] = receipts.read(place.receipts)
            assert receipt["drained"]["queued"] == []
            assert await bridge.admit("m1", S, {"trigger": "user"}) is None

    asyncio.run(scenario())


def test_two_new_are_two(place: Paths) -> None:
    turn = {"CommandTurn": {"authorized": True, "commandName": "new"}, "text": "/new"}

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            for id in ("m1", "m2"):
                await bridge.message({**MESSAGE, **turn, "id": id})
            for _ in range(2):
                await bridge.chat("reset", S, "new")
            await bridge.replace()
            await bridge.until("connected")
            await server.engine.stops.settle()
            assert server.engine.store.generation(S) == 3

    asyncio.run(scenario())


def test_only_a_channels_own_notice_is_replaced(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.until("connected")
            await bridge.message({**MESSAGE, "text": "stop"})
            assert await bridge.chat("instead", S) is None, "this one is answered past the run"

    asyncio.run(scenario())


def test_a_process_without_a_cookie_may_not_be(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            assert await bridge.cookie(S) is None  # after waiting for an engine
            async with engine(place):
                await bridge.until("connected")
                assert "try it again" in str(await bridge.tool("r1"))
                assert str(await bridge.cookie(S)).startswith("1:")
                assert await bridge.tool("r1") is None

    asyncio.run(scenario())


def test_a_process_knows_whose_it_is_whatever_its_session_is_called(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.until("connected")
            for session in ("agent:dev1:it's (me)!*", "agent:dev1:中文 é/~_.-", "a%b"):
                given = await bridge.execEnv(session, "gateway")
                assert given["OPENCLAW_STATE_DIR"] == str(place.openclaw)
                owner = cookies.parse(given["CLAWSTOP_COOKIE"])
                assert owner == cookies.Owner(place.state_id, session, 0)
                away = await bridge.execEnv(session, "node")
                assert "OPENCLAW_STATE_DIR" not in away, "that folder is not on this machine"

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
            async with asyncio.timeout(WAIT):
                while not proof.exists():  # a private one is
                    await asyncio.sleep(0.05)

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


# -- a new message


DIRECT = {"ChatType": "direct", "OriginatingChannel": "telegram", "OriginatingTo": "telegram:42"}


@pytest.mark.parametrize(("sender", "taken"), [("7", False), ("42", True)])
def test_a_task_that_goes_on_after_a_crash_is_its_senders_to_take_over(
    place: Paths, sender: str, taken: bool
) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.until("connected")
            store, run, now = server.engine.store, "clawstop-resume-1", time.time()
            cut = Cut(S, store.generation(S), "", "message", now, now, now, sender="42", sent=run)
            store.cuts.put(replace(cut, stage=Stage.RESUMED))
            await bridge.started(run, S)
            await bridge.reply(S, run)
            group = {**DIRECT, "ChatType": "group", "id": "m7", "sender": sender}
            await bridge.message({**MESSAGE, **group})
            assert (store.generation(S) > 1) == taken

    asyncio.run(scenario())


def test_a_message_whose_run_cannot_be_ended_is_left_to_the_host_and_told(place: Paths) -> None:
    """Nobody plays the host's way of ending an embedded run here."""

    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            assert await bridge.tool("r1") is None
            await bridge.reply(S, "r1")
            begun = time.monotonic()
            claim = await bridge.message({**MESSAGE, "text": "rather this", **DIRECT})
            assert claim is None, "it goes on its way"
            assert time.monotonic() - begun < WAIT, "in time"
            await bridge.until("said")
            [[_, line]] = await bridge.said()
            assert line.startswith("NOT COMPLETE: runs still alive: 1")
            assert "Your message waits" in line
            assert "was stopped" in str(await bridge.tool("r1")), "the old run acts no more"

    asyncio.run(scenario())


def test_a_message_that_no_run_follows_holds_up_the_next_one_only_for_a_moment(
    place: Paths,
) -> None:
    async def scenario() -> None:
        async with engine(place), node(place) as bridge:
            await bridge.message({**MESSAGE, **DIRECT})
            begun = time.monotonic()
            await bridge.message({**MESSAGE, "id": "m2", **DIRECT})
            assert time.monotonic() - begun < 2.0
            assert await bridge.said() == []

    asyncio.run(scenario())


def test_a_process_of_the_new_run_is_not_the_old_ones(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            assert await bridge.tool("old") is None
            request = server.engine._meant({"session": S, "latch": False})
            server.engine.stops.latch(server.engine.request("t1", request, "new message", "me"))
            await server.engine.bridges.push(server.engine.stops.mirror([S]))
            await bridge.message({**MESSAGE, "text": "/next"})
            assert await bridge.tool("m1") is None
            assert (await bridge.cookie(S)).split(":")[2] == "2", "the old one lives on beside it"

    asyncio.run(scenario())


def test_in_a_stopped_session_nothing_is_sent_but_our_own_line(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            assert await bridge.tool() is None
            assert await bridge.sending(S, "a wake's text") is None
            await stop(server, S)
            assert await bridge.sending(S, "a wake's text") == "the session is stopped"
            assert await bridge.sending(T, "another's") is None
            await bridge.ours("Stopped.")
            assert await bridge.sending(S, "Stopped. -- signed") is None
            assert await bridge.sending(S, "Stopped.") is not None, "once"

    asyncio.run(scenario())


def test_a_kill_by_name_while_the_engine_is_away_is_done_when_it_is_back(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            order = {**MESSAGE, "text": "kill everything", "ChatType": "direct"}
            assert (await bridge.message(order))["handled"], "it is no talk"
            talk = await bridge.message({**MESSAGE, "id": "m2", "text": "kill it with fire"})
            assert talk is None
            async with engine(place) as server:
                assert server.engine.standing(S).refusal
                async with asyncio.timeout(WAIT):
                    while not (found := list(receipts.read(place.receipts))):
                        await asyncio.sleep(0.02)
                assert found[0]["scopes"] == ["*"]

    asyncio.run(scenario())


def test_a_message_from_before_a_stop_releases_nothing_when_it_is_told_again(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            told = {**MESSAGE, "ChatType": "direct"}
            first = asyncio.ensure_future(bridge.message(told))
            await asyncio.sleep(0.1)
            await bridge.message({**MESSAGE, "id": "m2", "text": "stop it", "ChatType": "direct"})
            async with engine(place) as server:
                await bridge.until("connected")
                await first
                await bridge.message(told)  # the host's other instance of the plugin
                await server.engine.stops.settle()
                assert server.engine.standing(S).refusal

    asyncio.run(scenario())


def test_of_several_that_go_by_a_name_the_number_of_one_stops_it(place: Paths) -> None:
    entries = {"one-pm": {}, "zero_pm": {"name": "产品经理"}, "dev1": {}}
    config = place.openclaw / "openclaw.json"
    config.write_text(json.dumps({"agents": {"entries": entries}}))
    ids = itertools.count()

    async def scenario() -> None:
        async with engine(place) as server, node(place) as bridge:
            await bridge.until("connected")

            async def say(text: str, sender: str = "me") -> bool:
                told = {"OriginatingChannel": "telegram", "OriginatingTo": "chat"}
                told |= {"ChatType": "direct", "id": f"n{next(ids)}"}
                answer = await bridge.message({**MESSAGE, **told, "text": text, "sender": sender})
                return bool(answer and answer["handled"])

            async def stopped() -> list[str]:
                await server.engine.stops.settle()
                return [scope for r in receipts.read(place.receipts) for scope in r["scopes"]]

            assert not await say("2"), "nobody asked"
            assert await say("kill pm")
            assert not await say("2", sender="somebody else")
            assert await say("２。")
            assert await stopped() == ["agent:zero_pm"]
            assert not await say("2"), "once"
            assert await say("停掉 pm")
            assert not await say("what is the weather?")
            assert not await say("1"), "the question is over"
            assert await say("/kill pm")
            assert not await say("3"), "there is none"
            assert await say("/kill pn") is True  # nobody; the nearest are named
            assert not await say("kill pn"), "a sentence for the agent"
            assert await stopped() == ["agent:zero_pm"]
            assert await say("杀掉 产品经理")
            assert await stopped() == ["agent:zero_pm"] * 2
            lines = "\n".join(text for _, text in await bridge.said())
            assert (
                "Several go by pm. Reply with the number\n1. one-pm\n2. zero_pm (产品经理)" in lines
            )
            assert "有多个对象符合 pm，请回复编号" in lines
            assert "Nobody is called pn" in lines

    asyncio.run(scenario())


def test_a_turn_is_told_what_its_file_does_not_say_and_waits_for_nothing(place: Paths) -> None:
    async def scenario() -> None:
        async with node(place) as bridge:
            assert await bridge.block("main", "/nowhere") == "", "no engine, no words"
            async with engine(place):
                await bridge.until("connected")
                assert "You are the agent `main`" in await bridge.block("main", "/nowhere")
                assert await bridge.block("", "/nowhere") == ""

    asyncio.run(scenario())
