"""The engine and tasks that cooperate: who is told, when, by what, and what a receipt says."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from clawstop import Interrupted, Interruptible, checkpoints, cookies, flags
from clawstop.cookies import Owner
from clawstop.embedded import Exec, Say, Script
from clawstop.errors import StoreError
from clawstop.paths import Paths
from product import ROOT, Product
from stage import Stage, played, staged
from wire import engine, wire

A = "agent:a:main"
TASK = """
import sys
from clawstop import Interruptible, Interrupted
with Interruptible(interval=60_000) as task:
    place = task.resume()
    begin = place["data"] + 1 if place else 0
    task.clean_up(lambda: open("tidied", "w").close())
    open("begun", "w").write(str(begin))
    try:
        for number in task(range(begin, 10**9)):
            task.save_checkpoint("number", number)
            task.sleep(0.01)
    except Interrupted as stop:
        open("left", "w").write(f"{stop.checkpoint['data']} {stop.reason}")
        raise SystemExit(0)
"""
DEAF = """
import time
from clawstop import Interruptible
with Interruptible() as task:
    open("begun", "w").close()
    while True:
        time.sleep(60)
"""


def tool(folder: Path, text: str) -> str:
    """A command of an agent's that runs this task, with a Python that has nothing installed."""
    script = folder / "task.py"
    script.write_text(text)
    return f"cd {folder} && PYTHONPATH={ROOT / 'skill'} exec {sys.executable} -S {script}"


async def begun(folder: Path, name: str = "begun") -> str:
    async with asyncio.timeout(20):
        while not (folder / name).exists() or not (folder / name).read_text():
            await asyncio.sleep(0.01)
    return (folder / name).read_text()


@played
async def test_a_task_saves_its_place_tidies_up_leaves_by_itself_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tool(tmp_path, TASK)
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "openclaw"))
    async with staged(tmp_path, {"go": [Exec(command), Say("done")]}) as stage:
        await stage.host.send(A, "go")
        await begun(tmp_path)
        await _listening(stage)
        receipt = await stage.stop("a")
        assert receipt["converged"]
        number, _, reason = (await begun(tmp_path, "left")).partition(" ")
        assert (tmp_path / "tidied").exists()
        assert reason in ("clawstop stop", "SIGTERM"), "the host's signal may be faster"
        (told,) = receipt["cooperated"]
        assert (told["session"], told["checkpoint"]) == (A, "number")
        (process,) = [row for row in receipt["processes"] if "task.py" in row["command"]]
        assert process["signal"] != "KILL"
        assert not list(stage.server.engine.paths.flags.iterdir()), "the flags went with the stop"
        (tmp_path / "begun").unlink()
        await stage.host.send(A, "go")
        assert await begun(tmp_path) == str(int(number) + 1)


async def _listening(stage: Stage) -> None:
    async with asyncio.timeout(10):
        while not stage.server.engine.cooperation.listening:
            await asyncio.sleep(0.01)


@played
async def test_who_is_not_done_in_time_is_killed_and_the_receipt_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tool(tmp_path, DEAF)
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "openclaw"))
    async with staged(tmp_path, {"go": [Exec(command, background=True), Say("ok")]}) as stage:
        await stage.host.send(A, "go")
        await stage.over(A)
        async with asyncio.timeout(20):
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
        receipt = await stage.stop("a", grace=0.2)
        assert receipt["converged"]
        assert receipt["cooperated"] == []
        (process,) = [row for row in receipt["processes"] if "task.py" in row["command"]]
        assert process["signal"] == "KILL"


@played
async def test_whoever_is_killed_with_its_cage_is_told_as_killed(tmp_path: Path) -> None:
    deaf = "exec sh -c 'trap \"\" TERM; while :; do sleep 60; done'"
    go: Script = [*[Exec(deaf, background=True)] * 8, Say("ok")]
    async with staged(tmp_path, {"go": go}) as stage:
        await stage.host.send(A, "go")
        await stage.over(A)
        async with asyncio.timeout(20):
            while stage.alive(A) < 16:  # each with its sleep
                await asyncio.sleep(0.05)
        receipt = await stage.stop("a", grace=0.1)
        deaf_ones = [row for row in receipt["processes"] if row["command"].startswith("sh -c trap")]
        assert [row["signal"] for row in deaf_ones] == ["KILL"] * 8


@played
async def test_flags_are_there_before_any_signal_and_ask_for_no_stop(tmp_path: Path) -> None:
    """What a task sees that only looks at files, at the moment of its signal."""
    look = f"ls {tmp_path}/openclaw/clawstop/flags > seen; cat {tmp_path}/openclaw/clawstop/flags/*"
    trap = (
        f"cd {tmp_path}; trap '{look} > flag; exit' TERM; touch begun; while :; do sleep .1; done"
    )
    async with staged(tmp_path, {"go": [Exec(trap, background=True), Say("ok")]}) as stage:
        await stage.host.send(A, "go")
        await stage.over(A)
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        store = stage.server.engine.store
        store.name(A, "host-id-7")
        receipt = await stage.stop("a")
        assert receipt["converged"]
        names = (tmp_path / "seen").read_text().split()
        assert names == ["agent-stop-agent%3Aa%3Amain.flag", "agent-stop-host-id-7.flag"]
        told = json.loads((tmp_path / "flag").read_text().split("}")[0] + "}")
        assert (told["stop"], told["reason"]) == (receipt["id"], "clawstop stop")
        assert not list(stage.server.engine.paths.flags.iterdir())


@played
async def test_a_flag_of_a_stop_is_no_order_and_one_of_anybody_else_is(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        core = server.engine
        core.store.bind("r1", A, "message")
        core.store.begin_stop("s1", {}, [], [A])
        core.store.finish_stop("s1")
        flags.create(paths.flags, A, stop="s1")
        core.tick()
        await asyncio.sleep(0)  # a stop would be a task of its own
        assert not core.stops.busy
        flags.create(paths.flags, A, stop="never-heard-of")
        core.tick()
        await asyncio.sleep(0)  # the stop is a task of its own
        assert core.stops.busy, "a stop that nobody made is a stranger's word, and a flag"
        await core.stops.settle()


@played
async def test_a_flag_is_renewed_until_it_is_acknowledged(tmp_path: Path) -> None:
    now = [1_800_000_000.0]
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        core = server.engine
        part = core.cooperation
        part._clock = core._clock = lambda: now[0]
        core.store.bind("r1", A, "message")
        core.store.begin_stop("s1", {}, [A], [A])
        await part.write(_notice("s1", {A: 2}))
        (file,) = paths.flags.iterdir()
        for _ in range(10):  # much longer than a flag counts
            now[0] += 21
            core.tick()
            assert flags.check([paths.flags], A, now=now[0]) is not None
        file.unlink()  # the task has seen it
        now[0] += 60
        part.renew()
        assert not list(paths.flags.iterdir())
        await part.write(_notice("s1", {A: 2}))
        core.store.release(A)
        now[0] += 60
        part.renew()
        assert not list(paths.flags.iterdir()), "the session may run again"


def _notice(stop: str, bumped: dict[str, int]) -> Any:
    from clawstop.cooperation import Notice

    return Notice(stop, "/stop", "TERM", bumped, list(bumped), hard=False)


@played
async def test_no_disk_and_no_task_keeps_a_stop_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not ours, a disk that hangs, a task whose connection breaks."""
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server, wire(paths) as (one, token):
        core = server.engine
        core.store.bind("r1", A, "message")
        await one.hello(token, "task", session=A, generation=0, pid=os.getpid())
        (peer,) = core.cooperation._tasks
        monkeypatch.setattr(peer, "notify", lambda *_: 1 / 0)
        paths.flags.rmdir()
        paths.flags.write_text("in the way")
        stop = {"target": A, "pid": 1, "grace": 0}
        assert (await core.commands.stop(None, stop))["converged"]
        paths.flags.unlink()
        paths.flags.mkdir(mode=0o700)
        hangs = threading.Event()
        slow = core.cooperation._put
        monkeypatch.setattr(core.cooperation, "_put", lambda rows: hangs.wait(20) and slow(rows))
        async with asyncio.timeout(10):
            assert (await core.commands.stop(None, stop))["converged"]
        hangs.set()
        async with asyncio.timeout(10):
            while core.cooperation._writing:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        assert not list(paths.flags.iterdir()), "written late, they go at once"


@played
async def test_the_temp_folder_only_where_a_person_wants_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        part = server.engine.cooperation
        with monkeypatch.context() as patched:
            patched.setattr("clawstop.flags.shared", lambda: [tmp_path / "tmp"])
            await part.write(_notice("s1", {A: 2}))
            assert not list((tmp_path / "tmp").iterdir())
            server.engine._configure({"flags": {"legacy_tmp": True}})
            await part.write(_notice("s2", {A: 3}))
            (file,) = (tmp_path / "tmp").iterdir()
            assert file.stat().st_mode & 0o777 == 0o600
            part.over("s2")
            assert not list((tmp_path / "tmp").iterdir())


@played
async def test_a_task_is_told_when_its_run_is_dead_already(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        core = server.engine
        core.store.bind("r1", A, "message")

        async def hello(generation: int) -> dict[str, Any]:
            async with wire(paths) as (one, token):
                said = {"session": A, "generation": generation, "pid": os.getpid()}
                answer = await one.hello(token, "task", **said)
                return dict(answer["result"])

        assert "interrupt" not in await hello(1)
        core.store.begin_stop("s1", {}, [A], [A])
        assert "interrupt" in await hello(1)
        core.store.release(A)
        assert "interrupt" in await hello(1), "a release is not for the dead"
        assert "interrupt" not in await hello(2)


@played
async def test_a_lease_that_outlives_the_stop_keeps_its_task_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    reach = {"generation": 5, "wide": False, "hard": False}
    for lease, told in (("run", True), ("agent", False), ("keep:99999999999", False)):
        cookie = cookies.format(Owner(paths.state_id, A, 3, lease))
        monkeypatch.setenv(cookies.VARIABLE, cookie)
        task = Interruptible(paths=paths)
        task._hear(dict(reach))
        assert task.is_interrupted is told, lease
        task = Interruptible(paths=paths)
        task._hear({})
        assert task.is_interrupted, "a flag of anybody else's is for everybody"
    monkeypatch.setenv(cookies.VARIABLE, cookies.format(Owner(paths.state_id, A, 5, "run")))
    newer = Interruptible(paths=paths)
    newer._hear(dict(reach))
    assert not newer.is_interrupted, "its run came after that stop"


@played
async def test_a_process_of_a_run_listens_for_its_own_session_only(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths):
        cookie = f"1:{paths.state_id}:1:run:agent%3Aa%3Amain"
        text = (
            "import sys; from clawstop import Interruptible\n"
            "wire = Interruptible(sys.argv[1])._wire(); print(wire.welcome); wire.close()"
        )

        def listen(session: str) -> str:
            done = subprocess.run(
                [sys.executable, "-S", "-c", text, session],
                env={
                    "PYTHONPATH": str(ROOT / "skill"),
                    "OPENCLAW_STATE_DIR": str(paths.openclaw),
                    "CLAWSTOP_COOKIE": cookie,
                },
                capture_output=True,
                text=True,
                timeout=30,
            )
            return done.stdout + done.stderr

        assert "protocol" in await asyncio.to_thread(listen, A)
        assert "may not listen" in await asyncio.to_thread(listen, "agent:b:main")


@played
async def test_a_task_can_say_nothing_but_that_it_has_left(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths), wire(paths) as (one, token):
        await one.hello(token, "task", session=A, generation=0, pid=os.getpid())
        for method in ("release", "stop", "message", "tool", "status", "welcome", "over"):
            answer = await one.ask(method, session=A, target="everything")
            assert "there is no method" in answer["error"]["message"]
        long = await one.ask("interrupted", checkpoint="x" * 100_000)
        assert long["error"]["code"] == "usage"


@played
async def test_a_receipt_names_who_left_for_it_and_no_secret(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server, wire(paths) as (one, token):
        core = server.engine
        core.store.bind("r1", A, "message")
        await one.hello(token, "task", session=A, generation=0, pid=os.getpid())
        secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
        told = {"checkpoint": "page\n47", "error": f"api_key={secret}", "reason": "", "task": ""}
        await one.result("interrupted", **told)
        part = core.cooperation
        part._notices = [(at - 60, row) for at, row in part._notices]
        stop = {"target": A, "pid": 1, "grace": 0}
        assert (await core.commands.stop(None, stop))["cooperated"] == [], "that was long before"
        await one.result("interrupted", **told)
        (row,) = (await core.commands.stop(None, stop))["cooperated"]
        assert row["checkpoint"] == "page 47"
        assert secret not in json.dumps(row)


# -- flags from a shell


def test_scripts_and_python_read_each_others_flags(tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    paths = Paths(tmp_path / "openclaw")
    scripts = product.folder / "skill" / "compat"

    def script(name: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": os.environ["PATH"], "OPENCLAW_STATE_DIR": str(paths.openclaw), **env}
        variables["TMPDIR"] = str(tmp_path)
        return subprocess.run(
            ["sh", str(scripts / f"{name}-stop-flag.sh"), *args],
            env=variables,
            capture_output=True,
            text=True,
            timeout=30,
        )

    reason = """it's "taking" $(too) `long`; \\ 太久了 """
    for session in ("abc123", "agent:a:main", "../up", "中文 id"):
        assert script("check", session).returncode == 1
        assert script("create", session, reason).returncode == 0
        found = flags.check([paths.flags], session)
        assert found is not None
        assert (found.reason, found.signal) == (reason, "INT")
        assert found.file.stat().st_mode & 0o777 == 0o600
        checked = script("check", session, "60")
        assert (checked.returncode, reason in checked.stdout) == (0, True)
        assert product.run(paths.openclaw, "flag", "check", session).returncode == 0
        assert script("clear", session).returncode == 0
        assert product.run(paths.openclaw, "flag", "check", session).returncode == 1
        flags.create(flags.home(paths.flags), session)
        assert script("check", session).returncode == 0
        assert product.run(paths.openclaw, "flag", "clear", session).returncode == 0
        assert script("check", session).returncode == 1
    default = product.run(paths.openclaw, "flag", "create", "abc123")
    assert default.returncode == 0
    (file,) = paths.flags.iterdir()
    content = json.loads(file.read_text())
    assert content.keys() == {"sessionId", "timestamp", "reason", "signal"}
    assert (content["reason"], content["signal"]) == ("user_request", "SIGINT")
    content["timestamp"] -= 61_000
    file.write_text(json.dumps(content))
    assert script("check", "abc123").returncode == 1
    assert not file.exists(), "an old one is taken away"
    assert script("create").returncode == 2
    inside = {"CLAWSTOP_COOKIE": f"1:{paths.state_id}:1:run:agent%3Aa%3Amain"}
    assert script("check", **inside).returncode == 1
    assert script("create", **inside).returncode == 0
    assert script("check", **inside).returncode == 0, "its own session"
    assert flags.clear([paths.flags], "agent:a:main") == 1
    assert script("check", "abc123", "soon").returncode == 2
    elsewhere = {"INTERRUPT_FLAG_DIR": str(tmp_path / "elsewhere")}
    assert script("create", "abc123", **elsewhere).returncode == 0
    assert [f.name for f in (tmp_path / "elsewhere").iterdir()] == ["agent-stop-abc123.flag"]
    assert script("check", "abc123").returncode == 1
    assert script("check", "abc123", **elsewhere).returncode == 0


def test_a_flag_of_a_stop_that_is_not_for_this_run_is_none(tmp_path: Path) -> None:
    """As after a takeover: the old run's flag may still lie there when the new one looks."""
    product = Product(tmp_path / "clawstop")
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    reach: dict[str, Any] = {"generation": 5, "wide": False, "hard": False}
    flags.create(paths.flags, A, stop="s1", sessionKey=A, **reach)
    flags.create(paths.flags, "host-id-7", stop="s1", sessionKey=A, **reach)

    def stopped(generation: int, lease: str) -> list[bool]:
        cookie = cookies.format(Owner(paths.state_id, A, generation, lease))
        runs = [
            product.run(paths.openclaw, "flag", "check", name, CLAWSTOP_COOKIE=cookie)
            for name in (A, "host-id-7")
        ]
        return [run.returncode == 0 for run in runs]

    assert stopped(4, "run") == [True, True]
    assert stopped(5, "run") == [False, False]
    assert stopped(4, "keep:99999999999") == [False, False]


def test_an_empty_name_is_refused_and_shifts_nothing(tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    for words in (("create", "", "too long"), ("check", "", "60"), ("clear", "")):
        assert product.run(tmp_path / "openclaw", "flag", *words).returncode == 2, words
    assert product.run(tmp_path / "openclaw", "flag", "check", "x", "nan").returncode == 2


def example(language: str) -> str:
    page = (ROOT / "docs/cooperating.md").read_text(encoding="utf-8")
    return page.split(f"```{language}\n")[1].split("```")[0]


def test_the_examples_of_the_page_work(tmp_path: Path) -> None:
    """Each is told to stop after a while, saves its place, clears the flag, and leaves."""
    paths = Paths(tmp_path / ".openclaw")
    paths.prepare()
    node = example("js").replace(
        '"node:fs";',
        '"node:fs";\nconst rows = [...Array(6000).keys()];'
        "const work = () => new Promise((r) => setTimeout(r, 5));",
    )
    shell = example("sh").replace("/path/to/clawstop", str(ROOT))
    work = "sleep .3 && number=$((number+1))"
    shell = f"number=0; work_on_the_next_one() {{ {work}; }}\n{shell}"
    (tmp_path / "task.mjs").write_text(node)
    (tmp_path / "task.sh").write_text(shell)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SESSION": A}
    cookie = f"1:{paths.state_id}:1:run:agent%3Aa%3Amain"
    env |= {"CLAWSTOP_COOKIE": cookie, "TMPDIR": str(tmp_path)}
    for command, place in ((["node", "task.mjs"], "place.json"), (["sh", "task.sh"], "place")):
        task = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True)
        try:
            time.sleep(1.5)
            assert task.poll() is None
            file = flags.create(paths.flags, A, stop="s1", sessionKey=A, state=paths.state_id)
            os.killpg(task.pid, signal.SIGTERM)  # as a stop does right after it: all are told
            assert task.wait(20) == 0
        finally:
            task.kill()
            task.wait()
        assert (tmp_path / place).read_text().strip() not in ("", "0")
        file.unlink()


@played
async def test_a_task_that_no_engine_knows_clears_its_own_flag(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")

    def leaves(session: str) -> None:
        with pytest.raises(Interrupted):
            Interruptible(session, paths=paths).check()

    async with engine(paths) as running:
        flags.create(paths.flags, "abc123")
        await asyncio.to_thread(leaves, "abc123")
        assert not list(paths.flags.iterdir()), "else its next start would be stopped too"
        running.engine.store.generation("agent:a:main")
        running.engine.store.bind("r", "agent:a:main", "message")
        running.engine.store.name("agent:a:main", "host-id")
        flags.create(paths.flags, "host-id")
        await asyncio.to_thread(leaves, "host-id")
        assert list(paths.flags.iterdir()), "an order that the engine has to see"


def test_from_inside_a_run_only_its_own_flag_is_cleared(tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    inside = {"CLAWSTOP_COOKIE": f"1:{paths.state_id}:1:run:agent%3Aa%3Amain"}

    def clear(session: str, **env: str) -> int:
        return product.run(paths.openclaw, "flag", "clear", session, **env).returncode

    keys = {"agent:b:main": "agent:b:main", A: A, "host-id-7": A, "host-id-8": "agent:b:main"}
    for session, key in keys.items():  # of one stop of everything
        flags.create(paths.flags, session, stop="s1", sessionKey=key)
    assert clear("agent:b:main", **inside) == 5
    assert clear("host-id-8", **inside) == 5
    assert clear("host-id-7", **inside) == 0, "the host's id of its own session"
    assert clear(A, **inside) == 0
    check = product.run(paths.openclaw, "flag", "check", "agent:b:main", "0", **inside)
    assert check.returncode == 1
    left = sorted(file.name for file in paths.flags.iterdir())
    assert left == ["agent-stop-agent%3Ab%3Amain.flag", "agent-stop-host-id-8.flag"]
    order = flags.create(paths.flags, A)
    assert clear(A, **inside) == 0
    assert order.exists(), "somebody else's is an order, and the engine's to see"
    assert clear("agent:b:main") == clear("host-id-8") == clear(A) == 0, "a person may"
    assert not list(paths.flags.iterdir())


def test_the_places_of_tasks_are_listed(tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    paths = Paths(tmp_path / "openclaw")
    empty = product.run(paths.openclaw, "checkpoints", LC_ALL="C.UTF-8")
    assert "no task has saved its place" in empty.stdout
    place = checkpoints.checkpoint("page 47", {"n": 47}, time.time())
    checkpoints.save(paths.checkpoints, checkpoints.State(A, "mail", [place], time.time()))
    done = checkpoints.State("agent:b:main", "", [place], time.time() - 60, finished=True)
    checkpoints.save(paths.checkpoints, done)
    told = product.run(paths.openclaw, "checkpoints", LC_ALL="C.UTF-8").stdout.splitlines()
    assert [line.split("  ")[1:] for line in told] == [
        ["can be resumed", A, "mail", "page 47"],
        ["finished", "agent:b:main", "-", "page 47"],
    ]
    (only,) = product.json(paths.openclaw, "checkpoints", "--session", A)
    assert only["checkpoints"][0]["data"] == {"n": 47}


# -- whose a flag is, and who takes it away


@played
async def test_a_flag_of_a_stop_that_is_not_on_disk_yet_is_no_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each look would make a stop of the flag of the one before, for ever."""
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        core = server.engine
        core.store.bind("r1", A, "message")

        def full(*_: Any) -> Any:
            raise StoreError("disk full")

        with monkeypatch.context() as broken:
            broken.setattr(core.store, "begin_stop", full)
            await core.commands.stop(None, {"target": A, "pid": 1, "grace": 0})
            assert list(paths.flags.iterdir()), "who looks for flags is told"
            (brake,) = core.stops.brakes
            for _ in range(3):
                core.tick()
                await asyncio.sleep(0)
            assert list(core.stops.brakes) == [brake]
        core.stops._save_brakes()
        await core.stops._finishing


@played
async def test_two_gateways_do_not_take_each_others_flags_for_orders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawstop.flags.shared", lambda: [tmp_path / "tmp"])
    (tmp_path / "tmp").mkdir()
    one, two = Paths(tmp_path / "one"), Paths(tmp_path / "two")
    async with engine(one) as first, engine(two) as second:
        for server in (first, second):
            server.engine._configure({"flags": {"legacy_tmp": True}})
            server.engine.store.bind("r1", A, "message")
        await first.engine.cooperation.write(_notice("s1", {A: 2}))
        (file,) = (tmp_path / "tmp").iterdir()
        second.engine.tick()
        await asyncio.sleep(0)
        assert not second.engine.stops.busy
        monkeypatch.setenv(cookies.VARIABLE, cookies.format(Owner(two.state_id, A, 1)))
        assert Interruptible(paths=two).check_for_interrupt() is None
        assert flags.clear([tmp_path / "tmp"], A, Owner(two.state_id, A, 1)) == 0
        monkeypatch.setenv(cookies.VARIABLE, cookies.format(Owner(one.state_id, A, 1)))
        assert Interruptible(paths=one).check_for_interrupt()
        monkeypatch.delenv(cookies.VARIABLE)
        assert Interruptible(A, paths=two).check_for_interrupt() is None
        flags.create(tmp_path / "tmp", A, "enough")  # a person's
        assert Interruptible(A, paths=two).check_for_interrupt()
        file.unlink()


@played
async def test_a_task_of_another_gateway_is_not_told_by_this_one(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths):
        text = "from clawstop import Interruptible; Interruptible()._wire()"

        def listen(state: str) -> str:
            env = {"PYTHONPATH": str(ROOT / "skill"), "OPENCLAW_STATE_DIR": str(paths.openclaw)}
            env[cookies.VARIABLE] = cookies.format(Owner(state, A, 1))
            command = [sys.executable, "-S", "-c", text]
            return subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True).stderr

        assert "another gateway" in await asyncio.to_thread(listen, "abcdef")
        assert "NotPermitted" not in await asyncio.to_thread(listen, paths.state_id)


@played
async def test_an_order_is_taken_away_when_it_was_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it lies: who runs next must not find it."""
    monkeypatch.setattr("clawstop.flags.shared", lambda: [tmp_path / "tmp"])
    monkeypatch.setenv("INTERRUPT_FLAG_DIR", str(tmp_path / "configured"))
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        core = server.engine
        core.store.bind("r1", A, "message")
        core.store.name(A, "host-id-7")
        for name in ("tmp", "configured"):
            (tmp_path / name).mkdir()
        for place in (tmp_path / "tmp", tmp_path / "configured", paths.flags):
            flags.create(place, A, "enough", now=time.time())
        raw = {"sessionId": "host-id-7", "timestamp": round(time.time() * 1000)}
        (tmp_path / "tmp" / "agent-stop-host-id-7.flag").write_text(json.dumps(raw))
        link = paths.flags / "agent-stop-host-id-7.flag"
        link.symlink_to(tmp_path / "tmp" / "agent-stop-host-id-7.flag")
        core.tick()
        async with asyncio.timeout(10):
            while core._tasks:
                await asyncio.sleep(0.01)
        assert not [*(tmp_path / "tmp").iterdir(), *(tmp_path / "configured").iterdir()]
        assert list(paths.flags.iterdir()) == [link], "nothing through a link"


@played
async def test_an_order_is_not_lost_in_the_flag_of_a_takeover(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        core = server.engine
        core.store.bind("r1", A, "message")
        order = flags.create(paths.flags, A, "enough")
        core.store.begin_stop("takeover", {}, [], [A])
        await core.cooperation.write(_notice("takeover", {A: 2}))
        core.store.finish_stop("takeover")
        core.tick()
        async with asyncio.timeout(10):
            while core._tasks:
                await asyncio.sleep(0.01)
        assert core.store.standing(A).latched_since is not None
        assert not order.exists()
        flags.create(paths.flags, A, "enough", now=time.time() - 3600)
        await core.cooperation.write(_notice("s2", {A: core.store.generation(A)}))
        found = flags.check([paths.flags], A)
        assert found is not None
        assert found.by == "s2", "an old one asks for nothing"


@played
async def test_who_leaves_first_takes_no_flag_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell task of the same session looks later; and a person's order is the engine's to see."""
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        await server.engine.cooperation.write(_notice("s1", {A: 2}))
        server.engine.store.bind("r", "agent:b:main", "message")
        order = flags.create(paths.flags, "agent:b:main")

        def leave(session: str) -> None:
            task = Interruptible(session, paths=paths)
            assert task.check_for_interrupt()
            assert task.handle_interrupt()["success"]

        monkeypatch.setenv(cookies.VARIABLE, cookies.format(Owner(paths.state_id, A, 1)))
        await asyncio.to_thread(leave, A)
        assert flags.check([paths.flags], A)
        monkeypatch.delenv(cookies.VARIABLE)
        await asyncio.to_thread(leave, "agent:b:main")
        assert order.exists()
    task = Interruptible("agent:b:main", paths=paths)
    assert task.check_for_interrupt()
    assert task.handle_interrupt()["success"]
    assert not order.exists(), "without an engine nobody else would"


@played
async def test_two_tasks_of_one_process_are_both_named(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server, wire(paths) as (one, token):
        await one.hello(token, "task", session=A, generation=0, pid=os.getpid())
        for name in ("mail", "files", "mail"):
            await one.result("interrupted", checkpoint="", reason="", error="", task=name)
        told = server.engine.cooperation.notices(lambda *_: True, 0.0)
        assert [row["task"] for row in told] == ["files", "mail"]


@played
async def test_words_that_no_wire_carries_lose_no_notice(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "openclaw")
    async with engine(paths) as server:
        task = Interruptible(A, paths=paths)
        result = {"reason": "half a \ud83d", "checkpoint": None, "error": None}
        assert await asyncio.to_thread(task.notify_main_agent, result)
        (told,) = server.engine.cooperation.notices(lambda *_: True, 0.0)
        assert told["reason"] == "half a ?"


# -- scripts on other people's machines


def pythons() -> dict[int, str]:
    """A Python 3 of each version that this machine has, by its second number."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    there = [*map(Path, os.environ["PATH"].split(":")), *pyenv.glob("versions/*/bin")]
    found = {}
    for minor in range(20):
        for file in (folder / f"python3.{minor}" for folder in there):
            if file.exists() and subprocess.run([file, "-V"], capture_output=True).returncode == 0:
                found[minor] = str(file)
    return found


def flag_script(
    folder: Path, name: str, *args: str, **env: str
) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "OPENCLAW_STATE_DIR": str(folder / "openclaw")}
    variables["TMPDIR"] = str(folder)
    return subprocess.run(
        ["sh", str(ROOT / "skill/compat" / f"{name}-stop-flag.sh"), *args],
        env={**variables, **env},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=30,
    )


def test_scripts_work_with_the_python_that_old_machines_have(tmp_path: Path) -> None:
    found = pythons()
    for minor, python in found.items():
        folder = tmp_path / str(minor)
        folder.mkdir()
        (folder / "python3").symlink_to(python)
        env = {"PATH": f"{folder}:{os.environ['PATH']}"}
        made = flag_script(folder, "create", A, "太久了", **env)
        if minor < 8:
            assert (made.returncode, "3.8 or newer" in made.stderr) == (2, True), python
            continue
        assert made.returncode == 0, python
        checked = flag_script(folder, "check", A, **env)
        assert (checked.returncode, checked.stderr) == (0, ""), python
        assert flag_script(folder, "clear", A, **env).returncode == 0, python
        assert flag_script(folder, "check", A, **env).returncode == 1, python
    if min(found) >= 10:
        pytest.skip("no older Python here")


def test_what_scripts_need_is_written_for_python_3_8() -> None:
    """Also where there is none to try it with."""
    show = "import clawstop.flagged, sys; print(*(m for m in sys.modules if 'clawstop' in m))"
    env = {"PYTHONPATH": str(ROOT / "skill")}
    found = subprocess.check_output([sys.executable, "-c", show], env=env, text=True).split()
    assert "clawstop.flags" in found
    for name in found:
        file = Path(importlib.import_module(name).__file__ or "")
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_script_called_through_links_finds_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    direct = tmp_path / "check-stop-flag.sh"
    direct.symlink_to(ROOT / "skill/compat/check-stop-flag.sh")
    (tmp_path / "bin" / "check").symlink_to("../check-stop-flag.sh")
    env = {"PATH": os.environ["PATH"], "OPENCLAW_STATE_DIR": str(tmp_path / "openclaw")}
    done = subprocess.run(
        ["sh", str(tmp_path / "bin" / "check"), A], env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, f"no stop flag for {A}\n"), done.stderr


def test_a_script_leaves_nothing_in_the_skill_s_folder(tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    before = sorted(product.folder.rglob("*"))
    script = product.folder / "skill/compat/check-stop-flag.sh"
    env = {"PATH": os.environ["PATH"], "OPENCLAW_STATE_DIR": str(tmp_path / "openclaw")}
    assert subprocess.run(["sh", str(script), A], env=env).returncode == 1
    assert sorted(product.folder.rglob("*")) == before


def test_a_reason_that_cannot_be_shown_is_a_flag_all_the_same(tmp_path: Path) -> None:
    assert flag_script(tmp_path, "create", A, "太久了").returncode == 0
    text = (
        "import io, sys; from clawstop import flagged\n"
        "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, 'ascii')\n"
        "sys.exit(flagged.main(['check', sys.argv[1]]))"
    )
    env = {"PYTHONPATH": str(ROOT / "skill"), "OPENCLAW_STATE_DIR": str(tmp_path / "openclaw")}
    done = subprocess.run([sys.executable, "-c", text, A], env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
