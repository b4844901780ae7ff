"""What an agent remembers after a stop: without a gateway, and on the embedded host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zoo
from clawstop import receipts, stops, targets
from clawstop.embedded import Exec, Say, Script
from clawstop.errors import NotPermitted, UsageError
from clawstop.memory import Wanted
from clawstop.paths import Paths, write_private
from clawstop.store import Store
from product import Patch, Product, crash_at
from stage import Stage, staged
from transcripts import BEGIN, SESSION, Place, Tree, talked, working
from wire import bridge, engine

OTHER = "agent:dev1:other"
FREEZER = Path("/sys/fs/cgroup/freezer")  # v1: who is frozen in it does not even die of SIGKILL
SCRIPTS: dict[str, Script] = {
    "work": [Say("working"), Exec("sleep 60", background=True), Exec("sleep 60"), Say("done")],
    "note": [
        Exec("echo x >> MEMORY.md; mkdir -p memory; echo y > memory/day.md"),
        Exec("sleep 60"),
    ],
    "deaf": [Exec("trap '' TERM; sleep 60; sleep 60", background=True), Exec("sleep 60")],
    "short": [Exec("true"), Say("short done")],
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, working())


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Product:
    return Product(tmp_path_factory.mktemp("product"))


def stop(product: Product, place: Place, *args: str) -> dict[str, Any]:
    return dict(product.json(place.paths.openclaw, "stop", *args))


def undo(product: Product, place: Place, *args: str) -> subprocess.CompletedProcess[str]:
    return product.run(place.paths.openclaw, "restore", *args)


def hosting(database: Path) -> None:
    """A database as a host's that keeps conversations in it."""
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE session_nodes (session_key)")


# -- without a gateway, as the first tool of this kind was used


def test_a_named_agents_last_turn_goes_and_comes_back(product: Product, place: Place) -> None:
    before = place.file.read_bytes()
    receipt = stop(product, place, "dev1")
    assert receipt["converged"], receipt["left"]
    (move,) = receipt["memory"]
    kept = place.file.read_bytes()
    assert kept == b"".join(working().lines[:3])
    backup = Path(move["backup"]).read_bytes().split(b"\n", 1)
    header = json.loads(backup[0])
    assert (header["receipt"], header["session"]) == (receipt["id"], SESSION)
    assert (header["file"], header["generation"]) == (str(place.file), 1)
    assert "standby" in product.run(place.paths.openclaw, "status").stdout
    assert kept + backup[1] == before
    index = json.loads((place.file.parent / "sessions.json").read_text())
    assert index[SESSION]["abortedLastRun"] is False, "nobody tells the agent of it"
    done = undo(product, place, receipt["id"])
    assert done.returncode == 0, done.stderr
    assert place.file.read_bytes() == before
    assert "remembers again" in done.stdout


def test_a_finished_turn_goes_too_when_no_gateway_runs(product: Product, tmp_path: Path) -> None:
    place = Place(tmp_path, talked())
    assert stop(product, place, "dev1")["memory"][0]["text"] == "hello"
    assert place.file.read_bytes() == talked().lines[0]


def test_of_an_agent_the_newest_conversation_is_meant_and_of_all_none(
    product: Product, place: Place
) -> None:
    newer = place.add(OTHER, working())
    for everybody in ("all", "ALL", "全部", "Everything"):
        assert stop(product, place, everybody)["memory"] == [], everybody
    receipt = stop(product, place, "dev1")
    assert [move["session"] for move in receipt["memory"]] == [OTHER]
    assert place.file.read_bytes() == working().data
    assert newer.read_bytes() != working().data


@pytest.mark.parametrize("words", [("--keep",), ("--no-rollback",), ("--keep", "--turns", "2")])
def test_memory_is_kept_if_that_is_wanted(
    product: Product, place: Place, words: tuple[str, ...]
) -> None:
    assert stop(product, place, "dev1", *words)["memory"] == []
    assert place.file.read_bytes() == working().data


def test_the_setting_keeps_it_too(product: Product, place: Place) -> None:
    off = '{"kill": false}'
    args = ("stop", "dev1", "--json")
    done = product.run(place.paths.openclaw, *args, CLAWSTOP_ROLLBACK=off)
    assert json.loads(done.stdout)["memory"] == []
    assert place.file.read_bytes() == working().data


def test_more_turns_or_from_an_entry_on(product: Product, place: Place) -> None:
    assert stop(product, place, "dev1", "--turns", "2")["memory"][0]["text"] == "hello"
    assert place.file.read_bytes() == working().lines[0]
    assert undo(product, place).returncode == 0
    refused = product.run(place.paths.openclaw, "stop", "dev1", "--to", "e2")
    assert refused.returncode == 2
    assert "--to needs a session's key" in refused.stderr
    stop(product, place, SESSION, "--to", "e2")
    assert place.file.read_bytes() == b"".join(working().lines[:2])


def test_a_dry_run_shows_what_would_be_forgotten_and_changes_nothing(
    product: Product, place: Place
) -> None:
    done = product.run(place.paths.openclaw, "stop", "dev1", "--dry-run")
    assert f"would forget  {SESSION}  e3  the task" in done.stdout
    assert place.file.read_bytes() == working().data
    assert not place.made()


def test_a_restore_is_undone_by_its_own_receipt(product: Product, place: Place) -> None:
    before = place.file.read_bytes()
    stop(product, place, "dev1")
    kept = place.file.read_bytes()
    again = product.json(place.paths.openclaw, "restore")
    assert place.file.read_bytes() == before
    assert "forgotten again" in undo(product, place, again["id"]).stdout
    assert place.file.read_bytes() == kept
    assert undo(product, place).returncode == 0
    assert place.file.read_bytes() == before
    assert receipts.verify(place.paths.receipts) == []


def test_a_conversation_that_has_gone_on_is_left_alone_unless_forced(
    product: Product, place: Place
) -> None:
    before = place.file.read_bytes()
    stop(product, place, "dev1")
    with place.file.open("ab") as out:
        out.write(b'{"type":"message","id":"n1","parentId":"e2","message":{"role":"user"}}\n')
    went_on = place.file.read_bytes()
    done = undo(product, place)
    assert done.returncode == 1
    assert "has gone on" in done.stderr
    assert "--force" in done.stderr
    assert place.file.read_bytes() == went_on
    assert undo(product, place, "--force").returncode == 0
    assert place.file.read_bytes() == went_on + before[len(b"".join(working().lines[:3])) :]


@pytest.mark.parametrize("header", [True, False], ids=["the first tool's", "without a header"])
def test_backups_of_others_find_their_conversation(
    product: Product, place: Place, header: bool
) -> None:
    stop(product, place, "dev1")
    place.add(OTHER, talked())
    removed = b"".join(working().lines[3:])
    told = {"rollback_time": "x", "transcript": str(place.file), "removed_count": 2}
    theirs = place.logs / "rollback-20200101-000000.jsonl"
    theirs.write_bytes((json.dumps(told).encode() + b"\n" if header else b"") + removed)
    if not header:  # two conversations end alike: it cannot be told which is meant
        place.add(OTHER, Tree())
    done = undo(product, place, str(theirs))
    assert done.returncode == 0, done.stderr
    assert place.file.read_bytes() == working().data


def test_a_backup_of_nobody_asks_whose_it_is(product: Product, place: Place) -> None:
    theirs = place.logs / "rollback-20200101-000000.jsonl"
    theirs.parent.mkdir()
    theirs.write_bytes(b'{"type":"message","id":"x","parentId":"unknown"}\n')
    done = undo(product, place, str(theirs))
    assert done.returncode == 2
    assert "--session" in done.stderr
    done = undo(product, place, str(theirs), "--session", SESSION, "--force")
    assert done.returncode == 1
    assert "what it goes on from is not there" in done.stderr
    assert place.file.read_bytes() == working().data


def test_a_session_file_elsewhere_is_left_alone(product: Product, place: Place) -> None:
    """What the host's list says is data: an agent can write it."""
    elsewhere = working().write(place.paths.openclaw.parent / "precious.jsonl")
    index = place.file.parent / "sessions.json"
    index.write_text(json.dumps({SESSION: {"sessionFile": str(elsewhere)}}))
    done = product.run(place.paths.openclaw, "stop", SESSION)
    assert done.returncode == 3
    assert "left alone" in done.stdout
    assert elsewhere.read_bytes() == working().data


def test_a_lock_that_is_held_makes_the_stop_say_so_and_the_next_one_does_it(
    product: Product, place: Place
) -> None:
    lock = place.file.with_name(place.file.name + ".lock")
    lock.write_text(json.dumps({"pid": os.getpid()}))
    receipt = stop(product, place, "dev1")
    assert not receipt["converged"]
    assert f"process {os.getpid()} still holds" in receipt["left"][0]
    assert place.file.read_bytes() == working().data
    lock.unlink()
    assert stop(product, place, "all")["converged"]
    assert place.file.read_bytes() == b"".join(working().lines[:3])


def test_a_database_of_keys_beside_the_files_changes_nothing(
    product: Product, place: Place
) -> None:
    """2026.6 and 2026.7 keep auth profiles and an index there, and conversations in files."""
    database = place.file.parents[1] / "agent" / "openclaw-agent.sqlite"
    database.parent.mkdir()
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE auth_profile_store (id)")
    assert stop(product, place, "dev1")["converged"]
    assert place.file.read_bytes() == b"".join(working().lines[:3])


def test_a_lock_that_is_let_go_of_later_keeps_nobody_waiting(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2026.5 holds a transcript for a minute. Only the rollback is done once more; the receipt
    still says what was ended, and who was told that it is not complete hears that it is."""
    monkeypatch.setattr(stops, "HELD_SECONDS", 0.2)
    place.begin(asked=BEGIN + 2.5)
    lock = place.file.with_name(place.file.name + ".lock")
    lock.write_text(json.dumps({"pid": os.getpid()}))

    async def scenario() -> None:
        async with engine(place.paths) as running, bridge(place.paths) as one:
            one.answers["end"] = {"ended": [{"run": "r1", "session": SESSION}], "alive": []}
            told = {"target": SESSION, "pid": os.getpid()}
            held = await running.engine.commands.stop(None, told)
            assert not held["converged"]
            assert "tried again by itself" in str(held["left"])

            def asked(method: str) -> int:
                return sum(message["method"] == method for message in one.asked)

            ended = asked("end")
            lock.unlink()
            async with asyncio.timeout(20):
                while running.engine.store.unfinished_stops() or not asked("say"):
                    running.engine.tick()
                    await asyncio.sleep(0.02)
            assert asked("end") == ended, "nothing else is done again"

    asyncio.run(scenario())
    told = [one for one in receipts.read(place.paths.receipts) if one["trigger"] != "recovery"]
    assert [(one["attempt"], one["converged"]) for one in told] == [(1, False), (2, True)]
    assert told[0]["id"] == told[1]["id"]
    assert told[1]["runs"] == told[0]["runs"] != []
    assert place.file.read_bytes() == b"".join(working().lines[:3])


def test_a_lock_that_is_never_let_go_of_is_left_to_the_next_stop(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stops, "HELD_SECONDS", 0.01)
    monkeypatch.setattr(stops, "HELD_TRIES", 2)
    place.begin(asked=BEGIN + 2.5)
    lock = place.file.with_name(place.file.name + ".lock")
    lock.write_text(json.dumps({"pid": os.getpid()}))
    before = place.file.read_bytes()

    async def scenario() -> None:
        async with engine(place.paths) as running, bridge(place.paths):
            told = {"target": SESSION, "pid": os.getpid()}
            assert not (await running.engine.commands.stop(None, told))["converged"]
            async with asyncio.timeout(20):
                while running.engine.store.unfinished_stops():
                    running.engine.tick()
                    await asyncio.sleep(0.02)
            assert place.file.read_bytes() == before
            lock.unlink()
            assert (await running.engine.commands.stop(None, told))["converged"]

    asyncio.run(scenario())
    assert place.file.read_bytes() == b"".join(working().lines[:3])


# -- a run that a gateway left behind: by when it was asked for


def test_a_run_is_rolled_back_to_when_it_was_asked_for(product: Product, tmp_path: Path) -> None:
    """An older turn was stopped and kept. By its shape it would belong to the task."""
    tree = working()
    tree.result()
    tree.user("the next task")
    tree.calls()
    place = Place(tmp_path, tree)
    place.begin(BEGIN + 5.5)
    (move,) = stop(product, place, "all")["memory"]
    assert move["text"] == "the next task"
    assert place.file.read_bytes() == b"".join(tree.lines[:6])


def test_a_message_that_waited_counts_from_the_end_of_the_run_before(tmp_path: Path) -> None:
    now = time.time()
    store = Store.open(tmp_path / "state.sqlite")

    def begun(session: str) -> float:
        return store.tasks("no stop", {session: 2}, unseen=True)[session]

    store.bind("r1", SESSION, "message", asked=now - 20)
    store.bind("r2", OTHER, "message", asked=now - 10)
    assert begun(SESSION) == now - 20
    store.end_run("r1", SESSION)
    store.bind("r3", SESSION, "message", asked=now - 10)
    assert begun(SESSION) >= now, "while it waited, r1 talked"
    assert begun(OTHER) == now - 10
    assert store.tasks("no stop", {OTHER: 2}, unseen=False) == {}, "a gateway knows better"
    store.close()


# -- only when everything is dead


@contextmanager
def unkillable(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """As one that sleeps on a dead disk."""
    stuck = FREEZER / f"clawstop-test-{process.pid}"
    stuck.mkdir()
    try:
        (stuck / "cgroup.procs").write_text(str(process.pid))
        (stuck / "freezer.state").write_text("FROZEN")
        zoo.until(lambda: (stuck / "freezer.state").read_text() == "FROZEN\n")
        yield
    finally:
        (stuck / "freezer.state").write_text("THAWED")
        process.kill()
        process.wait()
        stuck.rmdir()


UNCHECKED = Patch(
    "skill/clawstop/stops.py",
    "unverified = bool(alive or failures or ended.alive or ended.unanswered)",
    "unverified = False",
)


@pytest.mark.skipif(not FREEZER.is_dir(), reason="nothing here makes a process unkillable")
@pytest.mark.parametrize("patches", [(), (UNCHECKED,)], ids=["", "without its check"])
def test_memory_is_not_touched_while_a_process_lives(
    tmp_path: Path, place: Place, patches: tuple[Patch, ...]
) -> None:
    place.begin(BEGIN + 2.5)
    product = Product(tmp_path / "clawstop", *patches)
    process = place.process()
    with unkillable(process):
        done = product.run(place.paths.openclaw, "stop", "dev1", "--now")
        assert done.returncode == 3
        assert f"process {process.pid} is still alive" in done.stdout
        touched = place.file.read_bytes() != working().data
        assert touched is bool(patches), "and without the check this is red"
        if patches:
            return
        assert "was not touched" in done.stdout
        assert not place.made()
    receipt = stop(product, place, "all")  # which by itself takes nothing from what is idle
    assert receipt["converged"], receipt["left"]
    assert place.file.read_bytes() == b"".join(working().lines[:3]), "a repeated stop completes it"


def test_a_rollback_that_had_to_wait_is_not_made_after_the_conversation_has_gone_on(
    product: Product, place: Place
) -> None:
    """Nobody ended the process, but the person wrote on: that is not taken away later."""
    place.begin(BEGIN + 2.5)
    store = Store.open(place.paths.database)
    store.plan_rollback("s1", SESSION, {"since": BEGIN + 2.5}, 2)
    store.begin_stop("s1", {"trigger": "test"}, [SESSION], [SESSION])
    store.finish_stop("s1")
    assert store.waiting_rollback(SESSION)
    store.release(SESSION)
    store.bind("r2", SESSION, "message", asked=BEGIN + 4.5)
    assert store.waiting_rollback(SESSION) is None
    store.close()
    tree = working()
    tree.user("written on")
    tree.calls()
    tree.write(place.file)
    (move,) = stop(product, place, "dev1")["memory"]
    assert move["text"] == "written on"


# -- a crash

STEPS = {
    "before the rollback": "rolled = await self._roll_back(request",
    "after it": 'lap("rolled_back")',
    "before the receipt": "written = self._write(receipt)",
    "after the receipt": "if not again and request.id",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_of_the_engine_rolls_back_once(tmp_path: Path, place: Place, step: str) -> None:
    place.begin(BEGIN + 2.5)
    product = Product(tmp_path / "clawstop", *crash_at(STEPS[step]))
    crashed = product.run(place.paths.openclaw, "stop", "dev1")
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    assert product.json(place.paths.openclaw, "status")["unfinished"] == []
    assert place.file.read_bytes() == b"".join(working().lines[:3])
    assert len(place.made()) == 1
    (written,) = receipts.read(place.paths.receipts)
    assert written["converged"]
    assert [move["did"] for move in written["memory"]] == ["remove"]
    assert undo(product, place).returncode == 0
    assert place.file.read_bytes() == working().data


RESTORE_STEPS = [
    "        return await self.finish(id, about)\n",
    "                    self._store.set_clean(",
    "        self._store.finish_restore(id)\n",
]


@pytest.mark.parametrize("mark", RESTORE_STEPS)
def test_a_crash_in_a_restore_is_made_good_by_the_next_command(
    tmp_path: Path, place: Place, mark: str
) -> None:
    crash = "__import__('product_crash').once(self._agents._all, 0)\n"
    indent = mark[: len(mark) - len(mark.lstrip())]
    patch = Patch("skill/clawstop/memory.py", mark, f"{indent}{crash}{mark}")
    product = Product(tmp_path / "clawstop", patch)
    stop(product, place, "dev1")
    crashed = undo(product, place)
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    product.run(place.paths.openclaw, "status")
    assert place.file.read_bytes() == working().data
    last = list(receipts.read(place.paths.receipts))[-1]
    assert (last["trigger"], last["memory"][0]["did"]) == ("restore", "restore")
    assert undo(product, place, last["id"]).returncode == 0, "and can be undone"
    assert place.file.read_bytes() == b"".join(working().lines[:3])


# -- on a host


def texts(stage: Stage, session: str) -> list[str]:
    """What was said in it."""
    found = []
    for entry in stage.host.transcript(session):
        content = entry["message"]["content"]
        found.append(content[0].get("text", "") if content else "")
    return found


def test_each_active_session_of_an_agent_has_its_own_rollback(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            for session in (SESSION, OTHER):
                await stage.host.send(session, "short")
                await stage.over(session)
            before = {key: stage.host.transcript(key) for key in (SESSION, OTHER)}
            await stage.host.send("agent:dev1:idle", "short")
            await stage.over("agent:dev1:idle")
            for session in (SESSION, OTHER):
                await stage.host.send(session, "work hard")
                await stage.until(session, "tool", 3)
            receipt = await stage.stop("dev1")
            assert receipt["converged"], receipt["left"]
            assert {m["session"] for m in receipt["memory"]} == {SESSION, OTHER}
            assert {key: stage.host.transcript(key) for key in (SESSION, OTHER)} == before
            status = await stage.server.engine.commands.status(None, {})
            standby = {row["session"] for row in status["sessions"] if row["standby"]}
            assert standby == {SESSION, OTHER}
            await stage.host.send(SESSION, "short")
            await stage.until(SESSION, "said", 3)
            assert "work hard" not in texts(stage, SESSION)

    asyncio.run(scenario())


def test_a_finished_turn_of_a_named_agent_stays_while_a_gateway_runs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            await stage.host.send(SESSION, "short")
            await stage.over(SESSION)
            before = stage.host.transcript(SESSION)
            assert (await stage.stop("dev1"))["memory"] == []
            assert stage.host.transcript(SESSION) == before
            assert (await stage.stop("dev1", turns=1))["memory"][0]["text"] == "short"
            assert stage.host.transcript(SESSION) == []

    asyncio.run(scenario())


def test_a_subagents_session_is_rolled_back_with_the_task(tmp_path: Path) -> None:
    child = "agent:dev1:subagent:1"

    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            await stage.host.send(SESSION, "work")
            await stage.until(SESSION, "tool", 2)
            await stage.host._ask("child", child=child, session=SESSION)
            await stage.host.send(child, "short")  # it has done its part already
            await stage.over(child)
            receipt = await stage.stop(SESSION)
            assert {m["session"] for m in receipt["memory"]} == {SESSION, child}
            assert stage.host.transcript(child) == []

    asyncio.run(scenario())


def test_a_message_that_comes_during_a_stop_waits_and_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            await stage.host.send(SESSION, "deaf")
            await stage.until(SESSION, "tool", 2)
            await asyncio.sleep(0.2)
            stopping = asyncio.create_task(stage.stop(SESSION))
            await asyncio.sleep(0.05)
            await stage.host.send(SESSION, "short and new")
            receipt = await stopping
            assert receipt["converged"], receipt["left"]
            await stage.until(SESSION, "said")
            said = texts(stage, SESSION)
            assert said[0] == "short and new"
            assert "deaf" not in said

    asyncio.run(scenario())


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "on its way"])
def test_what_was_said_since_is_never_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """A stop that takes long, and a person who does not wait."""
    monkeypatch.setattr("clawstop.engine.FINISH_SECONDS", 0.0)

    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            await stage.host.send(SESSION, "work")
            await stage.until(SESSION, "tool", 2)
            plugins = stage.server.engine.plugins
            reap = plugins.reap

            async def slow(stop: Any) -> Any:
                found = await reap(stop)
                if answered:
                    await stage.host.send(SESSION, "short and new")
                    await stage.until(SESSION, "said", 2)
                else:  # it has released the session, and no run has begun yet
                    said = {"session": SESSION, "id": "m2", "sender": "me", "authorised": True}
                    await stage.host._peer.ask("message", said, 5)
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(plugins, "reap", slow)
                receipt = await stage.stop(SESSION)
            assert receipt["memory"] == [{"session": SESSION, "why": "gone_on"}]
            assert ("short and new" in texts(stage, SESSION)) is answered

    asyncio.run(scenario())


def test_files_that_the_agent_wrote_for_itself_are_named_and_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            folder = stage.host.workspace(SESSION)
            (folder / "memory").mkdir()
            old = folder / "memory" / "old.md"
            old.write_text("x")
            os.utime(old, (BEGIN - 1e9, BEGIN - 1e9))
            workspaces = {"dev1": str(folder)}
            async with bridge(stage.host.paths, agents=["dev1"], workspaces=workspaces):
                await stage.host.send(SESSION, "note")
                await stage.until(SESSION, "tool", 2)
                receipt = await stage.stop("dev1")
            names = [Path(name).name for name in receipt["notes"]]
            assert names == ["MEMORY.md", "day.md"]
            assert (folder / "MEMORY.md").read_text() == "x\n"

    asyncio.run(scenario())


def test_in_chat_only_the_own_session_is_restored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            for session in (SESSION, OTHER):
                await stage.host.send(session, "work hard")
                await stage.until(session, "tool", 2)
            during = {key: stage.host.transcript(key) for key in (SESSION, OTHER)}
            receipt = await stage.stop("dev1")

            async def said(session: str, **params: Any) -> str:
                asked = {"session": session, "sender": "me", **params}
                answer = await stage.host._peer.ask("restore", asked, 5)
                return "\n".join(answer["lines"])

            assert "no stop of this chat" in await said("agent:b:main", receipt=receipt["id"])
            assert "remembers the task again" in await said(SESSION)
            assert "back already" in await said(SESSION)
            assert stage.host.transcript(SESSION)[: len(during[SESSION])] == during[SESSION]
            assert stage.host.transcript(OTHER) == []
            await stage.host.send(OTHER, "short")
            await stage.over(OTHER, 2)
            assert "/restore --force" in await said(OTHER)
            assert "remembers the task again" in await said(OTHER, force=True)
            assert texts(stage, OTHER)[-2:] != ["short", "short done"]

    asyncio.run(scenario())


def test_a_process_of_an_agent_may_not_restore(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            place = Place(tmp_path, working())
            process = place.process()
            try:
                with pytest.raises(NotPermitted):
                    await stage.server.engine.commands.restore(None, {"pid": process.pid})
            finally:
                process.kill()
                process.wait()
            with pytest.raises(UsageError, match="no stop took anything away"):
                await stage.server.engine.commands.restore(None, {"pid": 1})

    asyncio.run(scenario())


def test_a_receipt_quotes_the_task_without_secrets(product: Product, tmp_path: Path) -> None:
    tree = talked()
    tree.user("log in with password=hunter2secret please")
    place = Place(tmp_path, tree)
    (move,) = stop(product, place, "dev1")["memory"]
    assert "hunter2secret" not in move["text"]
    assert "hunter2secret" in Path(move["backup"]).read_text()


@pytest.mark.parametrize(
    ("stone", "setting", "goes"),
    [
        ({}, {}, True),
        ({"keep": True}, {}, False),
        ({"latch": False}, {}, False),
        ({}, {"stop": False}, False),
        ({"rule": "kill"}, {"stop": False}, True),
        ({"rule": "kill"}, {"kill": False}, False),
    ],
)
def test_a_stop_that_had_no_engine_keeps_what_was_to_be_kept(
    product: Product, place: Place, stone: dict[str, Any], setting: dict[str, bool], goes: bool
) -> None:
    place.begin(BEGIN + 2.5)
    file = place.paths.tombstones / "s1.json"
    write_private(file, json.dumps({"target": SESSION, **stone}))
    product.run(place.paths.openclaw, "status", CLAWSTOP_ROLLBACK=json.dumps(setting))
    assert (place.file.read_bytes() != working().data) is goes


# -- odd ones


def test_a_resumed_stop_takes_nothing_that_was_said_since(product: Product, place: Place) -> None:
    """It could not be finished; the person wrote on, and stopped again."""
    place.begin(BEGIN + 2.5)
    store = Store.open(place.paths.database)
    target = {"name": SESSION, "scopes": [SESSION], "sessions": [SESSION], "spared": []}
    request = {"target": target, "trigger": "/stop", "who": "me", "grace": 0.1, "spare": []}
    request |= {"memory": {"rule": "stop"}}
    store.begin_stop("s1", request, [SESSION], [SESSION])
    store.ended_by("s1", [("r1", SESSION)])
    store.end_run("r1", SESSION)
    store.release(SESSION)
    store.bind("r2", SESSION, "message", asked=BEGIN + 4.5)
    store.end_run("r2", SESSION)
    store.begin_stop("s2", request, [SESSION], [SESSION])
    store.finish_stop("s2")
    store.close()
    tree = working()
    tree.user("written on")
    tree.says("answered")
    tree.write(place.file)
    product.json(place.paths.openclaw, "status")
    assert place.file.read_bytes() == tree.data
    (written,) = receipts.read(place.paths.receipts)
    assert written["memory"] == [{"session": SESSION, "why": "gone_on"}]


@pytest.mark.parametrize("late", [False, True])
def test_a_takeover_forgets_its_task_only_while_the_message_waits(place: Place, late: bool) -> None:
    """What goes on later may be the new message itself, in a run that nobody could record."""
    place.begin(asked=BEGIN + 2.5)
    settings = {"rollback": {"takeover": True}}

    async def scenario() -> None:
        async with engine(place.paths) as running, bridge(place.paths, config=settings) as one:
            one.answers["end"] = {"ended": [{"run": "r1", "session": SESSION}], "alive": []}
            store = running.engine.store
            target = targets.restarted(SESSION, store)
            wanted = Wanted(rule="takeover")
            request = running.engine.request("t1", target, "new message", "me", memory=wanted)
            if late:  # the engine dies when the run has ended
                running.engine.stops.latch(request)
                store.ended_by("t1", [("r1", SESSION)])
                store.end_run("r1", SESSION)
            else:
                await running.engine.stops.stop(request)
        async with engine(place.paths) as running, bridge(place.paths, config=settings):
            async with asyncio.timeout(10):
                while running.engine.store.unfinished_stops():
                    await asyncio.sleep(0.02)

    asyncio.run(scenario())
    assert (b"the task" in place.file.read_bytes()) == late


def test_a_resumed_stop_does_not_undo_a_restore(product: Product, place: Place) -> None:
    place.begin(BEGIN + 2.5)
    receipt = stop(product, place, "all")
    assert undo(product, place).returncode == 0
    store = Store.open(place.paths.database)
    store._db.execute("UPDATE stops SET finished = NULL WHERE id = ?", (receipt["id"],))
    with place.paths.receipts.open("r+") as file:  # as if nobody had called it converged
        text = file.read().replace('"converged":true', '"converged":false')
        file.seek(0)
        file.write(text)
    store.close()
    product.json(place.paths.openclaw, "status")
    assert place.file.read_bytes() == working().data
    last = list(receipts.read(place.paths.receipts))[-1]
    assert last["id"] == receipt["id"]
    assert [row.get("did") for row in last["memory"]] == ["remove"], "and says what it had done"


def test_offline_a_repeated_stop_takes_no_more(product: Product, place: Place) -> None:
    stop(product, place, "dev1")
    kept = place.file.read_bytes()
    assert product.run(place.paths.openclaw, "stop", "dev1", "--dry-run").returncode == 0
    assert "standby" in product.run(place.paths.openclaw, "status").stdout, "a look changes nothing"
    assert stop(product, place, "dev1")["memory"] == []
    assert place.file.read_bytes() == kept
    assert "standby" in product.run(place.paths.openclaw, "status").stdout
    assert stop(product, place, "dev1", "--turns", "1")["memory"][0]["text"] == "hello"


def test_everything_names_nobody_also_with_turns(product: Product, place: Place) -> None:
    assert stop(product, place, "everything", "--turns", "1")["memory"] == []
    assert stop(product, place, "all", "--turns", "1")["memory"] == []
    assert place.file.read_bytes() == working().data


def test_turns_that_are_not_there_are_said_to_be_missing(product: Product, place: Place) -> None:
    done = product.run(place.paths.openclaw, "stop", "dev1", "--turns", "9")
    assert "there is no such turn" in done.stdout
    assert place.file.read_bytes() == working().data


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"message","id":"x","message":{"role":"assistant","model":["a"],"stopReason":{}}}',
        b'{"type":"message","timestamp":1' + b"0" * 400 + b',"message":{"role":"user"}}',
        b'{"type":"message","timestamp":[],"message":{"role":["user"],"content":{"a":1}}}',
        b'{"type":"message","message":{"role":"user","content":"\\ud83d half"}}',
        b"[" * 5000,
    ],
)
def test_whatever_a_transcript_holds_the_stop_has_its_receipt(
    product: Product, tmp_path: Path, line: bytes
) -> None:
    tree = working()
    tree.raw(line)
    place = Place(tmp_path, tree)
    place.begin(BEGIN + 2.5)
    receipt = stop(product, place, "dev1")
    assert receipt["id"]
    assert product.json(place.paths.openclaw, "status")["unfinished"] == []
    kept, made = place.file.read_bytes(), place.made()
    rest = b"".join(file.read_bytes().split(b"\n", 1)[1] for file in made)
    assert kept + rest == tree.data


@pytest.mark.parametrize(
    "index",
    [
        '{"agent:dev1:bad": {"sessionFile": "/etc/passwd"}}',
        '{"agent:dev1:bad": {"sessionFile": "a\\u0000b.jsonl"}}',
        '{"agent:dev1:bad": 7}',
        "[" * 100_000,
        "not json",
    ],
)
def test_whatever_the_hosts_list_holds_the_stop_has_its_receipt(
    product: Product, place: Place, index: str
) -> None:
    (place.file.parent / "sessions.json").write_text(index)
    receipt = stop(product, place, "dev1")
    assert receipt["converged"], receipt["left"]


def test_a_pipe_or_nonsense_among_the_backups_holds_nobody_up(
    product: Product, place: Place
) -> None:
    place.logs.mkdir(parents=True)
    os.mkfifo(place.logs / "rollback-20200101-000000.jsonl")
    odd = place.logs / "rollback-20200101-000001.jsonl"
    odd.write_text('{"clawstop":1,"at":"yesterday","removed":[],"kept":7}\n')
    receipt = stop(product, place, "dev1")
    assert receipt["converged"], receipt["left"]
    assert undo(product, place, receipt["id"]).returncode == 0
    done = undo(product, place, str(odd))
    assert done.returncode == 1
    assert "makes no sense" in done.stderr


def test_a_backup_is_not_restored_into_another_session(product: Product, place: Place) -> None:
    other = place.add(OTHER, talked())
    (move,) = stop(product, place, SESSION)["memory"]
    done = undo(product, place, move["backup"], "--session", OTHER, "--force")
    assert done.returncode == 1
    assert "is not a backup of" in done.stderr
    assert other.read_bytes() == talked().data


def test_a_message_does_not_wait_for_memory_longer_than_its_bridge_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with staged(tmp_path, SCRIPTS) as stage:
            await stage.host.send(SESSION, "short")
            await stage.over(SESSION)
            await stage.stop(SESSION)
            begun = time.monotonic()
            async with stage.server.engine.memory.quiet(SESSION):
                said = {"session": SESSION, "id": "m9", "sender": "me", "authorised": True}
                answer = await stage.host._peer.ask("message", said, 10)
            assert answer["released"]
            assert time.monotonic() - begun < 2

    asyncio.run(scenario())


class Told:
    """A gateway's bridge that tells of a conversation, in parts, and moves its pointer."""

    def __init__(self, tree: Tree, most: int) -> None:
        self.tree = tree
        self.most = most
        self.moved: list[dict[str, Any]] = []

    @property
    def entries(self) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.tree.lines]
        return [row for row in rows if row["type"] != "session"][::-1]

    def read(self, params: dict[str, Any]) -> dict[str, Any]:
        ids = [entry["id"] for entry in self.entries]
        begin = ids.index(params["before"]) + 1 if params["before"] else 0
        part = self.entries[begin : begin + self.most]
        return {"entries": part, "whole": begin + len(part) == len(ids)}

    def dump(self, params: dict[str, Any]) -> dict[str, Any]:
        at = [entry["id"] for entry in self.entries].index(params["first"])
        assert at == params["count"]
        Path(params["file"]).write_text(
            "".join(json.dumps(entry) + "\n" for entry in self.entries[at::-1])
        )
        return {"parent": self.entries[at]["parentId"]}

    def move(self, params: dict[str, Any]) -> dict[str, Any]:
        self.moved.append(params)
        return {"leaf": params["to"]}


@pytest.mark.parametrize("most", [1, 3, 64, 1000])
def test_in_the_hosts_database_a_task_is_found_however_little_is_told_at_once(
    tmp_path: Path, most: int
) -> None:
    tree = talked()
    task = tree.user("the task")
    for number in range(70):
        tree.calls()
        tree.result()
        if number == 50:
            tree.user("steered in")
    told = Told(tree, most)
    paths = Paths(tmp_path / "openclaw")
    database = paths.openclaw / "agents" / "dev1" / "agent" / "openclaw-agent.sqlite"
    database.parent.mkdir(parents=True)
    hosting(database)

    async def scenario() -> None:
        async with engine(paths) as server, bridge(paths, capabilities={"memory": True}) as one:
            asked = int((BEGIN + 2.5) * 1000)
            run = {"run": "r1", "session": SESSION, "cause": "message", "asked": asked}
            await one.result("run_start", **run)
            ended = {"ended": [{"run": "r1", "session": SESSION, "how": [], "ms": 0}], "alive": []}
            one.answers |= {"end": ended, "memory_read": told.read, "memory_dump": told.dump}
            one.answers |= {"memory_move": told.move}
            receipt = await server.engine.commands.stop(None, {"target": SESSION, "pid": 1})
            assert receipt["converged"], receipt["left"]
            (row,) = receipt["memory"]
            assert row["text"] == "the task"
            assert told.moved == [{"session": SESSION, "from": tree.leaf, "to": "e2"}]
            lines = Path(row["backup"]).read_text().splitlines()
            assert json.loads(lines[1])["id"] == task
            assert len(lines) == 1 + 142
            assert not list(Path(row["backup"]).parent.glob(".rollback-*"))

    asyncio.run(scenario())


@pytest.mark.parametrize("times", [1, 2, 100])
def test_last_words_that_come_during_the_rollback_are_taken_too(tmp_path: Path, times: int) -> None:
    tree = talked()
    tree.user("the task")
    told, writes = Told(tree, 64), iter(range(times))
    paths = Paths(tmp_path / "openclaw")
    database = paths.openclaw / "agents" / "dev1" / "agent" / "openclaw-agent.sqlite"
    database.parent.mkdir(parents=True)
    hosting(database)

    def dump(params: dict[str, Any]) -> dict[str, Any]:
        if next(writes, None) is not None:
            tree.calls()
            raise RuntimeError(f"{SESSION} was written to meanwhile")
        return told.dump(params)

    async def scenario() -> None:
        async with engine(paths) as server, bridge(paths, capabilities={"memory": True}) as one:
            asked = int((BEGIN + 2.5) * 1000)
            run = {"run": "r1", "session": SESSION, "cause": "message", "asked": asked}
            await one.result("run_start", **run)
            ended = {"ended": [{"run": "r1", "session": SESSION, "how": [], "ms": 0}], "alive": []}
            one.answers |= {"end": ended, "memory_read": told.read, "memory_dump": dump}
            one.answers |= {"memory_move": told.move}
            receipt = await server.engine.commands.stop(None, {"target": SESSION, "pid": 1})
            if times == 100:  # somebody writes on: that is no end
                assert "was written to meanwhile" in receipt["left"][0]
            else:
                assert receipt["converged"], receipt["left"]
                assert receipt["memory"][0]["entries"] == 1 + times

    asyncio.run(scenario())


def test_a_plugin_that_cannot_move_is_said_to_be_too_old(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    database = paths.openclaw / "agents" / "dev1" / "agent" / "openclaw-agent.sqlite"
    database.parent.mkdir(parents=True)
    hosting(database)

    async def scenario() -> None:
        async with engine(paths) as server, bridge(paths) as one:
            await one.result("run_start", run="r1", session=SESSION, cause="message")
            ended = {"ended": [{"run": "r1", "session": SESSION, "how": [], "ms": 0}], "alive": []}
            one.answers |= {"end": ended}
            receipt = await server.engine.commands.stop(None, {"target": SESSION, "pid": 1})
            assert "restart it, or update OpenClaw" in receipt["left"][0]

    asyncio.run(scenario())
