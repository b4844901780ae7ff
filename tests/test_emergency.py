"""`stop` with the standard library alone: a Python without packages, and no way to get them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clawstop import cookies, emergency, processes, reaping, receipts
from clawstop.cookies import Owner
from clawstop.paths import Paths, write_private
from clawstop.store import Store
from product import ROOT, Patch, Product
from wire import engine

PYTHON = Path(sys.base_prefix) / "bin" / "python3"  # not the test environment's own
S = "agent:dev1:main"


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    config = paths.openclaw / "openclaw.json"
    config.write_text('{"agents": {"entries": {"main": {}, "dev1": {}}}}')
    return paths


def surroundings(place: Paths, **env: str) -> dict[str, str]:
    """Set-up is impossible: its folder cannot be made."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CLAWSTOP_", "LC_", "LANG"))}
    fixed = {"XDG_DATA_HOME": "/proc/self", "OPENCLAW_STATE_DIR": str(place.openclaw)}
    return {**kept, **fixed, "LC_ALL": "C", **env}


def skill(
    place: Paths, *args: str, folder: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PYTHON), str(folder / "skill"), *args],
        env=surroundings(place, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


@contextmanager
def running(*cookie: str, ignore_term: bool = False) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process for each cookie, which dies by itself after a minute; "" has none."""
    command = ["sleep", "60"]
    if ignore_term:
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True)"
        command = [sys.executable, "-c", f"{code}; time.sleep(60)"]
    plain = {k: v for k, v in os.environ.items() if k != cookies.VARIABLE}
    started = [
        subprocess.Popen(
            command, env={**plain, **({cookies.VARIABLE: text} if text else {})}, stdout=-1
        )
        for text in cookie
    ]
    try:
        if ignore_term:
            for process in started:
                assert process.stdout
                process.stdout.readline()
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def cookie(place: Paths, session: str, generation: int = 1) -> str:
    return cookies.format(Owner(place.state_id, session, generation))


def stones(place: Paths) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(place.tombstones.glob("*.json"))]


# -- without an engine


def test_a_database_damaged_further_in_keeps_no_stop_from_working(place: Paths) -> None:
    store = Store.open(place.database)
    store.bind("r1", S, "message")
    page, size = store._db.execute(
        "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_master"
        " WHERE name = 'sessions_by_parent'"
    ).fetchone()
    store.close()
    with place.database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    with running(cookie(place, S)) as (process,):
        done = skill(place, "stop", S)
        assert done.returncode == 3, done.stderr
        assert process.wait(5) == -15
    assert "Traceback" not in done.stderr
    assert [stone["target"] for stone in stones(place)] == [S]


def test_it_kills_what_the_target_owns_and_nobody_else(place: Paths) -> None:
    foreign = cookies.format(Owner("ab" * 8, S, 1))
    mine = [cookie(place, S), cookie(place, "agent:dev1:other", 7)]
    with running(*mine, cookie(place, "agent:main:main"), foreign, "") as all:
        done = skill(place, "stop", "dev1")
        assert done.returncode == 3, done.stderr
        assert [process.wait(5) for process in all[:2]] == [-15, -15]
        assert [process.poll() for process in all[2:]] == [None, None, None]
    first, *rest = done.stdout.splitlines()
    assert first == "stopped dev1 without the engine: closed on disk, processes killed 2"
    assert "no receipt yet" in rest[-1]
    assert "cannot write to /proc/self/clawstop" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_next_engine_takes_the_stop_in(place: Paths) -> None:
    answer = json.loads(skill(place, "kill", S, "--json").stdout)
    assert (answer["emergency"], answer["converged"], answer["scopes"]) == (True, False, [S])
    (file,) = place.tombstones.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stem == answer["id"]

    async def scenario() -> None:
        async with engine(place) as server:
            assert "is stopped" in str(server.engine.store.standing(S).refusal)
            await server.engine.stops.resume()

    asyncio.run(scenario())
    receipt = receipts.find(place.receipts, answer["id"])
    assert receipt
    assert receipt["converged"]
    assert not list(place.tombstones.iterdir())


def test_it_is_on_disk_before_anything_is_killed(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[dict[str, Any]]] = []

    def reap(*_: Any, **__: Any) -> reaping.Reaped:
        seen.append(stones(place))
        return reaping.Reaped()

    monkeypatch.setattr(reaping, "reap", reap)
    emergency.stop(["--state-dir", str(place.openclaw), "stop", S])
    assert [stone["target"] for stone in seen[0]] == [S]


def test_a_task_that_looks_for_flags_finds_one_before_its_signal(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(place.database)
    store.bind("r1", S, "message")
    store.close()
    seen: list[list[str]] = []

    def look(*_: Any, **__: Any) -> reaping.Reaped:
        seen.append([file.name for file in place.flags.iterdir()])
        return reaping.Reaped()

    monkeypatch.setattr(reaping, "reap", look)
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(place.openclaw))
    emergency.stop(["stop", "dev1"])
    assert seen == [["agent-stop-agent%3Adev1%3Amain.flag"]]
    assert not list(place.flags.iterdir())


def test_now_does_not_wait_for_what_ignores_term(place: Paths) -> None:
    with running(cookie(place, S), ignore_term=True) as (stubborn,):
        answer = json.loads(skill(place, "stop", S, "--now", "--json").stdout)
        assert stubborn.wait(5) == -9
    assert {process["signal"] for process in answer["processes"]} == {"KILL"}


def test_a_session_takes_its_subagents_with_it(place: Paths) -> None:
    child = "agent:helper:subagent:1"
    store = Store.open(place.database)
    store.adopt(child, S)
    store.close()
    before = place.database.read_bytes()
    with running(cookie(place, child)) as (process,):
        assert skill(place, "stop", S).returncode == 3
        assert process.wait(5) == -15
    assert place.database.read_bytes() == before
    assert skill(place, "stop", "helper").returncode == 3, "agents on record are known"


def test_a_database_that_cannot_be_read_keeps_no_stop_from_working(place: Paths) -> None:
    place.database.write_bytes(b"garbage" * 1000)
    with running(cookie(place, S)) as (process,):
        assert skill(place, "stop", "dev1").returncode == 3
        assert process.wait(5) == -15


@pytest.mark.parametrize(
    ("words", "scopes", "tombstones"),
    [
        (["all"], ["agent:dev1"], ["all"]),
        (["all", "--include-main"], ["agent:dev1", "agent:main"], ["main", "all"]),
        (["everything"], ["*"], ["everything"]),
        (["DEV"], ["agent:dev1"], ["dev1"]),
        ([S], [S], [S]),
    ],
)
def test_targets(place: Paths, words: list[str], scopes: list[str], tombstones: list[str]) -> None:
    answer = json.loads(skill(place, "stop", *words, "--json").stdout)
    assert answer["scopes"] == scopes
    assert sorted(stone["target"] for stone in stones(place)) == sorted(tombstones)

    async def scenario() -> dict[str, Any]:
        async with engine(place) as server:
            return server.engine.stops.mirror()

    assert sorted(asyncio.run(scenario())["latches"]) == scopes, "the engine means the same"


def test_all_names_main_as_spared(place: Paths) -> None:
    assert "not stopped: main" in skill(place, "stop", "all").stdout


@pytest.mark.parametrize("words", [["nobody"], ["agent:nobody:x"], [], ["dev1", "--nwo"]])
def test_wrong_use_is_exit_2_and_changes_nothing(place: Paths, words: list[str]) -> None:
    done = skill(place, "stop", *words)
    assert done.returncode == 2
    assert not stones(place)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_dry_run_changes_nothing(place: Paths) -> None:
    with running(cookie(place, S)) as (process,):
        done = skill(place, "stop", "dev1", "--dry-run")
        assert done.returncode == 0
        assert f"  {process.pid}  sleep 60" in done.stdout
        assert process.poll() is None
    assert not stones(place)


def test_whoever_asks_is_left_alone_and_named(place: Paths) -> None:
    ask = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    done = subprocess.run(
        [str(PYTHON), "-c", ask, str(PYTHON), str(ROOT / "skill"), "stop", S],
        env=surroundings(place, **{cookies.VARIABLE: cookie(place, S)}),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "asked for this stop, or is a gateway, and was left alone" in done.stdout


def test_a_gateway_that_an_agent_started_lives_and_its_runs_are_named(place: Paths) -> None:
    with running(cookie(place, S)) as (gateway,):
        ident = processes.ident_of(gateway.pid)
        assert ident
        presence = {"pid": ident.pid, "start": ident.start}
        write_private(place.bridges / f"{gateway.pid}.json", json.dumps(presence))
        done = skill(place, "stop", "dev1")
        assert gateway.poll() is None
    assert f"runs in gateway {gateway.pid} were not ended" in done.stdout


def test_a_stop_that_cannot_be_written_still_kills_and_says_so(place: Paths) -> None:
    place.tombstones.rmdir()
    place.tombstones.write_text("not a folder")
    with running(cookie(place, S)) as (process,):
        done = skill(place, "stop", "dev1")
        assert process.wait(5) == -15
    assert done.returncode == 3
    assert "NOT closed on disk" in done.stdout
    assert "new runs may start" in done.stdout


def test_chinese_by_locale(place: Paths) -> None:
    done = skill(place, "stop", "dev1", LC_ALL="zh_CN.UTF-8", PYTHONIOENCODING="cp936")
    assert done.stdout.startswith("已在没有引擎的情况下停止 dev1：已写入磁盘")


# -- with an engine


@pytest.mark.parametrize("portable", [False, True])
def test_a_running_engine_does_the_whole_stop(place: Paths, portable: bool) -> None:
    async def scenario() -> None:
        async with engine(place, portable=portable) as server:
            server.engine.store.bind("r1", S, "message")
            with running(cookie(place, S)) as (process,):
                done = await asyncio.to_thread(skill, place, "stop", "dev1")
                assert process.wait(5) == -15
            assert done.returncode == 0, done.stderr
            assert server.engine.store.standing(S).refusal
            (receipt,) = receipts.read(place.receipts)
            assert done.stdout.startswith("stopped dev1: ")
            assert receipt["id"] in done.stdout
            assert done.stderr == "", "nothing was set up for it"
            unknown = await asyncio.to_thread(skill, place, "stop", "nobody")
            assert unknown.returncode == 2
            assert "no agent or session is called 'nobody'" in unknown.stderr
            preview = await asyncio.to_thread(skill, place, "stop", "all", "--dry-run", "--json")
            assert json.loads(preview.stdout)["scopes"] == ["agent:dev1"]
        assert not stones(place)

    asyncio.run(scenario())


@contextmanager
def impostor(place: Paths, *answers: bytes) -> Iterator[None]:
    """Something that listens where an engine would, gives these answers, and then hangs up."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place.socket))
        listening.listen()
        listening.settimeout(10)
        told = {"socket": str(place.socket), "token": "t", "protocol": 1}
        write_private(place.endpoint, json.dumps(told))

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                for answer in answers:
                    lines.readline()
                    connection.sendall(answer)
                if not answers:
                    lines.read()  # until the other side gives up

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(20)


HELLO = b'{"id":1,"result":{"protocol":1}}\n'


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([], "the engine did not answer within 2 s"),
        ([HELLO, b""], "the engine went away"),
        ([HELLO, b'{"id":2,"error":{"code":"store","message":"disk full"}}\n'], "disk full"),
        ([b'{"id":1,"error":{"code":"protocol","message":"protocol 9"}}\n'], "protocol 9"),
        ([b"HTTP/1.1 400 Bad Request\r\n"], "not a line of JSON"),
        ([HELLO, b'{"id":2,"result":7}\n'], "the engine answered"),
    ],
)
def test_an_engine_that_cannot_do_it_is_done_without(
    place: Paths, answers: list[bytes], why: str
) -> None:
    with impostor(place, *answers), running(cookie(place, S)) as (process,):
        done = skill(place, "stop", "dev1")
        assert process.wait(5) == -15
    assert done.returncode == 3
    assert f"the engine could not do it: {why}" in done.stdout
    assert [stone["target"] for stone in stones(place)] == ["dev1"]


def test_an_engine_that_comes_meanwhile_finishes_the_same_stop(
    place: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting, up = threading.Event(), threading.Event()
    kill = emergency._kill

    def slow(*args: Any) -> Any:
        acting.set()
        assert up.wait(20)
        return kill(*args)

    monkeypatch.setattr(emergency, "_kill", slow)

    async def scenario() -> None:
        words = ["--state-dir", str(place.openclaw), "stop", S]
        stopping = asyncio.create_task(asyncio.to_thread(emergency.stop, words))
        assert await asyncio.to_thread(acting.wait, 20)
        (stone,) = place.tombstones.iterdir()
        content = stone.read_text()
        async with engine(place) as server:
            write_private(stone, content)  # as if it had looked a moment too early
            up.set()
            answer = await stopping
            assert answer.final
            assert answer.exit_code == 0
            assert server.engine.store.standing(S).refusal

    asyncio.run(scenario())
    assert [receipt["target"] for receipt in receipts.read(place.receipts)] == [S]
    assert not stones(place)


# -- what it needs


def test_it_needs_nothing_installed_and_no_network(place: Paths) -> None:
    code = (
        "import sys\n"
        "def audit(event, args):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'subprocess.Popen'):\n"
        "        raise SystemExit(event)\n"
        "sys.addaudithook(audit)\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from clawstop import emergency\n"
        "answer = emergency.stop(sys.argv[2:])\n"
        "answer.show(); sys.exit(answer.exit_code)\n"
    )
    # -S: no site-packages at all; every file must be opened with its encoding named
    strict = ["-I", "-S", "-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    words = ["--state-dir", str(place.openclaw), "stop", "dev1"]
    done = subprocess.run(
        [str(PYTHON), *strict, "-c", code, str(ROOT / "skill"), *words],
        env=surroundings(place),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert stones(place)


def test_an_environment_whose_packages_are_gone(
    place: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete by its mark, empty in truth, and its folder cannot be changed."""
    data = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "skill" / "__main__.py")
    assert spec
    assert spec.loader
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    folder = bootstrap.environment(ROOT / "skill" / "requirements.txt")
    command = [str(PYTHON), "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True)
    (folder / bootstrap.COMPLETE).touch()
    (data / "clawstop" / "set-up.lock").mkdir()
    with running(cookie(place, S)) as (process,):
        done = skill(place, "stop", "dev1", XDG_DATA_HOME=str(data))
        assert process.wait(5) == -15
    assert done.returncode == 3, done.stderr
    assert "its environment is damaged (ModuleNotFoundError: No module named" in done.stderr
    assert done.stdout.startswith("stopped dev1 without the engine")


def test_a_copy_whose_engine_is_damaged_still_stops(place: Paths, tmp_path: Path) -> None:
    broken = Patch("skill/clawstop/cli.py", "import click\n", "import clawstop.nothing\n")
    product = Product(tmp_path / "copy", broken)
    with running(cookie(place, S)) as (process,):
        done = product.run(place.openclaw, "stop", "dev1", LC_ALL="C")
        assert process.wait(5) == -15
    assert done.returncode == 3, done.stderr
    assert "this copy of clawstop is damaged" in done.stderr
