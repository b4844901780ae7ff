"""New agents are noticed: by a file that changes, with a gateway and without."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clawstop import filewatch, guarding, tending
from clawstop.guarding import Guard
from clawstop.paths import Paths
from wire import bridge, engine

SKILL = Path(__file__).parent.parent / "skill"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("OPENCLAW_CONFIG_PATH", raising=False)
    (tmp_path / "state").mkdir()
    return Paths(tmp_path / "state")


def configure(place: Paths, *agents: str) -> None:
    """As a person edits it: a new file in the place of the old one."""
    entries = {id: {"workspace": str(place.openclaw / f"space-{id}")} for id in agents}
    new = place.openclaw / ".new"
    new.write_text(json.dumps({"agents": {"entries": entries}}))
    new.rename(place.openclaw / "openclaw.json")


def told(place: Paths, agent: str) -> bool:
    file = place.openclaw / f"space-{agent}" / "AGENTS.md"
    return file.exists() and f"You are the agent `{agent}`" in file.read_text()


def make(place: Paths, agent: str) -> None:
    folder = place.openclaw / f"space-{agent}"
    folder.mkdir(exist_ok=True)
    (folder / "AGENTS.md").write_text("# Hello\n")


async def until(true: Callable[[], object], what: str, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


def test_a_watch_ends_when_clawstop_is_purged(place: Paths) -> None:
    configure(place, "main")
    make(place, "main")

    async def scenario() -> None:
        watching = asyncio.create_task(tending.keep(place, lambda _: None))
        await until(lambda: told(place, "main"), "the block")
        shutil.rmtree(place.root)
        (place.openclaw / "space-main" / "AGENTS.md").write_text("# Hello\n")
        await asyncio.wait_for(watching, 10)
        assert not told(place, "main"), "who has left is not told again"
        assert not place.root.exists()

    asyncio.run(scenario())


def test_a_look_that_fails_is_made_again(place: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Guard._look
    failed: list[Guard] = []

    async def once(guard: Guard) -> None:
        if not failed:
            failed.append(guard)
            raise OSError("the disk was full")
        await look(guard)

    monkeypatch.setattr(guarding, "AGAIN_SECONDS", 0.1, raising=False)
    monkeypatch.setattr(Guard, "_look", once)
    configure(place, "dev1")
    make(place, "dev1")

    async def scenario() -> None:
        async with engine(place), bridge(place):
            await until(lambda: told(place, "dev1"), "it is told all the same")

    asyncio.run(scenario())
    assert failed


def test_a_change_of_a_file_is_told_and_of_another_is_not(tmp_path: Path) -> None:
    looks: list[int] = []
    file = tmp_path / "deep" / "er" / "file"

    async def scenario() -> None:
        async def count() -> None:
            async for _ in filewatch.changes(lambda: [file]):
                looks.append(len(looks))

        task = asyncio.create_task(count())
        await until(lambda: looks, "the first look")
        file.parent.mkdir(parents=True)
        await until(lambda: len(looks) > 1, "its folder came")
        await asyncio.sleep(0.5)
        before = len(looks)
        (tmp_path / "deep" / "er" / "other").write_text("x")
        await asyncio.sleep(0.6)
        assert len(looks) == before
        file.write_text("x")
        await until(lambda: len(looks) > before, "it came")
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())


def test_where_the_system_does_not_tell_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHFILES_FORCE_POLLING", "true")
    monkeypatch.setattr(filewatch, "LOOK_MS", 100)
    test_a_change_of_a_file_is_told_and_of_another_is_not(tmp_path)


def test_an_agent_that_comes_is_known_and_told_while_a_gateway_runs(place: Paths) -> None:
    async def scenario() -> None:
        configure(place, "main")
        make(place, "main")
        async with engine(place) as server, bridge(place, agents=["main"]):
            await until(lambda: told(place, "main"), "at the start")
            make(place, "new_dev7")
            configure(place, "main", "new_dev7")
            await until(lambda: told(place, "new_dev7"), "who came is told", 5)
            assert server.engine.roster.names.find("dev7") == ["new_dev7"]
            configure(place, "main", "new_dev7", "late")
            await until(lambda: "late" in server.engine.roster.ids, "known before its first turn")
            make(place, "late")
            await until(lambda: told(place, "late"), "told when the host has made its file")
            file = place.openclaw / "space-late" / "AGENTS.md"
            file.write_text("# The agent wrote it anew\n")
            await until(lambda: told(place, "late"), "told again")

    asyncio.run(scenario())


def test_a_config_that_is_being_edited_badly_takes_nobody_away(place: Paths) -> None:
    async def scenario() -> None:
        configure(place, "main", "dev1")
        async with engine(place) as server, bridge(place, agents=["main"]):
            roster = server.engine.roster
            assert "dev1" in roster.ids
            (place.openclaw / "openclaw.json").write_text("{agents: {")
            await until(lambda: roster.config.problem, "it is noticed")
            assert "dev1" in roster.ids
            assert (await server.engine.find("dev1")).scopes == ["agent:dev1"]
            status = await server.engine.commands.status(None, {})
            assert any("openclaw.json" in problem for problem in status["problems"])
            configure(place, "main")
            await until(lambda: "dev1" not in roster.ids, "it is mended")

    asyncio.run(scenario())


def test_an_agent_is_known_by_the_id_that_its_sessions_have(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as server, bridge(place, agents=["Zero_Dev1"]):
            assert "Zero_Dev1" not in server.engine.roster.ids
            assert (await server.engine.find("Zero_Dev1")).scopes == ["agent:zero_dev1"]

    asyncio.run(scenario())


def test_one_bad_folder_keeps_nobody_else_from_being_told(place: Paths) -> None:
    async def scenario() -> None:
        make(place, "main")
        entries = {
            "bad": {"workspace": str(place.openclaw / ("x" * 300) / "y")},
            "main": {"workspace": str(place.openclaw / "space-main")},
        }
        (place.openclaw / "openclaw.json").write_text(json.dumps({"agents": {"entries": entries}}))
        async with engine(place), bridge(place, agents=["main", "bad"]):
            await until(lambda: told(place, "main"), "who has a folder is told")

    asyncio.run(scenario())


def test_a_link_is_watched_where_it_leads(tmp_path: Path) -> None:
    looks: list[int] = []
    (tmp_path / "state").mkdir()
    real, link = tmp_path / "dotfiles.json", tmp_path / "state" / "openclaw.json"
    real.write_text("{}")
    link.symlink_to(real)

    async def scenario() -> None:
        async def count() -> None:
            async for _ in filewatch.changes(lambda: [link]):
                looks.append(len(looks))

        task = asyncio.create_task(count())
        await until(lambda: looks, "the first look")
        real.write_text("{ }")
        await until(lambda: len(looks) > 1, "it changed")
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())


def test_without_the_library_changes_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    monkeypatch.setattr(filewatch, "LOOK_MS", 50)
    looks: list[int] = []

    async def scenario() -> None:
        async def count() -> None:
            async for _ in filewatch.changes(lambda: [tmp_path / "file"]):
                looks.append(len(looks))

        task = asyncio.create_task(count())
        await until(lambda: looks, "the first look")
        (tmp_path / "file").write_text("x")
        await until(lambda: len(looks) > 1, "it came")
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(scenario())
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['watchfiles'] = None; import clawstop.engine",
        ],
        env={**os.environ, "PYTHONPATH": str(SKILL)},
    )
    assert done.returncode == 0, "and the engine starts"


@pytest.mark.parametrize("setting", ["file", "bootstrap", "off"])
def test_how_agents_are_told_is_a_setting_that_holds_at_once(place: Paths, setting: str) -> None:
    async def scenario() -> None:
        configure(place, "main")
        make(place, "main")
        async with engine(place), bridge(place, agents=["main"]) as one:
            await until(lambda: told(place, "main"), "at the start")
            await one.result("configure", config={"protocol": setting})
            await until(lambda: told(place, "main") == (setting == "file"), "as it says")
            folder = str(place.openclaw / "space-main")
            answer = await one.result("block", agent="main", workspace=folder)
            assert bool(answer["text"]) == (setting == "bootstrap")

    asyncio.run(scenario())


def clawstop(place: Paths, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "utf8", str(SKILL), *args],
        env={**os.environ, "OPENCLAW_STATE_DIR": str(place.openclaw)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_watch_once_tells_everybody_and_a_second_time_nobody(place: Paths) -> None:
    configure(place, "main", "dev1")
    make(place, "main")
    make(place, "dev1")
    done = clawstop(place, "watch", "--once", "--dry-run")
    assert done.stdout.count("added ") == 2
    assert not told(place, "main")
    assert clawstop(place, "watch", "--once").returncode == 0
    assert told(place, "main")
    assert told(place, "dev1")
    again = clawstop(place, "watch", "--once", "--json")
    assert {row["did"] for row in json.loads(again.stdout)} == {"same"}


def test_watch_without_a_gateway_notices_who_comes(place: Paths) -> None:
    configure(place, "main")
    make(place, "main")
    process = subprocess.Popen(
        [sys.executable, "-X", "utf8", str(SKILL), "watch"],
        env={**os.environ, "OPENCLAW_STATE_DIR": str(place.openclaw)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        asyncio.run(until(lambda: told(place, "main"), "at the start", 30))
        make(place, "dev1")
        configure(place, "main", "dev1")
        asyncio.run(until(lambda: told(place, "dev1"), "who came"))
    finally:
        process.send_signal(2)
        try:
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()  # nothing, when it has left
    assert out.count("added ") == 2
    assert process.returncode == 130, err
    assert "Traceback" not in err


def test_watch_says_where_the_config_is_wrong(place: Paths) -> None:
    (place.openclaw / "openclaw.json").write_text("{agents: {\n")
    done = clawstop(place, "watch", "--once")
    assert done.returncode == 2
    assert "openclaw.json, line 2, column 1" in done.stderr
