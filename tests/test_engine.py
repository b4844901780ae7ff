"""The engine on its socket: verdicts, stops, and every kind of bad input."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from clawstop import (
    bridges,
    cookies,
    hookimpl,
    paths,
    plugins,
    processes,
    reaping,
    receipts,
    schema,
    server,
    stops,
)
from clawstop.cookies import Owner
from clawstop.errors import StoreError
from clawstop.events import Message, Stop, ToolCall
from clawstop.paths import Paths
from clawstop.protocol import MAX_LINE
from clawstop.server import EngineRunning, Server
from clawstop.store import Store
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire import Wire, bridge, engine, wire

S = "agent:main:main"


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "openclaw")


@pytest.fixture(params=["unix", "tcp"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tcp")


async def tool(one: Wire, session: str = S, run: str = "r1") -> str | None:
    refusal: str | None = (await one.result("tool", id="c", run=run, session=session, tool="exec"))[
        "refusal"
    ]
    return refusal


@asynccontextmanager
async def pair(place: Paths) -> AsyncIterator[tuple[Server, Wire]]:
    async with engine(place) as running, bridge(place) as one:
        yield running, one


async def stop(running: Server, target: str, **more: Any) -> dict[str, Any]:
    return await running.engine.commands.stop(None, {"target": target, "pid": os.getpid(), **more})


def owned(place: Paths, session: str, generation: int = 1) -> subprocess.Popen[bytes]:
    """A process of that session, which dies by itself after a minute."""
    cookie = cookies.format(Owner(place.state_id, session, generation))
    return subprocess.Popen(["sleep", "60"], env={**os.environ, cookies.VARIABLE: cookie})


# -- verdicts


def test_a_tool_runs_until_the_stop_and_never_after(place: Paths, portable: bool) -> None:
    async def scenario() -> None:
        async with engine(place, portable=portable) as running, bridge(place) as one:
            assert await tool(one) is None
            receipt = await stop(running, S)
            assert receipt["converged"]
            assert [message["method"] for message in one.asked] == ["mirror", "end", "drain"]
            assert one.asked[0]["params"]["latches"] == {S: 1}
            assert "is stopped" in str(await tool(one))

    asyncio.run(scenario())


def test_stopping_one_session_leaves_the_others_alone(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            await stop_with_agents(running, "a", "b")
            async with bridge(place) as one:
                assert await tool(one, "agent:a:x")
                assert await tool(one, "agent:b:x") is None

    async def stop_with_agents(running: Server, *agents: str) -> None:
        for agent in agents:
            (place.openclaw / "agents" / agent).mkdir(parents=True)
        assert (await stop(running, agents[0]))["converged"]

    asyncio.run(scenario())


def test_a_stop_while_a_plugin_thinks_is_seen_before_the_verdict(place: Paths) -> None:
    class Slow:
        @hookimpl
        def clawstop_pre_tool(self, call: ToolCall) -> None:
            time.sleep(0.3)

    async def scenario() -> None:
        async with engine(place) as running, bridge(place) as one:
            running.engine.plugins.register(Slow(), "slow")
            asking = asyncio.create_task(tool(one))
            await asyncio.sleep(0.1)
            running.engine.store.begin_stop("s1", {}, [S], [S])
            assert "is stopped" in str(await asking)

    asyncio.run(scenario())


def test_a_bridge_that_does_not_acknowledge_is_cut_off(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            await tool(one)
            one.acknowledge = False
            receipt = await stop(running, S)
            assert receipt["cut_off"] == ["test 1 (pid 1)"]
            while await one.line():
                pass  # what was sent before, then the end of the stream

    asyncio.run(scenario())


def test_a_message_of_a_person_without_authority_releases_nothing(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            running.engine.store.begin_stop("s1", {}, [S], [S])
            message = {"session": S, "sender": "eve"}
            assert not (await one.result("message", id="1", authorised=False, **message))[
                "released"
            ]
            assert not (await one.result("message", id="1", authorised="yes", **message))[
                "released"
            ]
            assert not (await one.result("message", id="", authorised=True, **message))["released"]
            assert (await one.result("message", id="2", authorised=True, **message))["released"]

    asyncio.run(scenario())


def test_a_message_resubmitted_after_the_stop_releases_nothing(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            said = {"session": S, "sender": "me", "authorised": True}
            await one.result("message", id="m1", **said)
            running.engine.store.begin_stop("s1", {}, [S], [S])
            assert not (await one.result("message", id="m1", **said))["released"]
            assert (await one.result("message", id="m2", **said))["released"]

    asyncio.run(scenario())


def test_a_message_that_a_plugin_thought_about_does_not_release_a_later_stop(
    place: Paths,
) -> None:
    class Slow:
        @hookimpl
        def clawstop_message(self, message: Message) -> None:
            time.sleep(0.3)

    async def scenario() -> None:
        async with pair(place) as (running, one):
            running.engine.plugins.register(Slow(), "slow")
            said = {"session": S, "sender": "me", "authorised": True}
            asking = asyncio.create_task(one.result("message", id="m1", **said))
            await asyncio.sleep(0.1)
            running.engine.store.begin_stop("s1", {}, [S], [S])
            assert not (await asking)["released"]

    asyncio.run(scenario())


def test_a_stop_of_another_version_keeps_its_latch_and_the_engine_starts(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.store.begin_stop("odd", {"new": "shape"}, [S], [S])
            await running.engine.stops.resume()
            assert running.engine.store.standing(S).refusal

    asyncio.run(scenario())


def test_a_run_that_outlived_a_tombstone_stays_dead_after_the_release(place: Paths) -> None:
    tombstone(place, "t1", json.dumps({"target": S}))

    async def scenario() -> None:
        async with engine(place), bridge(place, runs=[{"run": "r1", "session": S}]) as one:
            said = {"session": S, "sender": "me", "authorised": True}
            assert (await one.result("message", id="m1", **said))["released"]
            assert "cannot act any more" in str(await tool(one, run="r1"))

    asyncio.run(scenario())


def test_a_second_gateways_hello_leaves_the_firsts_runs_alone(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            await one.result("run_start", run="r1", session=S, cause="message")
            async with bridge(place, pid=2):
                assert [run for run, _, _ in running.engine.store.live_runs()] == ["r1"]

    asyncio.run(scenario())


def test_new_settings_hold_at_once(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            await one.result("configure", config={"grace_ms": 7})
            assert running.engine.settings.grace_ms == 7
            await one.result("configure", config={"grace": 7})
            assert running.engine.settings.grace_ms == 7, "the last good ones stay"
            assert "there is no such setting" in running.engine.problems[0]

    asyncio.run(scenario())


def test_message_numbers_of_two_chats_are_not_the_same_message(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            for session in (S, "agent:main:other"):
                running.engine.store.begin_stop(session, {}, [session], [])
                said = {"session": session, "sender": "me", "authorised": True}
                assert (await one.result("message", id="101", **said))["released"]

    asyncio.run(scenario())


# -- stops


def test_a_stop_kills_what_the_session_owns_and_writes_it_down(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            await one.result("run_start", run="r1", session=S, cause="message")
            mine, other = owned(place, S), owned(place, "agent:main:other")
            receipt = await stop(running, S)
            assert [killed["pid"] for killed in receipt["processes"]] == [mine.pid]
            assert mine.wait(5) != 0
            assert other.poll() is None
            other.kill()
            other.wait()
            assert receipts.verify(place.receipts) == []
            assert receipt["sessions"] == {S: [1, 2]}

    asyncio.run(scenario())


def test_a_process_of_a_run_started_after_the_release_is_not_touched(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.store.bind("r1", S, "message")
            await stop(running, S)
            running.engine.store.admit("m1", S)
            new = owned(place, S, generation=2)
            await running.engine.stops.resume()
            assert new.poll() is None
            await stop(running, S)
            assert new.wait(5) != 0

    asyncio.run(scenario())


def present(place: Paths, **env: str) -> subprocess.Popen[bytes]:
    """A process that says it is a gateway and does not connect."""
    place.prepare()
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, **env})
    ident = processes.ident_of(process.pid)
    assert ident
    file = place.bridges / f"{process.pid}.json"
    paths.write_private(file, json.dumps({"pid": ident.pid, "start": ident.start}))
    return process


def test_a_gateway_that_is_not_connected_delays_neither_latch_nor_kill_for_ever(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges, "CONNECT_SECONDS", 0.3)
    gateway = present(place)

    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.store.bind("r1", S, "message")
            asking = asyncio.create_task(stop(running, S))
            await asyncio.sleep(0)  # one turn of the loop
            assert running.engine.store.standing(S).refusal
            receipt = await asking
            assert receipt["left"] == [f"gateway {gateway.pid} is not connected"]
            assert running.engine.store.unfinished_stops(), "finished when it comes back"

    asyncio.run(scenario())
    gateway.kill()
    gateway.wait()


def test_a_gateway_that_an_agent_started_is_not_killed_with_the_agent(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridges, "CONNECT_SECONDS", 0.1)
    place.prepare()
    cookie = cookies.format(Owner(place.state_id, S, 1))
    gateway = present(place, **{cookies.VARIABLE: cookie})

    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.store.bind("r1", S, "message")
            await stop(running, S)
            assert gateway.poll() is None

    asyncio.run(scenario())
    gateway.kill()
    gateway.wait()


def test_a_damaged_receipts_file_keeps_no_stop_from_working(place: Paths) -> None:
    place.prepare()
    place.receipts.write_bytes(b'\xff\xfe garbage\n{"id": "old"}\n')

    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.store.bind("r1", S, "message")
            process = owned(place, S)
            assert (await stop(running, S))["converged"]
            assert process.wait(5) != 0

    asyncio.run(scenario())


def test_plugins_that_hang_do_not_keep_the_kill_from_happening(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "DEADLINE", 0.1)
    monkeypatch.setattr(plugins, "REAP_DEADLINE", 0.2)
    release = threading.Event()

    class Hung:
        @hookimpl
        def clawstop_stop_started(self, stop: Stop) -> None:
            release.wait(20)

        @hookimpl
        def clawstop_reap(self, stop: Stop) -> list[Any]:
            release.wait(20)
            return []

    async def scenario() -> None:
        async with engine(place) as running:
            for number in range(12):
                running.engine.plugins.register(Hung(), f"hung{number}")
            running.engine.store.bind("r1", S, "message")
            process = owned(place, S)
            receipt = await asyncio.wait_for(stop(running, S), 15)
            assert process.wait(5) != 0
            assert not receipt["converged"]
            assert "plugin hung0 could not reap" in str(receipt["left"])
        release.set()

    asyncio.run(scenario())


def test_fifty_stops_at_once_are_fifty_receipts(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            sessions = [f"agent:a{n}:main" for n in range(50)]
            for session in sessions:
                running.engine.store.bind("r", session, "message")
            await asyncio.gather(*(stop(running, session) for session in sessions))
            assert len(list(receipts.read(place.receipts))) == 50
            assert receipts.verify(place.receipts) == []
            assert all(running.engine.store.standing(session).refusal for session in sessions)

    asyncio.run(scenario())


def test_a_storm_of_fifty_agents_latches_all_before_it_kills_one(place: Paths) -> None:
    agents = [f"a{number:02}" for number in range(50)]
    entries: dict[str, Any] = {agent: {} for agent in agents}
    config = place.openclaw / "openclaw.json"
    config.parent.mkdir(exist_ok=True)
    config.write_text(json.dumps({"agents": {"entries": entries}}))

    async def scenario() -> None:
        async with pair(place) as (running, one):
            for agent in agents:
                await tool(one, f"agent:{agent}:main")
            victims = [owned(place, f"agent:{agent}:main") for agent in agents]
            try:
                stops = [stop(running, agent, grace=0.1) for agent in agents]
                done = asyncio.gather(*stops)
                await asyncio.sleep(0)
                latched = running.engine.store.mirror()["latches"]
                assert len(latched) == 50, "at once"
                assert all(victim.poll() is None for victim in victims)
                receipts_ = await done
                assert all(receipt["converged"] for receipt in receipts_)
                assert all(victim.wait(5) is not None for victim in victims)
            finally:
                for victim in victims:
                    victim.kill()
                    victim.wait()

    asyncio.run(scenario())


def test_a_stop_that_the_disk_refuses_holds_in_memory_and_says_so(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            core = running.engine
            core.store.bind("r1", S, "message")
            core.store._db.execute("PRAGMA query_only = ON")  # as a read-only disk would
            receipt = await stop(running, S)
            assert not receipt["converged"]
            assert "free some disk space" in receipt["left"][0]
            status = await core.commands.status(None, {})
            assert status["problems"], "status shouts it"
            async with bridge(place) as one:
                assert "is stopped" in str(await tool(one))
                core.store._db.execute("PRAGMA query_only = OFF")
                for _ in range(50):  # tried again every second
                    await asyncio.sleep(0.1)
                    if not core.stops.brakes:
                        break
                assert "is stopped" in str(await tool(one))
            assert core.store.standing(S).refusal, "now it is on disk"

    asyncio.run(scenario())


def test_a_disk_that_is_full_at_the_start_keeps_no_tombstone_from_being_a_latch(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tombstone(place, "t1", json.dumps({"target": S}))
    Store.open(place.database).close()
    opened = schema.open_database

    def full(*args: Any) -> Any:
        db = opened(*args)
        db.execute("PRAGMA query_only = ON")  # as a disk that cannot be written
        return db

    monkeypatch.setattr(schema, "open_database", full)

    async def scenario() -> None:
        async with engine(place) as running:
            core = running.engine
            process = owned(place, S, generation=0)
            assert "is stopped" in str(core.standing(S).refusal)
            assert file.exists(), "it is all that is on disk"
            core.store._db.execute("PRAGMA query_only = OFF")
            async with asyncio.timeout(10):
                while not receipts.find(place.receipts, "t1"):
                    await asyncio.sleep(0.05)
            assert process.wait(5) != 0, "finished as soon as it could be saved"
            assert core.store.standing(S).refusal

    asyncio.run(scenario())


# -- tombstones


def tombstone(place: Paths, name: str, text: str) -> Path:
    place.prepare()
    file = place.tombstones / f"{name}.json"
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_a_tombstone_is_a_latch_before_anybody_connects(place: Paths) -> None:
    file = tombstone(place, "t1", json.dumps({"target": S}))

    async def scenario() -> None:
        async with engine(place) as running:
            assert running.engine.store.standing(S).refusal
            assert not file.exists()
            await running.engine.stops.resume()
            assert receipts.find(place.receipts, "t1")

    asyncio.run(scenario())


def test_a_tombstone_that_is_none_is_put_aside(place: Paths) -> None:
    files = [
        tombstone(place, "garbage", "{"),
        tombstone(place, "list", "[]"),
        tombstone(place, "control", json.dumps({"target": "agent:main:\n"})),
        tombstone(place, "number", json.dumps({"target": 7})),
        tombstone(place, "nobody", json.dumps({"target": "not an id"})),
    ]
    anyone = tombstone(place, "writable", json.dumps({"target": S}))
    anyone.chmod(0o666)
    link = place.tombstones / "link.json"
    link.symlink_to(anyone)

    async def scenario() -> None:
        async with engine(place) as running:
            assert running.engine.store.mirror()["latches"] == {}

    asyncio.run(scenario())
    assert not any(file.exists() for file in files)
    assert len(list(place.tombstones.glob("*.rejected"))) == 7


def test_a_tombstone_means_whom_it_names_and_nobody_like_them(place: Paths) -> None:
    (place.openclaw / "agents" / "zero_dev1").mkdir(parents=True)
    (place.openclaw / "openclaw.json").write_text("{agents: {")
    tombstone(place, "one", json.dumps({"target": "dev1"}))

    async def scenario() -> None:
        async with engine(place) as running:
            assert list(running.engine.store.mirror()["latches"]) == ["agent:dev1"]

    asyncio.run(scenario())


# -- bad input


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b"[]\n",
        b"\xff\xfe\x00\n",
        b'{"id": 1, "method": "tool", "params": 7}\n',
        b"[" * 100_000 + b"\n",
        b"x" * (MAX_LINE + 2) + b"\n",
    ],
    ids=["garbage", "list", "binary", "params", "deep", "huge"],
)
def test_a_line_that_is_no_message_ends_the_connection_and_nothing_else(
    place: Paths, line: bytes
) -> None:
    async def scenario() -> None:
        async with engine(place), bridge(place) as good:
            async with wire(place) as (bad, token):
                await bad.hello(token)
                bad.write(line)
                answer = await bad.line()
                assert answer is not None
                assert answer["error"]["code"] == "protocol"
                assert await bad.line() is None
            assert await tool(good) is None

    asyncio.run(scenario())


def test_half_a_line_at_the_end_is_nothing(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            async with wire(place) as (one, token):
                await one.hello(token)
                one.write(b'{"id": 9, "method": "stop", "params": {"session": "agent:main:main"')
            async with bridge(place) as good:
                assert await tool(good) is None
            assert running.engine.store.mirror()["latches"] == {}

    asyncio.run(scenario())


def test_whoever_does_not_say_hello_first_is_refused(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), wire(place) as (one, _):
            one.write(b'{"id": 1, "method": "stop", "params": {"target": "everything"}}\n')
            assert await one.line() is None, "closed without a word"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("hello", "code", "says"),
    [
        ({"protocol": 2}, "protocol", "of one version"),
        ({"protocol": 3, "oldest": 2}, "protocol", "of one version"),
        ({"protocol": 0}, "protocol", "of one version"),
        ({"protocol": None}, "protocol", "speaks protocol 1"),
        ({"token": "wrong"}, "not_permitted", "wrong token"),
        ({"token": 7}, "usage", "token"),
        ({"role": "king"}, "protocol", "no role"),
        ({"pid": "x"}, "usage", "pid"),
    ],
)
def test_a_wrong_hello_is_refused_in_words(
    place: Paths, hello: dict[str, Any], code: str, says: str
) -> None:
    async def scenario() -> None:
        async with engine(place), wire(place) as (one, token):
            answer = await one.ask(
                "hello", **{"protocol": 1, "role": "bridge", "token": token, "pid": 1, **hello}
            )
            assert answer["error"]["code"] == code
            assert says in answer["error"]["message"]

    asyncio.run(scenario())


def test_a_newer_peer_that_still_speaks_our_protocol_is_welcome(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), wire(place) as (one, token):
            answer = await one.hello(token, protocol=2, oldest=1)
            assert answer["result"]["protocol"] == 1
            assert await tool(one) is None

    asyncio.run(scenario())


def test_an_unknown_method_or_another_roles_is_an_error(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (_, one):
            for method in ("fly", "release", "__init__", "", "hello_"):
                answer = await one.ask(method, target="everything")
                assert answer["error"]["code"] == "usage", method
            assert await tool(one) is None

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 600, 7, None, "agent:main:\x00"])
def test_a_session_key_that_is_none_is_refused(place: Paths, key: Any) -> None:
    async def scenario() -> None:
        async with pair(place) as (_, one):
            answer = await one.ask("tool", id="c", run="r1", session=key, tool="exec")
            assert answer["error"]["code"] == "usage"

    asyncio.run(scenario())


def test_a_session_key_never_becomes_a_path(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            nasty = "agent:main:../../../../tmp/x"
            await tool(one, nasty)
            assert (await stop(running, nasty))["converged"]

    asyncio.run(scenario())
    inside = {file.name for file in place.root.rglob("*")}
    assert not any(name == "x" for name in inside)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    return Paths(tmp_path_factory.mktemp("fuzz") / "openclaw")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=80),
            st.builds(
                lambda method, params, id: json.dumps(
                    {"id": id, "method": method, "params": params}
                ).encode(),
                st.sampled_from(
                    ["tool", "run_start", "run_end", "message", "child", "emit", "stop"]
                ),
                st.dictionaries(
                    st.sampled_from(["session", "run", "id", "tool", "child", "cause", "kind"]),
                    st.one_of(st.none(), st.integers(), st.text(max_size=20), st.just(S)),
                ),
                st.one_of(st.none(), st.integers(0, 5)),
            ),
        ),
        max_size=12,
    )
)
def test_no_sequence_of_lines_takes_the_engine_down(shared: Paths, lines: list[bytes]) -> None:
    async def scenario() -> None:
        async with engine(shared):
            async with wire(shared) as (bad, token):
                await bad.hello(token)
                for line in lines:
                    bad.write(line + b"\n")
                bad.end()
                while await bad.line():
                    pass
            async with bridge(shared) as good:
                await good.result("run_start", run="r", session="agent:fuzz:x", cause="message")
                assert await tool(good, "agent:fuzz:x", "r") is None

    asyncio.run(scenario())


# -- one engine


def test_a_second_engine_leaves_and_the_first_goes_on(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place), bridge(place) as one:
            second = Server(place)
            with pytest.raises(EngineRunning, match="another engine"):
                await second.startup()
            await second.shutdown()
            assert place.endpoint.exists()
            assert await tool(one) is None

    asyncio.run(scenario())


def test_a_socket_left_by_a_dead_engine_is_no_hindrance(place: Paths) -> None:
    place.prepare()
    place.socket.write_text("left over")
    paths.write_private(place.endpoint, json.dumps({"socket": str(place.socket), "token": "old"}))

    async def scenario() -> None:
        async with engine(place), bridge(place) as one:
            assert await tool(one) is None

    asyncio.run(scenario())


def test_everything_the_engine_makes_is_private(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            await stop(running, "everything")
            for entry in [place.root, *place.root.rglob("*")]:
                assert not stat.S_IMODE(entry.lstat().st_mode) & 0o077, entry

    asyncio.run(scenario())


def test_a_state_folder_that_is_somebody_elses_is_refused(place: Paths) -> None:
    place.openclaw.mkdir()
    place.root.symlink_to("/tmp")

    async def scenario() -> None:
        one = Server(place)
        with pytest.raises(StoreError, match="not a folder of yours"):
            await one.startup()
        await one.shutdown()

    asyncio.run(scenario())


def test_a_deep_state_folder_still_gets_a_socket(tmp_path: Path) -> None:
    deep = Paths(tmp_path / ("d" * 60) / ("e" * 60))

    async def scenario() -> None:
        async with engine(deep), bridge(deep) as one:
            assert await tool(one) is None

    asyncio.run(scenario())


def test_an_engine_with_nothing_to_do_leaves_by_itself(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.4)
    asyncio.run(asyncio.wait_for(server.serve(place), 10))
    assert not place.endpoint.exists()


def test_a_stop_finishes_although_its_caller_went_away(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.store.bind("r1", S, "message")
            process = owned(place, S)
            async with wire(place) as (one, token):
                await one.hello(token, role="cli")
                params = {"target": S, "id": "gone", "pid": 1}
                one.write(
                    json.dumps({"id": 5, "method": "stop", "params": params}).encode() + b"\n"
                )
                await one.writer.drain()
                while not running.engine.store.standing(S).refusal:
                    await asyncio.sleep(0)  # gone at the first sign of the latch
            await running.engine.stops.settle()
            assert process.wait(5) != 0
            assert receipts.find(place.receipts, "gone")

    asyncio.run(scenario())


def test_the_callers_own_line_is_spared_and_named(place: Paths) -> None:
    """A run's own process may ask for the stop of its session; it is not shot while it asks."""
    code = (
        "import asyncio, os, sys; from clawstop import client; from clawstop.paths import Paths\n"
        "from pathlib import Path\n"
        f"answer = asyncio.run(client.call(Paths(Path({str(place.openclaw)!r})), 'stop',"
        f" {{'target': {S!r}, 'id': 'inside'}}))\n"
        "print(answer['converged'], answer['left'])\n"
    )

    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.store.bind("r1", S, "message")
            cookie = cookies.format(Owner(place.state_id, S, 1))
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                code,
                env={
                    **os.environ,
                    cookies.VARIABLE: cookie,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await asyncio.wait_for(child.communicate(), 30)
            assert out.startswith(b"False"), out
            assert f"process {child.pid} asked for this stop" in out.decode()

    asyncio.run(scenario())
    assert processes.ident_of(os.getpid())


# -- stop flags


def raise_flag(place: Paths, name: str, **changes: Any) -> None:
    content = {"timestamp": int(time.time() * 1000), "reason": "enough", **changes}
    (place.flags / f"agent-stop-{name}.flag").write_text(json.dumps(content))


def test_a_stop_flag_stops_its_session_once(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            await one.result("run_start", run="r1", session=S, cause="message", session_id="h-1")
            raise_flag(place, "h-1")
            running.engine.tick()
            assert await tool(one) is not None
            await running.engine.stops.settle()
            said = {"session": S, "id": "m1", "sender": "me", "authorised": True}
            assert (await one.result("message", **said))["released"]
            running.engine.tick()
            await one.result("run_start", run="r2", session=S, cause="message")
            assert await tool(one, run="r2") is None, "the same flag is not a second stop"
        async with pair(place) as (running, one):
            running.engine.tick()
            assert await tool(one, run="r3") is None, "nor is it one for the next engine"
            raise_flag(place, "agent%3Amain%3Amain")
            running.engine.tick()
            assert await tool(one, run="r4") is not None

    asyncio.run(scenario())
    told = list(receipts.read(place.receipts))
    assert [r["who"] for r in told] == ["stop flag: enough"] * 2


def test_a_flag_that_names_nobody_stops_nobody(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (running, one):
            raise_flag(place, "nobody")
            raise_flag(place, "..%2F..%2Fetc%2Fpasswd")
            running.engine.tick()
            assert await tool(one) is None
            assert running.engine.store.mirror()["latches"] == {}

    asyncio.run(scenario())


# -- a conversation begun anew


def test_new_ends_what_ran_and_lets_what_comes_run(place: Paths) -> None:
    async def scenario() -> None:
        async with pair(place) as (_, one):
            assert await tool(one) is None
            await one.result("run_start", run="c1", session=f"{S}:child", cause="unknown")
            one.write(
                json.dumps(
                    {"method": "child", "params": {"child": f"{S}:child", "session": S}}
                ).encode()
                + b"\n"
            )
            process = owned(place, S)
            try:
                said = {"id": "n1", "session": S, "trigger": "/new", "latch": False}
                answer = await one.result("stop", **said)
                assert answer["converged"], answer
                assert process.wait(5) is not None
            finally:
                process.kill()
                process.wait()
            assert await tool(one) is not None, "the old run is dead"
            assert await tool(one, run="c2", session=f"{S}:child") is not None
            await one.result("run_start", run="r2", session=S, cause="message")
            assert await tool(one, run="r2") is None, "the fresh conversation is not stopped"

    asyncio.run(scenario())


def test_a_new_while_the_engine_was_down_latches_nothing(place: Paths) -> None:
    tombstone(place, "n2", json.dumps({"target": S, "latch": False}))

    async def scenario() -> None:
        async with pair(place) as (running, one):
            assert running.engine.store.generation(S) == 2
            assert await tool(one, run="fresh") is None

    asyncio.run(scenario())


# -- a run that cannot be ended


GATEWAY = """
import os, signal, sys, time
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_a_gateway_that_cannot_end_a_run_is_ended_where_the_person_wants_that(
    place: Paths, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(stops, "GATEWAY_GRACE", 0.5)
    place.prepare()
    command = [sys.executable, "-c", GATEWAY, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        try:
            assert gateway.stdout
            gateway.stdout.readline()
            ident = processes.ident_of(gateway.pid)
            assert ident is not None
            presence = {"pid": ident.pid, "start": ident.start}
            paths.write_private(place.bridges / "g.json", json.dumps(presence))
            asyncio.run(_stuck(place, gateway))
        finally:
            gateway.kill()


async def _stuck(place: Paths, gateway: subprocess.Popen[bytes]) -> None:
    alive = [{"run": "r1", "session": S, "how": ["reply", "run", "drain", "rpc"]}]
    async with engine(place) as running, bridge(place, pid=gateway.pid) as one:
        await tool(one)
        one.answers["end"] = {"ended": [], "alive": alive}
        asked = await stop(running, S)
        assert not asked["converged"]
        assert asked["left"] == [
            f"run r1 of {S} is still alive; restart the gateway to end it, the stop holds"
        ]
        assert gateway.poll() is None, "nobody asked for that"
        one.write(b'{"method": "configure", "params": {"config": {"escalate": "never"}}}\n')
        await tool(one, "agent:main:other")
        assert (await stop(running, S))["left"] == [f"run r1 of {S} is still alive"]
        config = {"escalate": "gateway-restart"}
        one.write(
            json.dumps({"method": "configure", "params": {"config": config}}).encode() + b"\n"
        )
        await tool(one, "agent:main:other")
        spared = await stop(running, S, pid=gateway.pid)
        assert spared["escalated"] == [
            {"gateway": gateway.pid, "how": "gateway-restart", "ended": False}
        ], "whoever asks from inside it does not cut off the branch"
        assert not spared["converged"]
        assert gateway.poll() is None
        ended = await stop(running, S)
        assert gateway.wait(5) is not None
        assert ended["escalated"] == [
            {"gateway": gateway.pid, "how": "gateway-restart", "ended": True}
        ]
        assert ended["converged"], ended["left"]
        assert running.engine.standing(S).refusal, "the latch holds"


def test_nobody_ends_himself_and_a_gateway_that_is_gone_is_ended() -> None:
    own = processes.ident_of(os.getpid())
    assert own is not None
    assert reaping.end_one(own, 0.1) is False
    with subprocess.Popen(["sleep", "60"]) as child:
        ident = processes.ident_of(child.pid)
        assert ident is not None
        child.kill()
    assert reaping.end_one(ident, 0.1) is True


# -- what was left undone is known, and done later


def test_half_an_emoji_harms_nobody(place: Paths) -> None:
    cut = "a" * 199 + "\ud83d"
    trace = {"kind": "job", "id": "j1", "session": S, "run": "r1", "about": cut}

    async def scenario() -> None:
        async with engine(place) as running, bridge(place, traces=[trace]) as one:
            answer = await one.result("stop", id="s1", session=S, trigger=cut, sender=cut)
            assert answer["id"] == "s1"
            assert receipts.find(place.receipts, "s1")
            assert running.engine.store.dead_jobs([S])

    asyncio.run(scenario())


def test_jobs_that_no_gateway_could_turn_off_are_turned_off_by_the_next(place: Paths) -> None:
    trace = {"kind": "job", "id": "j1", "session": S, "run": "r1", "about": "nag"}

    async def scenario() -> None:
        async with engine(place) as running:
            async with bridge(place, traces=[trace]) as one:
                await tool(one)
            receipt = await stop(running, S)
            assert receipt["left"] == ["scheduled jobs are still on: j1"]
            async with bridge(place) as two:
                off = {"jobs": [{"id": "j1", "outcome": "off"}]}
                two.answers["drain"] = off
                await tool(two, "agent:main:other")
                await running.engine.stops.settle()
                again = receipts.find(place.receipts, receipt["id"])
                assert again is not None
                assert again["converged"], again["left"]
                assert [job["id"] for job in again["drained"]["jobs"]] == ["j1"]
                two.answers["jobs_on"] = [{"id": "j1", "outcome": "on"}]
                back = await running.engine.commands.restore(None, {"pid": 1})
                assert back["jobs"] == [{"id": "j1", "outcome": "on"}]
                assert running.engine.store.dead_jobs([S]) == []

    asyncio.run(scenario())


def test_a_drain_that_fails_is_tried_again_by_the_next_gateway(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running:
            async with bridge(place) as one:
                await tool(one)
                one.answers["drain"] = {"problems": ["an undelivered message may still be sent"]}
                receipt = await stop(running, S)
                assert not receipt["converged"]
            async with bridge(place) as two:
                await tool(two, "agent:main:other")
                await running.engine.stops.settle()
                again = receipts.find(place.receipts, receipt["id"])
                assert again is not None
                assert again["converged"], again["left"]

    asyncio.run(scenario())


def test_a_gateway_that_comes_when_a_stop_has_given_up_on_it_is_not_missed(place: Paths) -> None:
    place.prepare()
    held = ["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.1; done"]
    cookie = cookies.format(Owner(place.state_id, S, 1))
    env = {**os.environ, cookies.VARIABLE: cookie}

    async def scenario() -> None:
        async with pair(place) as (running, one):
            await tool(one)
            one.answers["drain"] = {"problems": ["an undelivered message may still be sent"]}
            stopping = asyncio.create_task(stop(running, S))
            while not [request for request in one.asked if request["method"] == "drain"]:
                await asyncio.sleep(0.01)
            one.answers["drain"] = {}
            async with bridge(place, pid=2):
                assert not stopping.done(), "one that is hard to kill holds it up"
                assert not (await stopping)["converged"]
                await asyncio.sleep(0.1)
                await running.engine.stops.settle()
                last = next(reversed(list(receipts.read(place.receipts))))
                assert last["converged"], last["left"]

    with subprocess.Popen(held, env=env, stdout=subprocess.PIPE) as slow:
        assert slow.stdout
        slow.stdout.readline()
        asyncio.run(scenario())


def test_settings_say_how_long_receipts_are_kept(place: Paths) -> None:
    place.prepare()
    for number in range(40):
        receipts.append(place.receipts, {"id": str(number), "at": time.time()})

    async def scenario() -> None:
        async with engine(place) as running:
            running.engine.tick()
            assert len(list(receipts.read(place.receipts))) == 40, "nobody has said how many"
            async with bridge(place, config={"receipts_keep": 10}):
                running.engine.tick()
                assert len(list(receipts.read(place.receipts))) == 10

    asyncio.run(scenario())


def test_a_message_said_after_a_stop_that_nobody_heard_releases_it(place: Paths) -> None:
    tombstone(place, "t9", json.dumps({"target": S, "at": (time.time() - 5) * 1000}))

    async def scenario() -> None:
        async with pair(place) as (_, one):
            said = {"session": S, "id": "m1", "sender": "me", "authorised": True, "age_ms": 2000}
            assert (await one.result("message", **said))["released"]

    asyncio.run(scenario())


def test_new_on_a_full_disk_does_nothing_now_and_nothing_later(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StoreError("state not saved: disk full")

    async def scenario() -> None:
        async with pair(place) as (running, one):
            await tool(one)
            with monkeypatch.context() as now:
                now.setattr(running.engine.store, "begin_stop", full)
                answer = await one.result("stop", id="n1", session=S, trigger="/new", latch=False)
                assert not answer["converged"]
                assert "free some disk space" in answer["lines"][0]
            assert running.engine.stops.brakes == {}
            assert running.engine.store.generation(S) == 1

    asyncio.run(scenario())


def test_a_receipt_of_an_older_clawstop_can_be_shown_and_restored(place: Paths) -> None:
    place.prepare()
    old = {"id": "old", "at": 1.0, "target": "dev1", "runs": [], "processes": [], "left": []}
    old |= {"converged": True, "spared": [], "ms": {"latched": 1.0}}
    old["tools"] = [{"tool": "exec", "outcome": "done"}]
    receipts.append(place.receipts, old)

    async def scenario() -> None:
        async with pair(place) as (running, one):
            asked = {"pid": 1, "receipt": "old"}
            assert (await running.engine.commands.restore(None, asked))["jobs"] == []
            assert "dev1" in (await one.result("stops"))["lines"][0]
            assert (await one.result("stop", id="old", session=S))["converged"]

    asyncio.run(scenario())
