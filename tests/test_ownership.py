"""What proves whose a process is, beside its cookie; and what proves nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import zoo
from clawstop import cgroups, cookies, leases, ownership, processes, records, suspects
from clawstop.cookies import Owner
from clawstop.ownership import Proofs
from clawstop.paths import Paths
from clawstop.processes import Ident, Owned
from clawstop.reaping import reap
from clawstop.records import Record
from clawstop.watching import Watch

pytestmark = pytest.mark.timeout(30)

Cage = zoo.Cage

# Animals without a cookie: what `env -i` does. The mark of the zoo's keeper stays.
SCRUBBED = "env -i CAGE=$CAGE"


@pytest.fixture
def cage() -> Iterator[Cage]:
    with zoo.cage() as one:
        yield one


@pytest.fixture(params=[False, True], ids=["native", "portable"])
def portable(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of cages below our own cgroup, as a gateway would get it."""
    made = cgroups.folder_for(os.getpid(), secrets.token_hex(8))
    assert made is not None, "these tests need a cgroup v2 that they may write"
    yield made
    zoo.until(lambda: not any(True for _ in cgroups.members(made)))
    cgroups.prune([made], lambda _: True)
    assert not made.exists()


def ident(pid: int) -> Ident:
    found = processes.ident_of(pid)
    assert found is not None
    return found


def proofs_of(found: list[Owned]) -> dict[int, str]:
    return {one.ident.pid: one.proof for one in found}


def scrubbed_child(cage: Cage) -> list[int]:
    """A shell that stays, and its child without a cookie."""
    return cage.spawn(["sh", "-c", f"{SCRUBBED} sh -c 'echo $$; exec sleep 60' & wait"])


def scrubbed_orphan(cage: Cage, *, leader: bool) -> list[int]:
    """Without a cookie and without its parent; the leader of its session lives, or not."""
    stay = "echo $$; sleep 60" if leader else "echo $$"
    inner = f"({SCRUBBED} sh -c 'echo $$; exec sleep 60' &); sleep 0.2; {stay}"
    pids = cage.spawn(["sh", "-c", inner], births=2, start_new_session=True)
    zoo.until(lambda: processes.ancestors(min(pids))[0].pid == min(pids))
    return pids


def daemonized(cage: Cage, path: Path) -> int:
    """Joins a cage, then leaves everything else behind: environment, session, parent, folder."""
    script = (
        f"echo $$ > {path}/cgroup.procs; "
        f"exec {SCRUBBED} setsid sh -c '(sh -c \"cd /; echo \\$\\$; exec sleep 60\" &)'"
    )
    (pid,) = cage.spawn(["sh", "-c", script])
    zoo.until(lambda: processes.ancestors(pid)[1].pid == 1)
    return pid


# -- family


def test_a_child_without_a_cookie_is_its_parent_s(cage: Cage, portable: bool) -> None:
    (child,) = scrubbed_child(cage)
    parent = cage.children[0].pid
    found = proofs_of(ownership.find(cage.mine, portable=portable))
    assert found == {parent: "cookie", child: f"child of {parent}"}
    assert reap(cage.mine, grace=0.1, portable=portable).clean
    assert cage.extinct()


def test_an_orphan_is_known_by_the_living_leader_of_its_session(cage: Cage) -> None:
    pids = scrubbed_orphan(cage, leader=True)
    leader = cage.children[0].pid
    (orphan,) = set(pids) - {leader}
    assert proofs_of(ownership.find(cage.mine))[orphan] == f"session of {leader}"
    assert reap(cage.mine, grace=0.1).clean
    assert cage.extinct()


def test_an_orphan_whose_leader_is_gone_escapes_without_a_cage(cage: Cage) -> None:
    """Written down in docs/threat-model.md: nothing that is left proves whose it is."""
    pids = scrubbed_orphan(cage, leader=False)
    cage.children[0].wait()
    assert reap(cage.mine, grace=0).outcomes == []
    assert cage.living() == {pid for pid in pids if pid != cage.children[0].pid}


def test_who_started_an_owned_process_is_not_owned(cage: Cage, portable: bool) -> None:
    """A person's shell, and the other end of its pipeline, which is in the same group."""
    owned = cookies.format(cage.owner())
    script = (
        f"env CLAWSTOP_COOKIE={owned} sh -c 'echo $$; sleep 60; :' 1>&3 3>&1 | "
        "sh -c 'echo $$; exec sleep 60' 1>&3"
    )
    text = f"exec 3>&1; set -m; {script}"
    pids = cage.spawn(["bash", "-c", text], births=2, cookie="")
    found = ownership.find(cage.mine, portable=portable)
    assert {one.command for one in found} <= {"sh -c echo $$; sleep 60; :", "sleep 60"}
    assert cage.children[0].pid not in proofs_of(found)
    assert len(set(pids) & set(proofs_of(found))) == 1


def test_what_another_gateway_s_run_started_below_ours_is_not_ours(
    cage: Cage, portable: bool
) -> None:
    other = cookies.format(Owner("abcd", "agent:x:main", 1))
    script = f"CLAWSTOP_COOKIE={other} sh -c 'echo $$; exec sleep 60' & wait"
    (theirs,) = cage.spawn(["sh", "-c", script])
    assert theirs not in proofs_of(ownership.find(cage.mine, portable=portable))


def test_nothing_is_owned_because_of_a_gateway(cage: Cage, portable: bool) -> None:
    """One that a run has started carries its cookie; what it starts has cookies of its own."""
    (child,) = scrubbed_child(cage)
    gateway = processes.ident_of(cage.children[0].pid, portable=portable)
    assert gateway is not None
    strange = Proofs(strangers=frozenset({gateway}))
    assert ownership.find(cage.mine, strange, portable=portable) == []
    assert child in cage.living()


# -- records


def test_a_record_names_one_process_of_this_boot(tmp_path: Path, cage: Cage) -> None:
    (pid,) = zoo.sleeper(cage, cookie="")
    one = ident(pid)
    records.write(tmp_path, one, Record(cage.owner(), "marked"))
    assert records.read(tmp_path) == {one: Record(cage.owner(), "marked")}
    known = Proofs(records.read(tmp_path))
    assert proofs_of(ownership.find(cage.mine, known)) == {pid: "marked"}
    recycled = Proofs({Ident(pid, int(one.start) - 1): Record(cage.owner(), "marked")})
    assert ownership.find(cage.mine, recycled) == []
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text().replace(records.boot(), "another-boot"))
    assert records.read(tmp_path) == {}
    records.prune(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", ["", "a b c", "- x 1 run 1:a:1:run:m", "- 1 nan run 1:a:1:run:m"])
def test_a_file_that_is_no_record_means_nobody(tmp_path: Path, bad: str) -> None:
    file = tmp_path / "1-1"
    file.write_text(bad)
    file.chmod(0o600)
    assert records.read(tmp_path) == {}


def test_a_record_that_somebody_else_could_write_means_nobody(tmp_path: Path, cage: Cage) -> None:
    (pid,) = zoo.sleeper(cage, cookie="")
    records.write(tmp_path, ident(pid), Record(cage.owner(), "run"))
    (file,) = tmp_path.iterdir()
    file.chmod(0o666)
    assert records.read(tmp_path) == {}
    link = tmp_path / "2-2"
    file.chmod(0o600)
    link.symlink_to(file)
    assert len(records.read(tmp_path)) == 1


def test_what_a_person_says_is_above_the_cookie_and_holds_for_all_below(
    tmp_path: Path, cage: Cage, portable: bool
) -> None:
    """A server on a lease: its workers carry the cookie of the run that started it."""
    pids = zoo.chain(cage)
    server = cage.children[0].pid
    kept = replace(cage.owner(), lease="keep:99999999")
    known = Proofs({ident(server): Record(kept, "marked")})

    def stopped(owner: Owner) -> bool:
        return cage.mine(owner) and leases.parse(owner.lease).ends(wide=True, hard=False)

    assert ownership.find(stopped, known, portable=portable) == []
    assert reap(stopped, proofs=known, grace=0, portable=portable).outcomes == []
    assert cage.living() == set(pids)
    assert reap(cage.mine, proofs=known, grace=0, portable=portable).clean
    assert cage.extinct()


def test_the_watch_remembers_who_was_below_an_owned_process(tmp_path: Path, cage: Cage) -> None:
    paths = Paths(tmp_path)
    paths.prepare()
    (child,) = scrubbed_child(cage)
    watch = Watch(paths, cage.state, lambda: ownership.proofs(paths, []))
    assert len(watch.look()) == 2
    assert not watch.due
    os.kill(cage.children[0].pid, signal.SIGKILL)
    cage.children[0].wait()
    assert ownership.find(cage.mine) == []
    known = ownership.proofs(paths, [])
    assert proofs_of(ownership.find(cage.mine, known)) == {child: "seen"}
    assert reap(cage.mine, proofs=known, grace=0).clean
    assert cage.extinct()


# -- cages


def test_who_leaves_everything_behind_is_still_in_its_cage(folder: Path, cage: Cage) -> None:
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    pid = daemonized(cage, home)
    assert ownership.find(cage.mine) == [], "nothing else proves it"
    known = Proofs(folders=[folder])
    assert proofs_of(ownership.find(cage.mine, known)) == {pid: "cgroup"}
    reaped = reap(cage.mine, proofs=known, grace=0.1)
    assert reaped.clean
    assert [outcome.proof for outcome in reaped.outcomes] == ["cgroup"]
    assert cage.extinct()


def test_a_cage_inside_a_cage_hides_nobody(folder: Path, cage: Cage) -> None:
    inner = folder / cookies.format(cage.owner()) / "deeper" / "still"
    inner.mkdir(parents=True)
    daemonized(cage, inner)
    assert reap(cage.mine, proofs=Proofs(folders=[folder]), grace=0).clean
    assert cage.extinct()


def test_whose_cookie_is_another_s_is_not_killed_with_the_cage(folder: Path, cage: Cage) -> None:
    """A lease of its own that could not get a cage of its own."""
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    pid = daemonized(cage, home)
    kept = cookies.format(replace(cage.owner(), session="agent:kept:main"))
    (server,) = zoo.sleeper(cage, cookie=kept)
    assert cgroups.join(home, server)

    def mine(owner: Owner) -> bool:
        return owner == cage.owner()

    known = Proofs(folders=[folder])
    reaped = reap(mine, proofs=known, grace=0.05)
    ended = {outcome.ident.pid for outcome in reaped.outcomes}  # its parent may still be leaving
    assert pid in ended
    assert server not in ended
    assert reaped.clean
    assert cage.living() == {server}
    assert zoo.state(server) in "SR", "and it was let go on"


def test_a_cage_with_the_caller_in_it_is_neither_frozen_nor_killed(
    folder: Path, cage: Cage
) -> None:
    """An agent that stops itself: its own shell, in the cage, asks for it."""
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    pid = daemonized(cage, home)
    (caller,) = zoo.sleeper(cage)
    assert cgroups.join(home, caller)
    frozen: list[str] = []

    def sleep(seconds: float) -> None:
        frozen.append((home / "cgroup.freeze").read_text())
        time.sleep(seconds)

    known = Proofs(folders=[folder])
    reaped = reap(cage.mine, proofs=known, spare=[ident(caller)], grace=0.05, sleep=sleep)
    assert "1\n" not in frozen
    assert [outcome.ident.pid for outcome in reaped.outcomes] == [pid]
    assert cage.living() == {caller}


def test_a_cage_that_a_crash_left_frozen_is_thawed(folder: Path, cage: Cage) -> None:
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    daemonized(cage, home)
    assert cgroups.freeze(home, True)
    assert reap(cage.mine, proofs=Proofs(folders=[folder]), grace=0.05).clean
    assert (home / "cgroup.freeze").read_text() == "0\n"
    assert cage.extinct()


def test_a_gateway_that_a_run_has_started_is_taken_out_of_its_cage(
    folder: Path, cage: Cage
) -> None:
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    gateway = daemonized(cage, home)
    made = cgroups.folder_for(gateway, "ffff")
    assert made == folder.parent / "clawstop-ffff"
    zoo.until(lambda: list(cgroups.members(home)) == [])  # who brought it up is on their way out
    made.rmdir()


def test_where_no_cgroup_may_be_made_there_are_no_cages(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
from clawstop import cgroups
import os; os.setgid(65534); os.setuid(65534)
print(cgroups.folder_for(os.getpid(), "ab"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a cgroup over")
def test_without_root_a_delegated_subtree_is_enough(cage: Cage) -> None:
    """What systemd gives the service of a user: a cgroup of their own, with whatever is in it."""
    own = cgroups.home(os.getpid())
    assert own is not None
    given = own / f"test-{secrets.token_hex(4)}"
    given.mkdir()
    for file in (given, given / "cgroup.procs", given / "cgroup.subtree_control"):
        os.chown(file, 65534, 65534)
    environ = {"CAGE": cage.state, "PATH": "/usr/bin:/bin"}
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
import os, subprocess
from clawstop import cgroups, cookies, ownership, reaping
from clawstop.cookies import Owner
open("{given}/cgroup.procs", "w").write(str(os.getpid()))
os.setgid(65534); os.setuid(65534)
owner = Owner({cage.state!r}, "agent:a:main", 1)
folder = cgroups.folder_for(os.getpid(), owner.state)
cage = folder / cookies.format(owner)
cage.mkdir()
daemon = "(setsid sh -c '(sleep 60 >/dev/null 2>&1 &)' >/dev/null 2>&1 &)"
subprocess.run(["sh", "-c", f"echo 0 > '{{cage}}/cgroup.procs'; {{daemon}}"], env={environ!r})
while not list(cgroups.members(cage)): pass
proofs = ownership.Proofs(folders=[folder])
reaped = reaping.reap(lambda o: o == owner, proofs=proofs, grace=0.1)
print(reaped.clean, {{o.proof for o in reaped.outcomes}})
cgroups.prune([folder], lambda _: True)
"""
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout.startswith("True {"), done.stdout + done.stderr
        assert "'cgroup'" in done.stdout
    finally:
        zoo.until(cage.extinct)
        given.rmdir()


def test_a_fork_bomb_without_a_cookie_dies_in_its_cage(folder: Path, cage: Cage) -> None:
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    cage.python(
        f"""
open({str(home / "cgroup.procs")!r}, "w").write(str(os.getpid()))
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGCHLD, signal.SIG_IGN)
here()
for _ in range(9):
    if not born(): os.setsid()
rest()
""",
        cookie="",
    )
    reaped = reap(cage.mine, proofs=Proofs(folders=[folder]), grace=0.05)
    assert reaped.clean
    assert cage.extinct()
    assert "cgroup" in {outcome.proof for outcome in reaped.outcomes}


# -- what cannot die


FREEZER = Path("/sys/fs/cgroup/freezer")  # v1: who is frozen in it does not even die of SIGKILL


@pytest.mark.skipif(not FREEZER.is_dir(), reason="nothing here makes a process unkillable")
def test_who_cannot_die_is_reported_and_not_waited_for(cage: Cage) -> None:
    """As in uninterruptible sleep on a dead disk."""
    (pid,) = zoo.sleeper(cage)
    stuck = FREEZER / f"clawstop-test-{os.getpid()}"
    stuck.mkdir()
    try:
        (stuck / "cgroup.procs").write_text(str(pid))
        (stuck / "freezer.state").write_text("FROZEN")
        zoo.until(lambda: (stuck / "freezer.state").read_text() == "FROZEN\n")
        begun = time.monotonic()
        reaped = reap(cage.mine, grace=0.05, deadline=1.0)
        assert time.monotonic() - begun < 3
        assert not reaped.clean
        assert [(o.ident.pid, o.signal, o.result) for o in reaped.left] == [(pid, "KILL", "alive")]
        assert f"process {pid} is still alive" in reaped.problems()[0]
    finally:
        (stuck / "freezer.state").write_text("THAWED")
        zoo.until(cage.extinct)
        stuck.rmdir()


# -- what is easily got wrong


def test_nothing_is_owned_because_of_a_gateway_that_an_owned_session_holds(cage: Cage) -> None:
    """A gateway that a run started stays in that run's session, and so does what it starts."""
    script = (
        f"{SCRUBBED} sh -c 'echo $$; {SCRUBBED} sh -c \"echo \\$\\$; exec sleep 60\" & wait' & wait"
    )
    pids = cage.spawn(["sh", "-c", script], births=2, start_new_session=True)
    leader = cage.children[0].pid
    gateway = next(pid for pid in pids if processes.children(pid))
    (helper,) = set(pids) - {gateway}
    assert proofs_of(ownership.find(cage.mine)).keys() == {leader, gateway, helper}
    known = Proofs(strangers=frozenset({ident(gateway)}))
    assert proofs_of(ownership.find(cage.mine, known)).keys() == {leader}


def test_the_watch_records_nobody_because_of_a_gateway(tmp_path: Path, cage: Cage) -> None:
    paths = Paths(tmp_path)
    paths.prepare()
    scrubbed_child(cage)
    gateway = [ident(cage.children[0].pid)]
    watch = Watch(paths, cage.state, lambda: ownership.proofs(paths, gateway))
    assert watch.look() == []
    assert records.read(paths.owned) == {}


def test_the_children_of_a_pid_s_next_holder_are_not_ours(cage: Cage) -> None:
    """A parent that died after it was met: whoever has its pid now proves nothing."""
    (child,) = scrubbed_child(cage)
    parent = ident(cage.children[0].pid)
    earlier = Owned(Ident(parent.pid, int(parent.start) - 1), cage.owner(), "cookie", 1, "")
    look = ownership.scan(lambda _: False, held=[earlier])
    assert [one.ident.pid for one in look] == []
    assert child in cage.living()


def test_children_of_threads_that_came_later_are_found(cage: Cage) -> None:
    """Each thread has children of its own, and some are started on the way out."""
    cage.python(
        """
import subprocess, threading
def last(*_):
    def start():
        env = {"CAGE": os.environ["CAGE"]}
        subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)
        rest()
    threading.Thread(target=start).start()
signal.signal(signal.SIGTERM, last)
here(); rest()
"""
    )
    reaped = reap(cage.mine, grace=1.0)
    assert reaped.clean
    assert cage.extinct()
    assert len(reaped.outcomes) == 2


def test_what_goes_on_record_during_the_grace_is_found(tmp_path: Path, cage: Cage) -> None:
    """As `clawstop run` does for the orphans that its command leaves when it is told to go."""
    (stranger,) = zoo.sleeper(cage, cookie="")
    zoo.deaf(cage)
    looks: list[int] = []

    def known() -> Proofs:
        looks.append(0)
        late = {ident(stranger): Record(cage.owner(), "run")} if len(looks) > 2 else {}
        return Proofs(records=late)

    reaped = reap(cage.mine, proofs=known, grace=0.1)
    assert reaped.clean
    assert cage.extinct()


def test_a_look_that_failed_is_not_called_clean(cage: Cage) -> None:
    """Whoever was killed before all below them were looked for may have left somebody."""
    term = signal.SIGTERM
    (pid,) = cage.python(f"signal.pthread_sigmask(signal.SIG_BLOCK, [{term:d}]); here(); rest()")
    failed: list[int] = []

    def known() -> Proofs:
        if len(failed) < 2 and zoo.is_pending(pid, term):  # the grace is over
            failed.append(0)
            raise OSError("no descriptors left")
        return Proofs()

    reaped = reap(cage.mine, proofs=known, grace=0.05, deadline=2.0)
    assert cage.extinct()
    assert len(failed) == 2
    assert not reaped.clean


def test_a_leased_one_in_the_cage_of_its_run_is_not_even_frozen(folder: Path, cage: Cage) -> None:
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    daemonized(cage, home)
    kept = replace(cage.owner(), session="agent:kept:main")
    (server,) = zoo.sleeper(cage, cookie=cookies.format(kept))
    assert cgroups.join(home, server)
    frozen: list[bool] = []
    real = cgroups.freeze

    def freeze(path: Path, on: bool) -> bool:
        frozen.append(on)
        return real(path, on)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroups, "freeze", freeze)
        reap(lambda owner: owner == cage.owner(), proofs=Proofs(folders=[folder]), grace=0.05)
    assert True not in frozen
    assert cage.living() == {server}


def test_no_cage_is_killed_that_no_whole_look_has_seen(
    folder: Path, cage: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder / cookies.format(cage.owner())
    home.mkdir()
    kept = replace(cage.owner(), session="agent:kept:main")
    (server,) = zoo.sleeper(cage, cookie=cookies.format(kept))
    assert cgroups.join(home, server)

    def unreadable(*_: object, **__: object) -> NoReturn:
        raise OSError("no descriptors left")

    monkeypatch.setattr(processes, "listed", unreadable)
    known = Proofs(folders=[folder])
    reaped = reap(lambda o: o == cage.owner(), proofs=known, grace=0, deadline=0.3)
    assert not reaped.clean
    assert cage.living() == {server}
    assert zoo.state(server) in "SR"


def test_records_that_cannot_be_read_are_not_none_and_stay(
    tmp_path: Path, cage: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pid,) = zoo.sleeper(cage, cookie="")
    records.write(tmp_path, ident(pid), Record(cage.owner(), "marked"))

    def unreadable(*_: object, **__: object) -> str:
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", unreadable)
        with pytest.raises(OSError, match="too many"):
            records.read(tmp_path)
        with pytest.raises(OSError, match="too many"):
            records.prune(tmp_path)
    assert len(records.read(tmp_path)) == 1


def test_who_was_below_a_marked_one_stays_on_its_lease(tmp_path: Path, cage: Cage) -> None:
    """It carries the cookie of the run; what a person said of its parent is above that."""
    paths = Paths(tmp_path)
    paths.prepare()
    (child,) = cage.spawn(["sh", "-c", "sh -c 'echo $$; exec sleep 60' & wait"])
    # Not in the middle of its exec.
    zoo.until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
    kept = replace(cage.owner(), lease="keep:99999999")
    records.write(paths.owned, ident(cage.children[0].pid), Record(kept, "marked"))
    watch = Watch(paths, cage.state, lambda: ownership.proofs(paths, []))
    watch.look()
    os.kill(cage.children[0].pid, signal.SIGKILL)
    cage.children[0].wait()
    (one,) = ownership.find(cage.mine, ownership.proofs(paths, []))
    assert (one.ident.pid, one.owner, one.proof) == (child, kept, "below")


def test_without_children_files_everybody_is_asked_for_their_parent(
    cage: Cage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (child,) = scrubbed_child(cage)
    monkeypatch.setattr(processes, "_tells_children", lambda: False)
    parent = cage.children[0].pid
    assert proofs_of(ownership.find(cage.mine))[child] == f"child of {parent}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_one_that_cannot_be_read_is_known_by_its_parent(cage: Cage) -> None:
    """As ssh-agent, or a binary that may only be run: its environment is root's to read."""
    place = Path(tempfile.mkdtemp(prefix="clawstop-test-"))
    try:
        place.chmod(0o755)
        shutil.copy("/bin/sleep", place / "sleep")
        (place / "sleep").chmod(0o111)
        environ = {cookies.VARIABLE: cookies.format(cage.owner()), "CAGE": cage.state}
        script = f"""
import sys; sys.path[:0] = {sys.path!r}
import os, subprocess
from clawstop import reaping
os.setgid(65534); os.setuid(65534)
command = ["/bin/sh", "-c", "{place}/sleep 60 & echo $!; wait"]
shell = subprocess.Popen(command, env={environ!r}, stdout=subprocess.PIPE, text=True)
child = int(shell.stdout.readline())
while not open(f"/proc/{{child}}/cmdline").read().startswith("{place}"): pass
reaped = reaping.reap(lambda o: o.state == {cage.state!r}, grace=0.1)
print(reaped.clean, [o.proof for o in reaped.outcomes if o.ident.pid == child])
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.stdout.startswith("True ['child of "), done.stdout + done.stderr
    finally:
        shutil.rmtree(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide processes")
def test_where_processes_are_hidden_one_s_own_are_found(cage: Cage) -> None:
    """A /proc that shows nobody but one's own processes, as some servers have it."""
    environ = {cookies.VARIABLE: cookies.format(cage.owner()), "CAGE": cage.state}
    script = f"""
import sys; sys.path[:0] = {sys.path!r}
import os, subprocess
from clawstop import processes, reaping
os.setgid(65534); os.setuid(65534)
assert not os.path.exists("/proc/1"), "hidden"
shell = subprocess.Popen(["/bin/sh", "-c", "sleep 60 & echo; wait"], env={environ!r}, stdout=-1)
shell.stdout.readline()
reaped = reaping.reap(lambda o: o.state == {cage.state!r}, grace=0.1)
print(reaped.clean, len(reaped.outcomes))
"""
    inside = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", inside, "sh", sys.executable, "-c", script],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True 2\n", done.stdout + done.stderr


# -- suspects


def test_suspects_are_nobody_s_and_no_gateway_s(tmp_path: Path, cage: Cage) -> None:
    (editor,) = zoo.sleeper(cage, cookie="", cwd=tmp_path)
    (owned,) = zoo.sleeper(cage, cwd=tmp_path)
    (known,) = zoo.sleeper(cage, cookie="", cwd=tmp_path)
    zoo.sleeper(cage, cookie="")
    script = "sh -c 'echo $$; exec sleep 60' & wait"
    (helper,) = cage.spawn(["sh", "-c", script], cookie="", cwd=tmp_path)
    gateway = ident(cage.children[-1].pid)
    found = suspects.find([tmp_path], {known}, [gateway], [])
    assert [one.ident.pid for one in found if one.ident] == [editor]
    assert suspects.find([tmp_path], {known}, [gateway], [ident(editor)]) == []
    everybody = suspects.find([tmp_path], {known}, [], [])
    assert {one.ident.pid for one in everybody if one.ident} == {editor, helper, gateway.pid}
    assert owned not in {one.ident.pid for one in everybody if one.ident}


def test_a_folder_that_only_begins_alike_is_another(tmp_path: Path, cage: Cage) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "workshop").mkdir()
    zoo.sleeper(cage, cookie="", cwd=tmp_path / "workshop")
    assert suspects.find([tmp_path / "work"], (), [], []) == []
