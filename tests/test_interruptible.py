"""A task that cooperates: every documented call of the second seed, and what it does beyond."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import clawstop
import pytest
from clawstop import Interrupted, Interruptible, SafeStop, checkpoints, flags
from clawstop.errors import StoreError, UsageError
from clawstop.paths import Paths, write_private
from product import ROOT

SESSION = "abc123"


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """A machine of its own: state folder, temp folder, and no variables."""
    (tmp_path / "tmp").mkdir()
    # First, so that it is undone last: a thread that asks meanwhile must not fix ours for all.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    for name in ("INTERRUPT_FLAG_DIR", "AGENT_STATE_DIR", "CLAWSTOP_COOKIE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENCLAW_STATE_DIR", str(tmp_path / "openclaw"))
    return Paths(tmp_path / "openclaw")


@pytest.fixture
def task(paths: Paths) -> Iterator[Interruptible]:
    one = Interruptible(SESSION, interval=20, paths=paths)
    yield one
    one.stop_interrupt_polling()


def raise_flag(paths: Paths, session: str = SESSION, reason: str = "enough", **more: Any) -> Path:
    return flags.create(flags.home(paths.flags), session, reason, **more)


def until(true: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- a row of the seed's API each


def test_a_session_id_an_interval_and_no_interrupt_at_first(paths: Paths) -> None:
    task = clawstop.InterruptibleAgent(SESSION)
    assert (task.session_id, task.interrupt_check_interval) == (SESSION, 5000)
    assert (task.is_interrupted, task.checkpoints) == (False, [])


def test_the_interval_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERRUPT_CHECK_INTERVAL", "250")
    assert Interruptible(SESSION).interrupt_check_interval == 250
    monkeypatch.setenv("INTERRUPT_CHECK_INTERVAL", "often")
    assert Interruptible(SESSION).interrupt_check_interval == 5000


def test_polling_finds_a_flag_and_the_next_check_point_raises(
    paths: Paths, task: Interruptible
) -> None:
    task.start_interrupt_polling()
    task.save_checkpoint("step1", {"processed": 100, "total": 200})
    raise_flag(paths)
    until(lambda: task.is_interrupted)
    with pytest.raises(Interrupted, match=r"^INTERRUPTED$") as raised:
        task.save_checkpoint("step2", {"processed": 200})
    assert raised.value.reason == "enough"
    assert raised.value.checkpoint is not None
    assert raised.value.checkpoint["name"] == "step2", "what was done is saved first"


def test_polling_that_is_off_finds_nothing(paths: Paths, task: Interruptible) -> None:
    task.start_interrupt_polling()
    task.stop_interrupt_polling()
    raise_flag(paths)
    time.sleep(0.1)
    assert not task.is_interrupted
    assert not [t for t in threading.enumerate() if t.name == "clawstop" and t.is_alive()]


def test_a_check_by_hand_gives_the_flag_or_none(paths: Paths, task: Interruptible) -> None:
    assert task.check_for_interrupt() is None
    raise_flag(paths)
    told = task.check_for_interrupt()
    assert told is not None
    assert {k: told[k] for k in ("sessionId", "reason", "signal")} == {
        "sessionId": SESSION,
        "reason": "enough",
        "signal": "SIGINT",
    }
    assert abs(told["timestamp"] / 1000 - time.time()) < 10


def test_checkpoints_are_kept_in_order_and_the_last_one_is_given(task: Interruptible) -> None:
    assert task.get_last_checkpoint() is None
    task.save_checkpoint("one", {"step": 1})
    task.save_checkpoint("two", [1, "二", None])
    assert [one["name"] for one in task.checkpoints] == ["one", "two"]
    last = task.get_last_checkpoint()
    assert last is not None
    assert (last["name"], last["data"]) == ("two", [1, "二", None])


def test_handling_an_interrupt_is_in_order(paths: Paths, task: Interruptible) -> None:
    order: list[str] = []
    task.save_checkpoint("place", 7)
    file = raise_flag(paths)
    task.start_interrupt_polling()
    until(lambda: task.is_interrupted)
    saved = checkpoints.file_of(paths.checkpoints, SESSION)
    saved.unlink()

    def look() -> None:
        order.append(f"polling {'on' if task._thread else 'off'}")
        order.append(f"state {'saved' if saved.exists() else 'not saved'}")
        order.append(f"flag {'there' if file.exists() else 'gone'}")

    task.clean_up(look)
    result = task.handle_interrupt(task.check_for_interrupt())
    assert order == ["polling off", "state saved", "flag there"]
    assert not file.exists()
    assert result["success"]
    assert (result["reason"], result["checkpoint"]["name"]) == ("enough", "place")
    assert task.handle_interrupt() is result, "once"


def test_a_safe_stop_gives_its_result_and_what_went_wrong(task: Interruptible) -> None:
    task.save_checkpoint("place", 7)
    result = clawstop.SafeStopHandler(task).stop("user_stop")
    assert result == {
        "success": True,
        "checkpoint": task.get_last_checkpoint(),
        "reason": "user_stop",
        "error": None,
    }


def test_saving_the_state_gives_its_path(paths: Paths, task: Interruptible) -> None:
    task.save_checkpoint("place", {"n": 1})
    file = Path(SafeStop(task).save_state())
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert saved["sessionId"] == SESSION
    assert [(one["name"], one["data"]) for one in saved["checkpoints"]] == [("place", {"n": 1})]
    assert saved["checkpoints"][0]["timestamp"] <= saved["timestamp"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_state_folder_is_a_variable(
    paths: Paths, task: Interruptible, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_STATE_DIR", str(tmp_path / "states"))
    assert SafeStop(task).save_state() == str(tmp_path / "states" / "abc123.json")


def test_temporary_files_go(paths: Paths, task: Interruptible, tmp_path: Path) -> None:
    work, downloads = tmp_path / "tmp/agent-work", tmp_path / "tmp/agent-downloads"
    for folder in (work, downloads):
        (folder / SESSION / "deep").mkdir(parents=True)
        (folder / SESSION / "deep" / "file").write_text("x")
        (folder / "somebody-else").mkdir()
    own = tmp_path / "own"
    (own / "inside").mkdir(parents=True)
    task.temp_folder(own)
    gone = SafeStop(task).cleanup_temp_files()
    assert sorted(gone) == sorted(map(str, (work / SESSION, downloads / SESSION, own)))
    assert not any(map(os.path.exists, gone))
    assert (work / "somebody-else").is_dir()


def test_connections_are_closed_and_scheduled_tasks_cancelled(task: Interruptible) -> None:
    import sqlite3

    db = task.connection(sqlite3.connect(":memory:"))
    timer = task.schedule(threading.Timer(60, lambda: None))
    timer.start()
    assert SafeStop(task).stop("x")["success"]
    with pytest.raises(sqlite3.ProgrammingError):
        db.execute("SELECT 1")
    timer.join(5)
    assert not timer.is_alive()


# -- leaving


def test_clean_ups_go_newest_first_and_one_that_fails_or_hangs_keeps_nobody(
    task: Interruptible,
) -> None:
    order: list[str] = []

    def fails() -> None:
        order.append("fails")
        raise ValueError("no")

    def hangs() -> None:
        order.append("hangs")
        time.sleep(60)

    task.clean_up(lambda: order.append("first"))
    task.clean_up(fails)
    task.clean_up(hangs, seconds=0.1)
    task.clean_up(lambda: order.append("last"))
    result = SafeStop(task).stop("x")
    assert order == ["last", "hangs", "fails", "first"]
    assert result["error"] == "hangs: did not end in its time; fails: ValueError no"
    assert not result["success"]


def test_a_clean_up_may_save_the_place_too(paths: Paths, task: Interruptible) -> None:
    task.clean_up(lambda: task.save_checkpoint("on the way out", 48))
    task._interrupt({"reason": "now"})
    with pytest.raises(Interrupted) as raised:
        task.save_checkpoint("row", 47)
    assert raised.value.checkpoint is not None
    assert raised.value.checkpoint["name"] == "on the way out"


def test_the_same_in_another_thread(task: Interruptible) -> None:
    order: list[str] = []
    results: list[dict[str, Any]] = []
    task.clean_up(lambda: order.append("first"))
    task.clean_up(lambda: time.sleep(60), seconds=0.1)
    thread = threading.Thread(target=lambda: results.append(SafeStop(task).stop("x")))
    thread.start()
    thread.join(10)
    assert order == ["first"]
    assert "did not end in its time" in results[0]["error"]


def test_folders_that_are_links_or_somebody_elses_or_above_stay(
    paths: Paths, task: Interruptible, tmp_path: Path
) -> None:
    work = tmp_path / "tmp/agent-work"
    work.mkdir()
    target = tmp_path / "precious"
    target.mkdir()
    (work / SESSION).symlink_to(target)
    assert SafeStop(task).cleanup_temp_files() == []
    assert target.is_dir()
    (work / SESSION).unlink()
    if os.geteuid() == 0:
        (work / SESSION).mkdir()
        os.chown(work / SESSION, 65534, 65534)
        assert SafeStop(task).cleanup_temp_files() == []
    for above in (tmp_path / "tmp", Path.home(), Path("/"), Path.cwd().parent):
        with pytest.raises(UsageError, match="holds more"):
            task.temp_folder(above)


@pytest.mark.parametrize(
    "session", ["../../precious", "..", ".", "a/b", "/etc", "x" * 4000, "中文"]
)
def test_no_session_id_becomes_a_path(paths: Paths, tmp_path: Path, session: str) -> None:
    (tmp_path / "tmp/agent-work").mkdir()
    precious = tmp_path / "precious"
    precious.mkdir()
    task = Interruptible(session, paths=paths)
    SafeStop(task).cleanup_temp_files()
    file = task.save_state()
    assert file.parent == paths.checkpoints
    assert raise_flag(paths, session).parent == paths.flags
    told = task.check_for_interrupt()
    assert told is not None
    assert told["sessionId"] == session
    assert task.clear_flag() == 1
    assert precious.is_dir()
    assert (tmp_path / "tmp/agent-work").is_dir()


@pytest.mark.parametrize("session", ["", "\0", "x" * 5000])
def test_what_cannot_be_a_session_is_refused(paths: Paths, session: str) -> None:
    with pytest.raises(UsageError, match="whose task"):
        Interruptible(session, paths=paths)


def test_a_signal_is_an_order_to_stop_and_handlers_are_put_back(
    paths: Paths, task: Interruptible
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with task:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # the host's, and then ours
            for _ in task(iter(int, 1)):
                pass

    with pytest.raises(Interrupted):
        work()
    assert signal.getsignal(signal.SIGTERM) is before


def test_sleeping_ends_at_once(paths: Paths, task: Interruptible) -> None:
    begun = time.monotonic()
    threading.Timer(0.1, raise_flag, (paths,)).start()
    with pytest.raises(Interrupted), task:
        task.sleep(60)
    assert time.monotonic() - begun < 10


def test_rows_are_check_points(paths: Paths, task: Interruptible) -> None:
    seen = []

    def work() -> None:
        for row in task(range(10**9)):
            seen.append(row)
            if row == 3:
                task._interrupt({"reason": "now"})

    with pytest.raises(Interrupted):
        work()
    assert seen == [0, 1, 2, 3]


# -- asyncio


def test_the_asyncio_forms_never_block_the_loop(paths: Paths, task: Interruptible) -> None:
    order: list[str] = []
    gaps: list[float] = []

    async def later() -> None:
        await asyncio.sleep(0)
        order.append("async")

    async def ticks() -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    async def rows() -> AsyncIterator[int]:
        for number in range(1000):
            yield number

    async def main() -> None:
        ticking = asyncio.create_task(ticks())
        async with task:
            await task.checkpoint("begun", 0)
            task.clean_up(lambda: time.sleep(0.6))
            task.clean_up(later)
            async for number in task(rows()):
                if number == 5:
                    task._interrupt({"reason": "now"})
        ticking.cancel()

    with pytest.raises(Interrupted) as raised:
        asyncio.run(main())
    assert order == ["async"]
    assert raised.value.checkpoint is not None
    assert raised.value.checkpoint["name"] == "begun"
    assert max(gaps) < 0.4, "a clean-up of 0.6 s was elsewhere"


# -- checkpoints


def test_what_was_cut_off_can_be_resumed_and_what_was_finished_cannot(paths: Paths) -> None:
    def fresh() -> Interruptible:
        return Interruptible(SESSION, paths=paths)

    def cut_off() -> None:
        with fresh() as first:
            first.save_checkpoint("row", 47)
            raise ZeroDivisionError

    assert fresh().resume() is None
    with pytest.raises(ZeroDivisionError):
        cut_off()
    with fresh() as second:
        place = second.resume()
        assert place is not None
        assert place["data"] == 47
        second.save_checkpoint("row", 48)
    assert fresh().resume() is None, "it was finished"


def test_two_tasks_of_one_session_have_places_of_their_own(paths: Paths) -> None:
    one, two = (Interruptible(SESSION, task=name, paths=paths) for name in ("mail", "files"))
    one.save_checkpoint("a", 1)
    two.save_checkpoint("b", 2)
    places = [Interruptible(SESSION, task=name, paths=paths).resume() for name in ("mail", "files")]
    assert [place and place["data"] for place in places] == [1, 2]
    assert Interruptible(SESSION, paths=paths).resume() is None


@pytest.mark.parametrize("data", [object(), {1, 2}, float("nan"), b"x", {"deep": [lambda: 0]}])
def test_data_that_is_not_json_is_refused_with_its_name(task: Interruptible, data: Any) -> None:
    with pytest.raises(UsageError, match="checkpoint 'place': its data is not JSON"):
        task.save_checkpoint("place", data)
    assert task.checkpoints == []


def test_too_much_data_is_refused_and_only_the_newest_are_kept(
    paths: Paths, task: Interruptible
) -> None:
    with pytest.raises(UsageError, match="more than"):
        task.save_checkpoint("big", "x" * checkpoints.MOST)
    for number in range(30):
        task.save_checkpoint("n", number)
    assert [one["data"] for one in task.checkpoints] == list(range(10, 30))
    found = Interruptible(SESSION, paths=paths)
    assert found.resume() is not None
    assert len(found.checkpoints) == checkpoints.KEPT


def test_a_full_disk_says_so_and_the_old_place_stays(
    paths: Paths, task: Interruptible, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.save_checkpoint("one", 1)
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(StoreError, match="not saved"):
            task.save_checkpoint("two", "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    again = Interruptible(SESSION, paths=paths)
    assert [one["data"] for one in task.checkpoints] == [1]
    assert (again.resume() or {}).get("data") == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sessionId": 7}', '{"sessionId": "abc123"}'])
def test_a_damaged_state_is_none(paths: Paths, content: str) -> None:
    paths.checkpoints.mkdir(parents=True)
    checkpoints.file_of(paths.checkpoints, SESSION).write_text(content)
    assert Interruptible(SESSION, paths=paths).resume() is None


def test_a_place_is_forgotten_after_a_week(paths: Paths, task: Interruptible) -> None:
    task.save_checkpoint("one", 1)
    file = checkpoints.file_of(paths.checkpoints, SESSION)
    later = time.time() + 8 * 86400
    assert checkpoints.load(file, later) is None
    assert checkpoints.load(file) is not None
    checkpoints.prune(paths.checkpoints, time.time())
    assert file.exists()
    checkpoints.prune(paths.checkpoints, later)
    assert not file.exists()


DURABLE = """
import os, sys
from clawstop import Interruptible
task = Interruptible("abc123")
task.save_checkpoint("place", 47)
os.write(1, b"SAVED")
os.kill(os.getpid(), 9)
"""


def run_task(paths: Paths, text: str, *before: str, **env: str) -> subprocess.CompletedProcess[str]:
    """With a Python that has nothing installed."""
    variables = {"OPENCLAW_STATE_DIR": str(paths.openclaw), "PYTHONPATH": str(ROOT / "skill")}
    bare = {key: os.environ[key] for key in ("PATH", "TMPDIR")}
    return subprocess.run(
        [*before, sys.executable, "-S", "-c", text],
        env={**bare, **variables, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_kill_right_after_a_checkpoint_loses_nothing(paths: Paths, tmp_path: Path) -> None:
    assert shutil.which("strace"), "apt-get install strace"
    calls = tmp_path / "calls"
    watch = ("strace", "-f", "-o", str(calls), "-e", "trace=fsync,rename,write")
    done = run_task(paths, DURABLE, *watch)
    assert done.returncode == -signal.SIGKILL, done.stderr
    told = [line.split(None, 1)[1] for line in calls.read_text().splitlines()]
    names = [line.split("(")[0] for line in told]
    saved = next(at for at, line in enumerate(told) if "SAVED" in line)
    renamed = max(at for at, line in enumerate(told[:saved]) if "abc123.json" in line)
    assert "fsync" in names[:renamed], "the content is on disk before it has its name"
    assert "fsync" in names[renamed:saved], "and the name before the task goes on"
    place = Interruptible(SESSION, paths=paths).resume()
    assert place is not None
    assert place["data"] == 47


def test_it_needs_nothing_installed_and_no_arguments_inside_a_tool(paths: Paths) -> None:
    text = "from clawstop import Interruptible; print(Interruptible().session_id)"
    paths.prepare()
    cookie = f"1:{paths.state_id}:3:run:agent%3Adev1%3Amain"
    assert run_task(paths, text, CLAWSTOP_COOKIE=cookie).stdout == "agent:dev1:main\n"
    done = run_task(paths, text)
    assert "whose task is it?" in done.stderr


# -- what a check costs


def test_a_check_reads_no_file_and_asks_nobody(paths: Paths, task: Interruptible) -> None:
    """Else it would not cost two microseconds: `clawstop bench check` says how many."""
    task.start_interrupt_polling()
    opened: list[Any] = []
    here, watched = threading.get_ident(), True

    def audit(event: str, args: Any) -> None:
        if watched and event in ("open", "socket.connect") and threading.get_ident() == here:
            opened.append(args)

    sys.addaudithook(audit)  # for good: so it is told when to look away
    for _ in range(1000):
        task.check()
        assert task.check_for_interrupt() is None
    watched = False
    assert opened == []


# -- odd ones


def test_leaving_is_once_however_many_are_at_a_check_point(task: Interruptible) -> None:
    times: list[int] = []

    def slow() -> None:
        time.sleep(0.1)
        times.append(1)

    task.clean_up(slow)

    async def main() -> None:
        task._interrupt({"reason": "now"})
        told = await asyncio.gather(
            *(task.checkpoint(str(n)) for n in range(5)), return_exceptions=True
        )
        assert all(isinstance(one, Interrupted) for one in told)

    asyncio.run(main())
    assert times == [1]


def test_the_same_for_threads(paths: Paths) -> None:
    task = Interruptible(SESSION, paths=paths)
    times: list[int] = []
    raised: list[bool] = []

    def slow() -> None:
        time.sleep(0.2)
        times.append(1)

    task.clean_up(slow)
    task.clean_up(lambda: task.save_checkpoint("on the way", 1))
    task._interrupt({"reason": "now"})

    def work() -> None:
        with pytest.raises(Interrupted):
            task.check()
        raised.append(True)

    with task:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: len(raised) >= 3)
    assert times == [1], "the block is not left before all is done"
    for thread in threads:
        thread.join(20)
    assert (times, raised) == ([1], [True] * 4)


def test_who_was_interrupted_is_not_finished(paths: Paths) -> None:
    with Interruptible(SESSION, paths=paths) as task:
        task.save_checkpoint("row", 47)
        task._interrupt({"reason": "now"})
        with pytest.raises(Interrupted):
            task.check()
    assert (Interruptible(SESSION, paths=paths).resume() or {}).get("data") == 47


def test_a_try_that_came_nowhere_leaves_the_place_of_the_one_before(paths: Paths) -> None:
    Interruptible(SESSION, paths=paths).save_checkpoint("row", 500)
    second = Interruptible(SESSION, paths=paths)
    second.handle_interrupt({"reason": "now"})
    assert (Interruptible(SESSION, paths=paths).resume() or {}).get("data") == 500


FORKS = """
import os, signal, time
from clawstop import Interruptible, flags
from clawstop.paths import default_paths
paths = default_paths()
born, here = os.pipe()
with Interruptible("abc123", interval=60_000) as task:
    child = os.fork()
    if not child:
        os.write(here, b"x")
        time.sleep(20)
        os._exit(7)
    os.read(born, 1)  # before that, Python itself loses a signal
    os.kill(child, signal.SIGTERM)
    print(os.waitpid(child, 0)[1], flush=True)
    child = os.fork()
    if not child:
        flags.create(flags.home(paths.flags), "abc123")
        os._exit(0 if task.check_for_interrupt() else 8)
    print(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_is_not_the_task(paths: Paths) -> None:
    """It dies of what it is sent, and looks for itself."""
    done = run_task(paths, FORKS)
    assert done.stdout == f"{int(signal.SIGTERM)}\n0\n", done.stderr


WORKERS = """
import os, signal, tempfile, time
from clawstop import Interrupted, Interruptible, flags
from clawstop.paths import default_paths
paths = default_paths()

def of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

with Interruptible("abc123", interval=20) as task:
    if not (child := os.fork()):
        os.unlink(tempfile.mkstemp()[1])  # no lock of the parent's is held
        flags.create(flags.home(paths.flags), "abc123")
        try:
            for _ in range(100):
                task.check()
                time.sleep(0.02)
        except Interrupted:
            os._exit(3)
        os._exit(8)
    print(of(child), flush=True)
with Interruptible("abc123", interval=60_000) as task:
    born, here = os.pipe()
    if not (child := os.fork()):
        with Interruptible("its-own", interval=60_000) as own:
            own.clean_up(lambda: os.write(here, b"tidy"))
            os.write(here, b"x")
            try:
                own.sleep(20)
            except Interrupted:
                os._exit(4)
        os._exit(8)
    os.read(born, 1)
    os.kill(child, signal.SIGTERM)
    print(of(child), os.read(born, 4).decode(), flush=True)
"""


def test_a_forked_worker_is_told_too(paths: Paths) -> None:
    """By the flag where it has only inherited the task, in order where it has entered its own."""
    done = run_task(paths, WORKERS)
    assert done.stdout.split() == ["3", "4", "tidy"], done.stderr


def test_handlers_are_put_back_in_whatever_order_tasks_end(paths: Paths) -> None:
    before = signal.getsignal(signal.SIGTERM)
    one, two = Interruptible("one", paths=paths), Interruptible("two", paths=paths)
    for task in (one, two):
        task.start_interrupt_polling()
    os.kill(os.getpid(), signal.SIGTERM)
    assert (one.is_interrupted, two.is_interrupted) == (True, True)
    for task in (one, two):  # as the seed has it: without a block
        with pytest.raises(Interrupted):
            task.check()
        task.stop_interrupt_polling()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("interval", ["inf", "nan", "-5", "1e400"])
def test_no_interval_makes_it_deaf(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    monkeypatch.setenv("INTERRUPT_CHECK_INTERVAL", interval)
    raise_flag(paths)
    with Interruptible(SESSION, paths=paths) as task:
        until(lambda: task.is_interrupted)


def test_a_thousand_open_files_do_not_make_it_deaf(paths: Paths) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 2000
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Interruptible(SESSION, interval=20, paths=paths) as task:
            raise_flag(paths)
            with pytest.raises(Interrupted):
                task.sleep(20)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_person_s_flag_is_left_for_the_engine_inside_a_tool(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths.prepare()
    monkeypatch.setenv("CLAWSTOP_COOKIE", f"1:{paths.state_id}:3:run:agent%3Adev1%3Amain")
    task = Interruptible(paths=paths)
    file = raise_flag(paths, "agent:dev1:main")
    with pytest.raises(Interrupted), task:
        task.sleep(20)
    assert file.exists()
    other = Interruptible("agent:b:main", paths=paths)
    theirs = raise_flag(paths, "agent:b:main", stop="s1", sessionKey="agent:b:main")
    assert other.clear_flag() == 0
    assert theirs.exists()


def test_a_long_task_has_a_place_too(paths: Paths) -> None:
    task = Interruptible("会话" * 15, task="任务" * 12, paths=paths)
    task.save_checkpoint("row", 1)
    again = Interruptible("会话" * 15, task="任务" * 12, paths=paths)
    assert again.resume() is not None
    assert Interruptible("会话" * 15, task="任务" * 11, paths=paths).resume() is None
    raise_flag(paths, "会话　一")
    assert Interruptible("会话　一", paths=paths).check_for_interrupt()


def test_only_our_own_files_are_pruned(paths: Paths, task: Interruptible) -> None:
    task.save_checkpoint("row", 1)
    strangers = [paths.checkpoints / name for name in ("package.json", "other.json")]
    strangers[0].write_text("{}")
    strangers[1].write_text(checkpoints.file_of(paths.checkpoints, SESSION).read_text())
    checkpoints.prune(paths.checkpoints, time.time() + 30 * 86400)
    assert sorted(paths.checkpoints.iterdir()) == sorted(strangers)


def test_a_limit_holds_for_whoever_tries_again_and_for_each_connection(task: Interruptible) -> None:
    class Hangs:
        def close(self) -> None:
            time.sleep(60)

    def tries_again() -> None:
        for _ in range(50):
            try:
                time.sleep(1)
            except Exception:
                continue

    signal.setitimer(signal.ITIMER_REAL, 1000)
    task.clean_up(tries_again, seconds=0.1)
    handler = SafeStop(task)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("clawstop.safestop.SECONDS", 0.1)
        task.connection(Hangs())
        task.connection(Hangs())
        result = handler.stop("x")
    assert result["error"] is not None
    assert result["error"].count("did not end in its time") == 3
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 900, "its own timer goes on"


def test_asyncio_closes_in_its_own_thread_and_awaits_what_it_is_given(task: Interruptible) -> None:
    import sqlite3

    order: list[str] = []

    async def later() -> None:
        await asyncio.sleep(0)
        order.append("awaited")

    class Session:
        async def close(self) -> None:
            order.append("closed")

    async def main() -> dict[str, Any]:
        db = task.connection(sqlite3.connect(":memory:"))
        task.connection(Session())
        sleeping = task.schedule(asyncio.create_task(asyncio.sleep(60)))
        task.clean_up(lambda: later())
        task._interrupt({"reason": "now"})
        left = await task.leave()
        with pytest.raises(sqlite3.ProgrammingError):
            db.execute("SELECT 1")
        await asyncio.wait({sleeping})
        assert sleeping.cancelled()
        return left

    assert asyncio.run(main())["error"] is None
    assert order == ["awaited", "closed"]


def test_what_comes_in_one_packet_is_heard_at_once(paths: Paths) -> None:
    """The answer to the hello, and a stop right behind it: so it is on a busy machine."""
    paths.prepare()
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = {"port": server.getsockname()[1], "token": "x"}
        write_private(paths.endpoint, json.dumps(endpoint))

        def speak() -> None:
            with server.accept()[0] as connection:
                connection.recv(4096)
                told = [
                    {"id": 1, "result": {}},
                    {"method": "interrupt", "params": {"reason": "now"}},
                ]
                connection.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in told))
                connection.recv(4096)

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        with Interruptible(SESSION, interval=60_000, paths=paths) as task:
            until(lambda: task.is_interrupted, 5)
        thread.join(5)
        assert not thread.is_alive(), "who has left lets go of the engine"


def test_who_leaves_before_the_listener_lets_go_of_the_engine(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener hands its wire over when everybody has gone."""
    left = threading.Event()
    hear = Interruptible._hear

    def slowly(self: Interruptible, told: object) -> None:
        hear(self, told)
        left.wait(5)

    monkeypatch.setattr(Interruptible, "_hear", slowly)
    paths.prepare()
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = {"port": server.getsockname()[1], "token": "x"}
        write_private(paths.endpoint, json.dumps(endpoint))
        with Interruptible(SESSION, interval=60_000, paths=paths) as task:
            connection = server.accept()[0]
            connection.settimeout(5)
            connection.recv(4096)
            connection.sendall(b'{"id": 1, "result": {"interrupt": {"reason": "now"}}}\n')
            until(lambda: task.is_interrupted, 5)
        left.set()
        with connection:
            assert connection.recv(4096) == b""


# -- leaving, whatever the task's own things do


def test_a_thing_that_cannot_be_closed_keeps_nobody(paths: Paths, task: Interruptible) -> None:
    done: list[str] = []

    class Plain:
        def close(self) -> None:
            done.append("closed")

    task.connection(Plain())
    task.connection(object())
    task.schedule(object())
    result = SafeStop(task).stop("x")
    assert done == ["closed"]
    assert "close object: AttributeError" in result["error"]
    assert "cancel object: AttributeError" in result["error"]


def test_a_clean_up_that_cancels_what_it_awaits_or_exits_keeps_nobody(task: Interruptible) -> None:
    order: list[str] = []

    async def main() -> None:
        worker = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)

        async def end_worker() -> None:
            worker.cancel()
            await worker

        task.clean_up(lambda: order.append("first"))
        task.clean_up(end_worker)
        task._interrupt({"reason": "now"})
        for _ in range(2):
            with pytest.raises(Interrupted):
                await task.checkpoint("place")
        assert "CancelledError" in (task._left or {})["error"]

    asyncio.run(main())
    other = Interruptible("other", paths=task._paths)
    other.clean_up(lambda: order.append("first of the other"))
    other.clean_up(sys.exit)
    assert "SystemExit" in SafeStop(other).stop("x")["error"]
    assert order == ["first", "first of the other"]


def test_whoever_waits_for_a_task_to_leave_may_be_cancelled_and_it_leaves(
    task: Interruptible,
) -> None:
    done: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.2)
        done.append("tidied")

    async def main() -> None:
        task.clean_up(slow)
        task._interrupt({"reason": "now"})
        waiting = asyncio.create_task(task.leave())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await task.leave())["success"]

    asyncio.run(main())
    assert done == ["tidied"]


def test_of_several_savers_the_newest_place_is_on_disk(
    paths: Paths, task: Interruptible, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = iter([0.3])  # the first to come is the last to be done
    real = os.fsync

    def fsync(fd: int) -> None:
        time.sleep(next(slow, 0))
        real(fd)

    monkeypatch.setattr("os.fsync", fsync)
    savers = [threading.Thread(target=task.save_checkpoint, args=("n", n)) for n in range(5)]
    for saver in savers:
        saver.start()
        time.sleep(0.02)
    for saver in savers:
        saver.join(20)
    found = checkpoints.load(checkpoints.file_of(paths.checkpoints, SESSION))
    assert found is not None
    assert sorted(one["data"] for one in found.checkpoints) == list(range(5))


@pytest.mark.parametrize("how", ["break", "safe stop", "handle"])
def test_who_leaves_politely_can_be_resumed(paths: Paths, how: str) -> None:
    cleaned: list[str] = []
    with Interruptible(SESSION, paths=paths) as task:
        task.clean_up(lambda: cleaned.append("tidied"))
        task.save_checkpoint("row", 47)
        if how == "break":
            task._interrupt({"reason": "now"})
            assert task.check_for_interrupt()
        elif how == "safe stop":
            assert SafeStop(task).stop("enough")["reason"] == "enough"
            assert task.is_interrupted
            assert SafeStop(task).stop("once more")["success"]
        else:
            task.handle_interrupt({"reason": "enough"})
    assert cleaned == ([] if how == "break" else ["tidied"])
    assert (Interruptible(SESSION, paths=paths).resume() or {}).get("data") == 47


def test_a_clean_up_may_wait_for_workers_that_are_at_a_check_point(task: Interruptible) -> None:
    from concurrent.futures import ThreadPoolExecutor

    leaving = threading.Event()

    def work() -> None:
        leaving.wait(20)
        task.check()

    pool = ThreadPoolExecutor(3)
    working = [pool.submit(work) for _ in range(3)]
    task.clean_up(pool.shutdown, seconds=20)
    task.clean_up(leaving.set)  # the newest is first
    begun = time.monotonic()
    result = task.handle_interrupt({"reason": "now"})
    assert result["error"] is None
    assert time.monotonic() - begun < 10
    assert all(isinstance(one.exception(), Interrupted) for one in working)


HANGS = """
import asyncio, time
from clawstop import Interruptible
class Thing:
    def close(self):
        time.sleep(30)
async def main():
    async with Interruptible("abc123") as task:
        KIND
        task._interrupt({"reason": "now"})
        ticks = asyncio.create_task(tick())
        left = await task.leave()
        print(left["error"], max(gaps) < 1)
gaps = [0.0]
async def tick():
    while True:
        begun = time.monotonic()
        await asyncio.sleep(0.01)
        gaps.append(time.monotonic() - begun)
import clawstop.safestop
clawstop.safestop.SECONDS = 0.3
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("task.clean_up(lambda: time.sleep(30), seconds=0.3)", "<lambda>"),
        ("task.connection(Thing())", "close Thing"),
    ],
)
def test_in_asyncio_what_hangs_holds_neither_the_loop_nor_the_process(
    paths: Paths, kind: str, name: str
) -> None:
    begun = time.monotonic()
    done = run_task(paths, HANGS.replace("KIND", kind))
    assert done.stdout == f"{name}: did not end in its time True\n", done.stderr
    assert time.monotonic() - begun < 20


def test_a_registered_folder_goes_also_where_its_parent_is_a_link(
    paths: Paths, task: Interruptible, tmp_path: Path
) -> None:
    (tmp_path / "real" / "work").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    task.temp_folder(tmp_path / "link" / "work")
    assert SafeStop(task).stop("x")["success"]
    assert not (tmp_path / "real" / "work").exists()


def test_a_folder_that_cannot_go_keeps_no_other(
    paths: Paths, task: Interruptible, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clawstop import safestop

    stuck, free = tmp_path / "stuck", tmp_path / "free"
    for folder in (stuck, free):
        folder.mkdir()
        task.temp_folder(folder)
    real = safestop.remove_folder

    def remove(folder: Path) -> bool:
        if folder == stuck:
            raise PermissionError(13, "stays", str(folder))
        return real(folder)

    monkeypatch.setattr(safestop, "remove_folder", remove)
    result = SafeStop(task).stop("x")
    assert "temporary files: " in result["error"]
    assert "stays" in result["error"]
    assert not free.exists()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), None, -1, 0, 1e300, "5"])
def test_a_limit_that_is_none_is_refused(task: Interruptible, seconds: Any) -> None:
    with pytest.raises(UsageError, match="seconds"):
        task.clean_up(print, seconds=seconds)
    assert task.clean_ups == []


# -- hearing of a stop, whatever the machine does


def test_no_descriptors_left_is_not_deaf_for_good(paths: Paths) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Interruptible(SESSION, interval=20, paths=paths) as task:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        files = []
        try:
            with contextlib.suppress(OSError):  # too many
                while True:
                    files.append(os.open(os.devnull, os.O_RDONLY))
            time.sleep(0.2)
        finally:
            for file in files:
                os.close(file)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        raise_flag(paths)
        with pytest.raises(Interrupted):
            task.sleep(5)


def test_polling_that_is_off_leaves_signals_to_the_program(
    paths: Paths, task: Interruptible
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    task.start_interrupt_polling()
    task._interrupt({"reason": "now"})
    task.stop_interrupt_polling()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_engine_that_comes_later_is_found_at_once(paths: Paths) -> None:
    with Interruptible(SESSION, interval=60_000, paths=paths) as task:
        time.sleep(0.2)
        paths.prepare()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(10)
            endpoint = {"port": server.getsockname()[1], "token": "x"}
            write_private(paths.endpoint, json.dumps(endpoint))
            with server.accept()[0] as connection:
                told = {"id": 1, "result": {"interrupt": {"reason": "now"}}}
                connection.recv(4096)
                connection.sendall(json.dumps(told).encode() + b"\n")
                until(lambda: task.is_interrupted, 5)


def test_an_engine_that_refuses_is_not_asked_every_second(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from clawstop import interruptible
    from clawstop.errors import NotPermitted

    asked: list[float] = []

    def refuse(self: Interruptible) -> Any:
        asked.append(time.monotonic())
        raise NotPermitted("not yours")

    monkeypatch.setattr(interruptible, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(Interruptible, "_wire", refuse)
    with Interruptible(SESSION, interval=10, paths=paths):
        time.sleep(1.0)
    assert 2 <= len(asked) <= 6, "each time after twice as long"
    assert caplog.text.count("not yours") == 1


def test_no_row_is_taken_and_lost(paths: Paths, task: Interruptible) -> None:
    rows = iter(range(100))
    seen = []

    def work() -> None:
        for row in task(rows):
            seen.append(row)
            if row == 3:
                task._interrupt({"reason": "now"})

    with pytest.raises(Interrupted):
        work()
    assert (seen, next(rows)) == ([0, 1, 2, 3], 4)


def test_no_row_is_lost_in_asyncio_and_a_clean_up_may_have_rows(task: Interruptible) -> None:
    taken: list[int] = []
    swept: list[int] = []

    async def rows() -> AsyncIterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    async def sweep() -> None:
        async for number in task(rows()):
            swept.append(number)

    async def main() -> None:
        task.clean_up(sweep)
        async for number in task(rows()):
            if number == 3:
                task._interrupt({"reason": "now"})

    with pytest.raises(Interrupted):
        asyncio.run(main())
    assert swept == list(range(10))
    assert taken == [0, 1, 2, 3, *swept]


@pytest.mark.parametrize("how", ["rows", "save", "check"])
def test_without_polling_a_check_point_looks_by_itself(paths: Paths, how: str) -> None:
    task = Interruptible(SESSION, interval=50, paths=paths)
    threading.Timer(0.2, raise_flag, (paths,)).start()

    def work() -> None:
        deadline = time.monotonic() + 10
        for _ in task(iter(int, 1)) if how == "rows" else iter(int, 1):
            assert time.monotonic() < deadline
            time.sleep(0.002)
            if how == "save":
                task.save_checkpoint("n")
            elif how == "check":
                task.check()

    with pytest.raises(Interrupted):
        work()


def test_without_polling_asyncio_looks_too(paths: Paths) -> None:
    task = Interruptible(SESSION, interval=50, paths=paths)

    async def rows() -> AsyncIterator[int]:
        for number in range(1000):
            await asyncio.sleep(0.005)
            yield number

    async def main() -> None:
        threading.Timer(0.2, raise_flag, (paths,)).start()
        async for _ in task(rows()):
            pass

    with pytest.raises(Interrupted):
        asyncio.run(main())


@pytest.mark.parametrize("session", [123, b"x", ["a"]])
def test_what_is_no_text_is_no_session(paths: Paths, session: Any) -> None:
    with pytest.raises(UsageError, match="whose task"):
        Interruptible(session, paths=paths)


def test_other_wrong_types_are_told_too(paths: Paths, task: Interruptible) -> None:
    for wrong in ({"task": 5}, {"interval": "50"}, {"interval": float("nan")}):
        with pytest.raises(UsageError):
            Interruptible(SESSION, paths=paths, **wrong)
    with pytest.raises(UsageError, match="name"):
        task.save_checkpoint(5)  # type: ignore[arg-type]


def test_what_the_engine_says_of_a_session_is_judged_by_its_key(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a task that names its session by the host's id."""
    paths.prepare()
    monkeypatch.setenv("CLAWSTOP_COOKIE", f"1:{paths.state_id}:5:run:agent%3Adev1%3Amain")
    newer = Interruptible("host-id-7", paths=paths)
    told = {"sessionId": "agent:dev1:main", "generation": 5, "wide": False, "hard": False}
    newer._hear(dict(told))
    assert not newer.is_interrupted, "its run came after that stop"
    newer._hear({**told, "generation": 6})
    assert newer.is_interrupted


def test_files_that_a_kill_left_half_written_go_too(paths: Paths, task: Interruptible) -> None:
    task.save_checkpoint("one", 1)
    name = checkpoints.file_of(paths.checkpoints, SESSION).name
    old, fresh = (paths.checkpoints / f".{name}.{part}" for part in ("abcd1234", "efgh5678"))
    other = paths.checkpoints / ".profile"
    for file in (old, fresh, other):
        file.write_text("{")
    for file in (old, other):
        os.utime(file, (time.time() - 2 * 86400,) * 2)
    checkpoints.prune(paths.checkpoints, time.time())
    assert (old.exists(), fresh.exists(), other.exists()) == (False, True, True)


def test_a_place_of_another_session_is_not_resumed(paths: Paths, task: Interruptible) -> None:
    """Where a disk does not tell capitals from small letters."""
    task.save_checkpoint("one", 1)
    file = checkpoints.file_of(paths.checkpoints, SESSION)
    file.rename(checkpoints.file_of(paths.checkpoints, "other"))
    assert Interruptible("other", paths=paths).resume() is None
