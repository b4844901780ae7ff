"""Every owned process dies, wherever it hid; nobody else is ever touched."""

from __future__ import annotations

import os
import random
import resource
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
import zoo
from clawstop import cookies, ownership, processes, reaping
from clawstop.cookies import Owner
from clawstop.processes import Ident, Sameness
from clawstop.reaping import Outcome, Reaped, reap
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(25)  # the slowest takes four; a hang must not take the suite

Cage = zoo.Cage


@pytest.fixture
def cage() -> Iterator[Cage]:
    with zoo.cage() as one:
        yield one


@pytest.fixture
def strangers() -> Iterator[Cage]:
    """A second state folder of the same user; whatever is in it must outlive each test."""
    with zoo.cage() as one:
        yield one


@pytest.fixture(params=[False, True], ids=["native", "portable"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def pids(outcomes: list[Outcome]) -> set[int]:
    return {outcome.ident.pid for outcome in outcomes}


def only(reaped: Reaped) -> Outcome:
    assert len(reaped.outcomes) == 1, reaped
    return reaped.outcomes[0]


def ident(pid: int, portable: bool = False) -> Ident:
    found = processes.ident_of(pid, portable=portable)
    assert found is not None
    return found


# -- identity --------------------------------------------------------------------------------------


def test_a_process_is_the_same_as_itself_until_it_is_gone(cage: Cage, portable: bool) -> None:
    (pid,) = zoo.sleeper(cage)
    one = ident(pid, portable)
    assert processes.compare(one) is Sameness.SAME
    assert not processes.gone(one)
    cage.children[0].kill()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert processes.gone(one), "a zombie is dead"
    assert processes.compare(one) is Sameness.SAME, "but nobody else has its pid yet"
    cage.children[0].wait()
    assert processes.compare(one) is Sameness.DIFFERENT
    assert processes.gone(one)
    assert processes.ident_of(pid, portable=portable) is None


def test_the_same_pid_with_another_start_time_is_a_different_process(portable: bool) -> None:
    me = ident(os.getpid(), portable)
    assert processes.compare(Ident(me.pid, me.start + 1)) is Sameness.DIFFERENT
    assert processes.gone(Ident(me.pid, me.start + 1))


def test_a_process_that_exists_but_is_hidden_is_unknown_and_not_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = ident(os.getppid())
    real = os.open

    def hidepid(path: str, *args: int, dir_fd: int | None = None) -> int:
        if str(path).startswith(f"/proc/{one.pid}/"):
            raise FileNotFoundError(path)
        return real(path, *args, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", hidepid)
    assert processes.compare(one) is Sameness.UNKNOWN
    assert not processes.gone(one)
    assert processes.ident_of(one.pid) is None


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_a_pid_that_cannot_be_is_nobody(pid: int, portable: bool) -> None:
    assert processes.ident_of(pid, portable=portable) is None
    start = 1.0 if portable else 1
    assert processes.compare(Ident(pid, start)) is Sameness.DIFFERENT


def test_ancestors_lead_from_the_process_itself_to_init(portable: bool) -> None:
    line = processes.ancestors(os.getpid(), portable=portable)
    assert line[0] == ident(os.getpid(), portable)
    assert line[1] == ident(os.getppid(), portable)
    assert line[-1].pid == 1
    assert processes.ancestors(0, portable=portable) == []


# -- finding ---------------------------------------------------------------------------------------


def test_found_is_exactly_who_carries_a_matching_cookie(
    cage: Cage, strangers: Cage, portable: bool
) -> None:
    mine = zoo.sleeper(cage) + zoo.chain(cage) + zoo.daemon(cage)
    zoo.sleeper(strangers)
    found = ownership.find(cage.mine, portable=portable)
    assert {one.ident.pid for one in found} == set(mine)
    assert {one.owner for one in found} == {cage.owner()}
    assert {one.proof for one in found} == {"cookie"}
    assert all(processes.compare(one.ident) is Sameness.SAME for one in found)


def test_found_says_who_the_parent_is_and_what_it_runs(cage: Cage, portable: bool) -> None:
    cage.spawn(["sh", "-c", f"echo $$; exec sleep {zoo.LIFE}"])
    (one,) = ownership.find(cage.mine, portable=portable)
    assert one.parent == os.getpid()
    assert one.command in (f"sleep {zoo.LIFE}", f"sh -c echo $$; exec sleep {zoo.LIFE}")


def test_a_command_line_that_is_not_utf8_is_readable_and_short(cage: Cage, portable: bool) -> None:
    name = b"\xff\xfe" + b"x" * 5000
    (pid,) = cage.spawn([name, "-c", "echo $$; sleep 60; :"], executable="/bin/sh")
    found = {one.ident.pid: one for one in ownership.find(cage.mine, portable=portable)}
    assert len(found[pid].command) == 200
    assert found[pid].command.encode().endswith(b"xxx")


def test_a_process_in_the_middle_of_exec_is_not_missed(cage: Cage, portable: bool) -> None:
    text = cookies.format(cage.owner())
    for _ in range(20):  # Popen returns while the kernel is still putting the new image in place
        environ = {**os.environ, cookies.VARIABLE: text, "CAGE": cage.state}
        with subprocess.Popen(["sleep", "60"], env=environ) as child:
            try:
                (one,) = ownership.find(cage.mine, portable=portable)
                assert one.ident.pid == child.pid
            finally:
                child.kill()


def test_a_command_line_says_nothing_to_a_terminal(cage: Cage, portable: bool) -> None:
    (pid,) = cage.spawn(["sh", "-c", "echo $$\nsleep 60; : \x1b[2J"])
    found = {one.ident.pid: one for one in ownership.find(cage.mine, portable=portable)}
    assert found[pid].command == "sh -c echo $$ sleep 60; :  [2J"


@pytest.mark.parametrize("size", [100_000, 16 * 1024, 128 * 1024 + 16 * 1024])
def test_a_cookie_behind_a_large_environment_is_found(
    cage: Cage, portable: bool, size: int
) -> None:
    big = {f"BIG{i}": "x" * (size // 2) for i in range(2)}
    (pid,) = cage.python("here(); rest()", env=big)
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert environ.index(cookies.VARIABLE.encode()) > size
    assert [one.ident.pid for one in ownership.find(cage.mine, portable=portable)] == [pid]


@pytest.mark.parametrize("cookie", ["", " ", "1", "1::::", "1:zz:1:run:main", "CLAWSTOP_COOKIE="])
def test_an_empty_or_garbled_cookie_matches_nothing(
    cage: Cage, portable: bool, cookie: str
) -> None:
    (pid,) = zoo.sleeper(cage, cookie=cookie)
    everybody = ownership.find(lambda owner: True, portable=portable)
    assert pid not in {one.ident.pid for one in everybody}


def test_a_cookie_inside_another_variable_is_no_cookie(cage: Cage, portable: bool) -> None:
    text = f"{cookies.VARIABLE}={cookies.format(cage.owner())}"
    zoo.sleeper(cage, cookie="", env={"NOTE": text, f"OLD_{text.partition('=')[0]}": text})
    assert ownership.find(cage.mine, portable=portable) == []


def test_the_caller_and_the_dead_are_never_found(cage: Cage, portable: bool) -> None:
    (zombie,) = zoo.sleeper(cage)
    cage.children[0].kill()
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    look = f"""
import sys; sys.path[:0] = {sys.path!r}
from clawstop import ownership
print(*[o.ident.pid for o in ownership.find(lambda o: True, portable={portable})])
"""
    environ = {**os.environ, cookies.VARIABLE: cookies.format(cage.owner())}
    with subprocess.Popen(
        [sys.executable, "-c", look], env=environ, stdout=subprocess.PIPE
    ) as caller:
        seen = caller.communicate(timeout=zoo.BIRTH)[0].split()
    assert caller.returncode == 0
    assert not {caller.pid, zombie} & set(map(int, seen))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_else_s_process_is_passed_over_without_a_word(cage: Cage) -> None:
    zoo.sleeper(cage)
    assert len(ownership.find(cage.mine)) == 1
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.setgid(65534)
            os.setuid(65534)
            found = ownership.find(cage.mine) + ownership.find(cage.mine, portable=True)
            os.write(write, b"%d" % len(found))
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"0"
    os.close(read)


def test_a_process_that_dies_while_it_is_looked_at_is_passed_over(
    cage: Cage, portable: bool
) -> None:
    for _ in range(3):
        zoo.sleeper(cage)

    def kill_all_at_first_sight(owner: Owner) -> bool:
        if cage.mine(owner):
            for child in cage.children:
                child.kill()
                child.wait()
        return cage.mine(owner)

    found = ownership.find(kill_all_at_first_sight, portable=portable)
    assert len(found) == 1  # the one that was read before it died
    assert processes.gone(found[0].ident)


def test_finding_goes_on_when_processes_come_and_go_all_the_time(
    cage: Cage, strangers: Cage, portable: bool
) -> None:
    (pid,) = zoo.sleeper(cage)
    zoo.hopper(strangers)
    for _ in range(5):
        assert [one.ident.pid for one in ownership.find(cage.mine, portable=portable)] == [pid]


# -- reaping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("animal", zoo.ANIMALS, ids=lambda animal: animal.__name__)
def test_every_animal_is_dead_wherever_it_hid(
    cage: Cage, strangers: Cage, animal: Callable[[Cage], list[int]], portable: bool
) -> None:
    stranger = zoo.sleeper(strangers)
    animal(cage)
    reaped = reap(cage.mine, grace=0.1, portable=portable)
    assert cage.extinct()
    assert reaped.clean
    assert {outcome.result for outcome in reaped.outcomes} == {"dead"}
    assert strangers.living() == set(stranger)


def test_all_animals_at_once_are_dead_by_one_deadline(
    cage: Cage, strangers: Cage, portable: bool
) -> None:
    strange = {pid for animal in zoo.ANIMALS[:9] for pid in animal(strangers)}
    for animal in zoo.ANIMALS:
        animal(cage)
    reaped = reap(cage.mine, portable=portable)
    assert cage.extinct()
    assert reaped.clean
    # the deaf shell replaces its own `sleep 1`; everybody else is still the same
    assert strange <= strangers.living()


def test_grace_zero_kills_at_once(cage: Cage, portable: bool, tmp_path: Path) -> None:
    _polite(cage, tmp_path / "saved")
    outcome = only(reap(cage.mine, grace=0, portable=portable))
    assert (outcome.signal, outcome.result) == ("KILL", "dead")
    assert not (tmp_path / "saved").exists()
    assert cage.extinct()


def test_a_process_that_leaves_on_term_may_save_its_work_and_is_not_killed(
    cage: Cage, portable: bool, tmp_path: Path
) -> None:
    _polite(cage, tmp_path / "saved")
    outcome = only(reap(cage.mine, grace=zoo.BIRTH, deadline=20, portable=portable))
    assert (outcome.signal, outcome.result) == ("TERM", "dead")
    assert (tmp_path / "saved").read_text() == "all of it"
    assert outcome.ms < zoo.BIRTH * 1000, "nobody waits for the rest of a grace"


def test_a_gentler_word_is_sent_instead_of_term(cage: Cage, portable: bool) -> None:
    zoo.sleeper(cage)
    outcome = only(reap(cage.mine, signal="INT", grace=zoo.BIRTH, deadline=20, portable=portable))
    assert (outcome.signal, outcome.result) == ("INT", "dead")


def test_a_process_that_ignores_term_is_killed_after_the_grace(cage: Cage, portable: bool) -> None:
    zoo.deaf(cage)
    outcome = only(reap(cage.mine, grace=0.1, portable=portable))
    assert (outcome.signal, outcome.result) == ("KILL", "dead")
    assert outcome.ms >= 100


def test_a_child_started_on_term_dies_too_without_grace(cage: Cage, portable: bool) -> None:
    cage.python(
        """
def last_words(*_):
    if not born():
        signal.signal(signal.SIGTERM, signal.SIG_IGN); rest()
    os._exit(0)
signal.signal(signal.SIGTERM, last_words)
here(); rest()
"""
    )
    reaped = reap(cage.mine, grace=zoo.BIRTH, deadline=20, portable=portable)
    assert reaped.clean
    assert cage.extinct()
    assert [outcome.signal for outcome in reaped.outcomes] == ["TERM", "KILL"]


def test_everybody_is_stopped_before_anybody_is_told_to_leave(
    cage: Cage, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pid,) = zoo.sleeper(cage)
    (other,) = zoo.deaf(cage)
    real_tell = reaping._Hunt.tell
    told: list[bool] = []

    def tell(hunt: reaping._Hunt) -> None:
        zoo.until(lambda: {zoo.state(pid), zoo.state(other)} == {"T"})
        told.append(True)
        real_tell(hunt)

    monkeypatch.setattr(reaping._Hunt, "tell", tell)
    assert reap(cage.mine, grace=0.1, portable=portable).clean
    assert told == [True]


def test_one_that_died_unread_may_have_left_a_child_so_the_look_is_repeated(
    cage: Cage, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = zoo.sleeper(cage)
    real_read, real_environ = processes._read, psutil.Process.environ

    def fork_away() -> None:
        if len(cage.children) == 1:
            zoo.sleeper(cage)  # born after the list of processes was made
            cage.children[0].kill()
            cage.children[0].wait()

    def read(path: str, folder: int | None = None) -> bytes:
        if path == f"/proc/{first}/environ":
            fork_away()
        return real_read(path, folder)

    def environ(process: psutil.Process) -> dict[str, str]:
        if process.pid == first:
            fork_away()
        return real_environ(process)

    monkeypatch.setattr(processes, "_read", read)
    monkeypatch.setattr(psutil.Process, "environ", environ)
    reaped = reap(cage.mine, grace=0, portable=portable)
    assert reaped.clean
    assert cage.extinct()


def test_nothing_forks_away_between_the_look_and_the_signal(cage: Cage, portable: bool) -> None:
    """A parent that restarts its child has no chance to: it is stopped before TERM is sent."""
    cage.python(
        """
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
def child():
    pid = born()
    if not pid: signal.signal(signal.SIGTERM, signal.SIG_DFL); here(); rest()
    return pid
pid = child()
here()
while True:
    os.waitpid(pid, 0)
    pid = child()
""",
        births=2,
    )
    reaped = reap(cage.mine, grace=zoo.BIRTH, deadline=20, portable=portable)
    assert reaped.clean
    assert cage.extinct()
    assert [outcome.signal for outcome in reaped.outcomes] == ["TERM", "TERM"]


def test_a_process_without_its_main_thread_is_no_zombie(cage: Cage) -> None:
    """Native only: psutil cannot see its environment."""
    (pid,) = zoo.headless(cage)
    assert not processes.gone(ident(pid))
    reaped = reap(cage.mine, grace=0.05)
    assert (only(reaped).ident.pid, only(reaped).result) == (pid, "dead")
    assert cage.extinct()


def test_a_dead_child_that_nobody_waited_for_counts_as_dead(cage: Cage, portable: bool) -> None:
    (pid,) = zoo.sleeper(cage)
    assert reap(cage.mine, portable=portable).clean
    assert cage.children[0].returncode is None, "we never waited: it is a zombie now"
    assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_dry_run_signals_nobody(cage: Cage, portable: bool) -> None:
    alive = set(zoo.sleeper(cage) + zoo.deaf(cage))
    reaped = reap(cage.mine, dry_run=True, portable=portable)
    assert {(o.signal, o.result) for o in reaped.outcomes} == {("none", "would")}
    assert pids(reaped.outcomes) == alive
    assert not reaped.clean, "whoever would be killed is still there"
    assert cage.living() == alive
    assert {zoo.state(pid) for pid in alive} <= {"S", "R"}, "nobody is stopped either"
    assert all(child.poll() is None for child in cage.children)


def test_nothing_to_do_is_clean(cage: Cage, portable: bool) -> None:
    reaped = reap(cage.mine, portable=portable)
    assert reaped.clean
    assert not reaped.outcomes
    assert not reaped.spared
    assert reaped.looks >= 1


def test_other_states_sessions_and_generations_are_strangers(
    cage: Cage, strangers: Cage, portable: bool
) -> None:
    (mine,) = zoo.sleeper(cage, cookie=cookies.format(cage.owner("agent:dev1:main", 3)))
    others = [
        *zoo.sleeper(strangers, cookie=""),
        *zoo.sleeper(strangers, cookie=cookies.format(Owner(secrets.token_hex(16), "x", 3))),
        *zoo.sleeper(strangers, cookie=cookies.format(cage.owner("agent:dev2:main", 3))),
        *zoo.sleeper(strangers, cookie=cookies.format(cage.owner("agent:dev1:main", 4))),
        *zoo.deaf(strangers),
    ]

    def match(owner: Owner) -> bool:
        here = owner.state == cage.state and owner.session == "agent:dev1:main"
        return here and owner.generation <= 3

    reaped = reap(match, portable=portable)
    assert pids(reaped.outcomes) == {mine}
    assert strangers.living() == set(others)


def test_the_spared_are_untouched_and_listed(cage: Cage, portable: bool) -> None:
    (kept,) = zoo.sleeper(cage)
    (condemned,) = zoo.sleeper(cage)
    # the identity as any part of the engine would hold it, whatever the path of the reaping
    reaped = reap(cage.mine, spare=[ident(kept)], portable=portable)
    assert pids(reaped.outcomes) == {condemned}
    assert [(o.ident.pid, o.signal, o.result) for o in reaped.spared] == [(kept, "none", "spared")]
    assert reaped.clean
    assert cage.living() == {kept}
    assert zoo.state(kept) == "S"


def test_a_spared_pid_that_was_recycled_spares_nobody(cage: Cage, portable: bool) -> None:
    (pid,) = zoo.sleeper(cage)
    one = ident(pid)
    reaped = reap(cage.mine, spare=[Ident(pid, one.start - 1)], portable=portable)
    assert pids(reaped.outcomes) == {pid}
    assert not reaped.spared
    assert cage.extinct()


def test_the_caller_can_spare_itself_and_its_ancestors(cage: Cage, portable: bool) -> None:
    """`clawstop stop` typed by the agent itself: its shell is not cut off from the answer."""
    stop = f"""
import os, sys; sys.path[:0] = {sys.path!r}
from clawstop import processes, reaping
line = processes.ancestors(os.getpid())
reaped = reaping.reap(lambda o: o.state == {cage.state!r}, spare=line, portable={portable})
print(len(reaped.outcomes), len(reaped.spared), reaped.clean, flush=True)
"""
    zoo.sleeper(cage)
    environ = {**os.environ, cookies.VARIABLE: cookies.format(cage.owner())}
    shell = f"'{sys.executable}' -c \"$STOP\"; echo still here"
    answer = subprocess.run(
        ["sh", "-c", shell], env={**environ, "STOP": stop}, capture_output=True, timeout=20
    )
    assert answer.stdout.decode().splitlines() == ["1 1 True", "still here"], answer.stderr


# -- recycled pids ---------------------------------------------------------------------------------


LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="cannot choose the next pid")
@pytest.mark.parametrize("grace", [0, 0.1])
def test_a_pid_that_was_really_recycled_after_the_look_is_refused(
    cage: Cage, strangers: Cage, portable: bool, grace: float
) -> None:
    (pid,) = zoo.sleeper(cage)
    _pass_a_tick()
    heirs: list[int] = []

    def recycle_at_sight(owner: Owner) -> bool:
        if cage.mine(owner) and not heirs:
            cage.children[0].kill()
            cage.children[0].wait()
            heirs.append(_stranger_with_pid(strangers, pid))
        return cage.mine(owner)

    outcome = only(reap(recycle_at_sight, grace=grace, portable=portable))
    assert (outcome.ident.pid, outcome.signal, outcome.result) == (pid, "none", "dead")
    assert heirs == [pid]
    assert strangers.living() == {pid}
    assert zoo.state(pid) in "SR", "not even stopped"


@pytest.mark.skipif(not os.access(LAST_PID, os.W_OK), reason="cannot choose the next pid")
def test_a_pid_that_was_really_recycled_during_the_grace_is_refused(
    cage: Cage, strangers: Cage, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pid,) = zoo.sleeper(cage)
    zoo.deaf(cage)  # keeps the grace going
    _pass_a_tick()
    real_wait = reaping._Hunt.wait

    def recycle_first(hunt: reaping._Hunt, until: float) -> None:
        if not strangers.children:
            cage.children[0].kill()
            cage.children[0].wait()
            _stranger_with_pid(strangers, pid)
        real_wait(hunt, until)

    monkeypatch.setattr(reaping._Hunt, "wait", recycle_first)
    reaped = reap(cage.mine, grace=0.1, portable=portable)
    assert reaped.clean
    assert len(reaped.outcomes) == 2
    assert strangers.living() == {pid}
    assert zoo.state(pid) in "SR"


def test_the_identity_is_checked_again_between_the_look_and_the_signal(
    cage: Cage, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, for those who cannot choose pids: the system reports another start time."""
    (pid,) = zoo.sleeper(cage)
    recycled: list[bool] = []
    real_read, real_create_time = processes._read, psutil.Process.create_time

    def read(path: str, folder: int | None = None) -> bytes:
        data = real_read(path, folder)
        if recycled and path == f"/proc/{pid}/stat":
            head, _, tail = data.rpartition(b") ")
            fields = tail.split()
            fields[19] = b"%d" % (int(fields[19]) + 1)
            data = head + b") " + b" ".join(fields)
        return data

    def create_time(process: psutil.Process) -> float:
        return real_create_time(process) + (1 if recycled and process.pid == pid else 0)

    def match(owner: Owner) -> bool:
        if cage.mine(owner) and not recycled:
            recycled.append(True)
            return True
        return False

    monkeypatch.setattr(processes, "_read", read)
    monkeypatch.setattr(psutil.Process, "create_time", create_time)
    outcome = only(reap(match, portable=portable))
    assert outcome.signal == "none"
    assert cage.living() == {pid}
    assert zoo.state(pid) in "SR"


# -- what cannot be done is said -------------------------------------------------------------------


def test_a_process_that_may_not_be_signalled_is_left_and_named_at_once(
    cage: Cage, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pid,) = zoo.sleeper(cage)

    def denied(*_: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", denied)
    monkeypatch.setattr(os, "kill", denied)
    began = time.monotonic()
    reaped = reap(cage.mine, portable=portable)
    assert time.monotonic() - began < reaping.DEADLINE
    monkeypatch.undo()
    (left,) = reaped.left
    assert (left.ident.pid, left.signal, left.result) == (pid, "none", "alive")
    assert left.error
    assert not reaped.clean
    assert cage.living() == {pid}


def test_a_process_that_does_not_die_is_left_alive_at_the_deadline(
    cage: Cage, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in uninterruptible sleep: the signal is taken and nothing happens."""
    (pid,) = zoo.sleeper(cage)
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda *_: None)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    reaped = reap(cage.mine, grace=0.05, deadline=0.4, portable=portable)
    monkeypatch.undo()
    (left,) = reaped.left
    assert (left.ident.pid, left.signal, left.result) == (pid, "KILL", "alive")
    assert not reaped.clean
    assert 400 <= left.ms < 5000


def test_a_reaping_that_never_settles_says_so(cage: Cage, portable: bool) -> None:
    """Somebody outside, here the look itself, starts owned processes faster than looks end."""
    zoo.sleeper(cage)

    def breeder(owner: Owner) -> bool:
        if cage.mine(owner):
            zoo.sleeper(cage)
        return cage.mine(owner)

    reaped = reap(breeder, grace=0, deadline=0.3, portable=portable)
    assert not reaped.settled
    assert not reaped.clean


def test_looks_that_fail_prove_nothing(
    cage: Cage, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pid,) = zoo.sleeper(cage)

    def out_of_descriptors(*_: object) -> NoReturn:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "listdir", out_of_descriptors)
    monkeypatch.setattr(psutil, "pids", out_of_descriptors)
    reaped = reap(cage.mine, grace=0.05, deadline=0.2, portable=portable)
    monkeypatch.undo()
    assert not reaped.clean
    assert "Too many open files" in reaped.error
    assert cage.living() == {pid}


def test_more_processes_than_descriptors_are_all_dead(cage: Cage) -> None:
    zoo.chain(cage)
    zoo.chain(cage)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + reaping.SPARE_DESCRIPTORS + 20, hard))
    try:
        reaped = reap(cage.mine, grace=0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reaped.clean
    assert len(reaped.outcomes) == 100
    assert cage.extinct()


def test_without_pidfds_identities_are_compared_instead(
    cage: Cage, strangers: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seccomp(*_: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", seccomp)
    stranger = zoo.sleeper(strangers)
    zoo.deaf(cage)
    zoo.chain(cage)
    reaped = reap(cage.mine, grace=0.05)
    monkeypatch.undo()
    assert reaped.clean
    assert len(reaped.outcomes) == 51
    assert cage.extinct()
    assert strangers.living() == set(stranger)


def test_no_descriptor_is_left_open(cage: Cage, portable: bool) -> None:
    zoo.chain(cage)
    before = set(os.listdir("/proc/self/fd"))
    reap(cage.mine, dry_run=True, portable=portable)
    reap(cage.mine, grace=0.05, portable=portable)
    assert set(os.listdir("/proc/self/fd")) == before


# -- histories -------------------------------------------------------------------------------------

STEPS = st.sampled_from(["own", "own later", "strange", "anonymous", "leave", "stop", "reap"])


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(STEPS, min_size=3, max_size=12), seed=st.integers(0, 2**16))
def test_no_history_ends_with_a_stranger_touched_or_an_owned_one_alive(
    steps: list[str], seed: int
) -> None:
    choose = random.Random(seed)
    with zoo.cage() as cage, zoo.cage() as strangers:
        strange: set[int] = set()
        condemned: set[int] = set()
        for step in [*steps, "reap"]:
            if step == "own":
                condemned |= set(zoo.sleeper(cage))
            elif step == "own later":  # the next generation of the same session is a stranger
                text = cookies.format(cage.owner(generation=2))
                strange |= set(zoo.sleeper(strangers, cookie=text))
            elif step == "strange":
                strange |= set(zoo.sleeper(strangers))
            elif step == "anonymous":
                strange |= set(zoo.sleeper(strangers, cookie=""))
            elif step in ("leave", "stop"):
                children = [c for c in cage.children + strangers.children if c.poll() is None]
                if not children:
                    continue
                child = choose.choice(children)
                child.send_signal(signal.SIGKILL if step == "leave" else signal.SIGSTOP)
                if step == "leave":
                    if choose.random() < 0.5:
                        child.wait()
                    else:
                        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
                    strange -= {child.pid}
                    condemned -= {child.pid}
            else:
                portable = choose.random() < 0.3
                reaped = reap(
                    lambda owner: cage.mine(owner) and owner.generation <= 1,
                    grace=choose.choice([0, 0.2]),
                    portable=portable,
                )
                assert reaped.clean
                assert pids(reaped.outcomes) == condemned
                condemned = set()
                assert cage.extinct()
            assert strangers.living() == strange


# -- helpers ---------------------------------------------------------------------------------------


def _polite(cage: Cage, path: Path) -> None:
    cage.python(
        f"""
def save(*_):
    with open({str(path)!r}, "w") as file: file.write("all of it")
    os._exit(0)
signal.signal(signal.SIGTERM, save)
here(); rest()
"""
    )


def _pass_a_tick() -> None:
    """Start times count in 10 ms: an heir within the same one could not be told apart."""
    select.select([], [], [], 2 / os.sysconf("SC_CLK_TCK"))


def _stranger_with_pid(cage: Cage, pid: int) -> int:
    """Start a stranger under a pid that has just become free."""
    for _ in range(200):
        LAST_PID.write_text(str(pid - 1))
        child = subprocess.Popen(["sleep", "60"], env={"CAGE": cage.state})
        if child.pid == pid:
            cage.children.append(child)
            return pid
        child.kill()
        child.wait()
    pytest.skip(f"other processes take {pid} again and again: {child.pid}")
