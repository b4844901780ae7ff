"""`clawstop run` and `clawstop mark`: a command as an agent's own, on a lease, found and ended."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zoo
from clawstop import cgroups, cookies, leases, ownership, processes, reaping, wrapping
from clawstop.cookies import Owner
from clawstop.paths import Paths
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.timeout(60)

LAUNCH = [sys.executable, "-I", "-S", str(Path(wrapping.__file__).with_name("launch.py"))]
SESSION = "agent:dev1:main"
PATIENCE = 10.0


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    one = Paths(tmp_path)
    one.prepare()
    assert one.state_id
    return one


@pytest.fixture
def started(paths: Paths) -> Iterator[list[subprocess.Popen[str]]]:
    """What a test started through `run`; whatever is left of it is ended, and only that."""
    processes_: list[subprocess.Popen[str]] = []
    yield processes_
    known = ownership.proofs(paths, [])
    reaping.reap(lambda owner: owner.state == paths.state_id, proofs=known, grace=0)
    for process in processes_:
        process.wait(PATIENCE)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


def environ(paths: Paths, cookie: str = "") -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if key != cookies.VARIABLE}
    more = {cookies.VARIABLE: cookie} if cookie else {}
    return {**clean, "OPENCLAW_STATE_DIR": str(paths.openclaw), **more}


def run(
    paths: Paths, *words: str, cookie: str = "", stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LAUNCH, *words],
        env=environ(paths, cookie),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def start(
    paths: Paths, started: list[subprocess.Popen[str]], *words: str, cookie: str = ""
) -> subprocess.Popen[str]:
    """Start it and wait for the first line that it writes."""
    process = subprocess.Popen(
        [*LAUNCH, *words], env=environ(paths, cookie), stdout=subprocess.PIPE, text=True
    )
    started.append(process)
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def everything(paths: Paths) -> list[processes.Owned]:
    return ownership.find(lambda o: o.state == paths.state_id, ownership.proofs(paths, []))


# -- as the command


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_it_leaves_with_the_command_s_code(paths: Paths, code: int) -> None:
    assert run(paths, "--agent", "dev1", "--", "sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "INT"])
def test_it_leaves_by_the_command_s_signal(paths: Paths, name: str) -> None:
    done = run(paths, "--agent=dev1", "--", "sh", "-c", f"kill -{name} $$")
    assert done.returncode == -signal.Signals[f"SIG{name}"]


def test_what_is_said_to_it_and_what_it_says_goes_through(paths: Paths) -> None:
    script = 'cat; echo bad >&2; echo $# "$1"'
    done = run(paths, "--agent", "dev1", "sh", "-c", script, "x", "a b", stdin="hello\n")
    assert (done.stdout, done.stderr) == ("hello\n1 a b\n", "bad\n")


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1"])
def test_signals_go_on_to_the_command(
    paths: Paths, started: list[subprocess.Popen[str]], name: str
) -> None:
    script = f"trap 'echo got; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
    process = start(paths, started, "--agent", "dev1", "--", "sh", "-c", script)
    assert line(process) == "ready"
    process.send_signal(signal.Signals[f"SIG{name}"])
    assert line(process) == "got"
    assert process.wait(PATIENCE) == 7


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [("/no/such/thing", 127, "No such file"), ("/etc/passwd", 126, "ermission"), ("/", 126, "")],
)
def test_a_command_that_cannot_be_started(paths: Paths, command: str, code: int, word: str) -> None:
    done = run(paths, "--agent", "dev1", "--", command)
    assert done.returncode == code
    assert word in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "which command"),
        (["--agent"], "needs a value"),
        (["--frob", "x"], "no option --frob"),
        (["--", "true"], "whose is it"),
        (["--agent", "a", "--lease", "forever", "true"], "a lease is"),
        (["--agent", "a", "--lease", "keep:soon", "true"], "a lease is"),
        (["--agent", "a", "--lease", "keep:1.2.3h", "true"], "not a time"),
        (["--agent", "a", "--signal", "KILL", "true"], "a signal is"),
    ],
)
def test_wrong_use_is_said_in_a_sentence(paths: Paths, words: list[str], told: str) -> None:
    done = run(paths, *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "usage:" in done.stderr


def test_help_is_the_same_however_it_is_asked_for(paths: Paths) -> None:
    short = run(paths, "--help")
    assert (short.returncode, short.stderr) == (0, "")
    assert "clawstop run --agent dev1 -- npm run build" in short.stdout
    whole = subprocess.run(
        [sys.executable, "-m", "clawstop", "run", "--help"],
        env={**environ(paths), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert whole.stdout == short.stdout


def test_without_a_set_up_it_says_so(tmp_path: Path) -> None:
    done = run(Paths(tmp_path / "none"), "--agent", "dev1", "--", "true")
    assert done.returncode == 2
    assert "not set up" in done.stderr


def test_on_a_terminal_the_command_is_in_its_foreground_with_us(paths: Paths) -> None:
    """As it would be without us: keys reach it, and job control works."""
    script = "import os; print('fg', os.tcgetpgrp(0) == os.getpgrp(), os.getppid() == os.getpgrp())"
    pid, terminal = pty.fork()
    if not pid:
        words = ["--agent", "dev1", "--", sys.executable, "-c", script]
        os.execve(LAUNCH[0], [*LAUNCH, *words], environ(paths))
    said = b""
    end = time.monotonic() + PATIENCE
    while b"\n" not in said and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 1000)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"fg True True" in said
    assert os.waitstatus_to_exitcode(status) == 0


# -- whose


def test_it_is_whose_it_was_started_for(paths: Paths, started: list[subprocess.Popen[str]]) -> None:
    start(paths, started, "--agent", "dev1", "--", "sh", "-c", "echo ready; sleep 60; :")
    line(started[0])
    found = everything(paths)
    assert {one.owner for one in found} == {Owner(paths.state_id, SESSION, 0)}
    assert {one.proof for one in found} >= {"wrapper", "run"}
    assert found[0].ident.pid != started[0].pid or found[0].wrapper


def test_in_a_run_it_is_that_run_s(paths: Paths, started: list[subprocess.Popen[str]]) -> None:
    mine = Owner(paths.state_id, "agent:研发:telegram:群", 7)
    process = start(
        paths, started, "--", "sh", "-c", "echo $CLAWSTOP_COOKIE", cookie=cookies.format(mine)
    )
    assert cookies.parse(line(process)) == mine


@given(
    st.text(min_size=1, max_size=40),
    st.sampled_from(["run", "agent", "keep:90s", "keep:1.5h"]),
    st.sampled_from(["TERM", "INT"]),
)
def test_its_cookies_are_everybody_s_cookies(session: str, lease: str, name: str) -> None:
    """The launcher writes them by hand: imports are slow."""
    text = wrapping.encode(wrapping.lease_for(lease) + ("" if name == "TERM" else f"!{name}"))
    owner = cookies.parse(f"1:ab:3:{text}:{wrapping.encode(session)}")
    assert owner is not None
    assert owner.session == session == wrapping.decode(wrapping.encode(session))
    read = leases.parse(owner.lease)
    wished = leases.parse(leases.wish(lease, name))
    assert (read.kind, read.signal) == (wished.kind, wished.signal)
    assert read.until == pytest.approx(wished.until, abs=1)


def test_it_is_found_when_it_leaves_everything_behind(
    paths: Paths, started: list[subprocess.Popen[str]]
) -> None:
    """A daemon that throws its environment away, from a command that is over: no cage needed."""
    script = "env -i setsid sh -c '(sh -c \"echo \\$\\$; exec sleep 60\" &)' ; echo over"
    process = start(paths, started, "--agent", "dev1", "--", "sh", "-c", script)
    daemon = next(int(word) for word in (line(process), line(process)) if word != "over")
    assert process.wait(PATIENCE) == 0, "it does not wait for the daemon"
    (one,) = everything(paths)
    assert (one.ident.pid, one.proof) == (daemon, "run")
    reaped = reaping.reap(
        lambda o: o.state == paths.state_id, proofs=ownership.proofs(paths, []), grace=0
    )
    assert reaped.clean
    assert processes.gone(one.ident)


def test_a_lease_of_its_own_is_a_cage_of_its_own(
    paths: Paths, started: list[subprocess.Popen[str]]
) -> None:
    folder = cgroups.folder_for(os.getpid(), paths.state_id)
    assert folder is not None
    cgroups.remember(paths.cages, folder)
    own = cookies.format(Owner(paths.state_id, SESSION, 3))
    (folder / own).mkdir()
    shim = f"echo $$ > '{folder / own}/cgroup.procs'; exec \"$@\""
    words = [*LAUNCH, "--lease", "keep:1h", "--", "sh", "-c", "echo ready; sleep 60; :"]
    process = subprocess.Popen(
        ["sh", "-c", shim, "sh", *words],
        env=environ(paths, own),
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    assert line(process) == "ready"
    try:
        assert list(cgroups.members(folder / own)) == []
        (cage,) = [cage for cage in cgroups.cages([folder]) if any(cgroups.members(cage.path))]
        assert leases.parse(cage.owner.lease).kind == "keep"
    finally:
        proofs = ownership.proofs(paths, [])
        assert reaping.reap(lambda o: o.state == paths.state_id, proofs=proofs, grace=0).clean
        cgroups.prune([folder], lambda _: True)


# -- how it is ended


def test_it_is_sent_the_signal_that_it_asked_for_once(
    paths: Paths, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    told = tmp_path / "told"
    script = f"""
import signal, sys, time
def note(number, frame):
    open({str(told)!r}, "a").write(signal.Signals(number).name + " ")
    time.sleep(0.2)
    sys.exit(0)
signal.signal(signal.SIGINT, note); signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
time.sleep(60)
"""
    process = start(
        paths, started, "--agent", "dev1", "--signal", "INT", "--", sys.executable, "-c", script
    )
    assert line(process) == "ready"
    reaped = reaping.reap(
        lambda o: o.state == paths.state_id,
        proofs=ownership.proofs(paths, []),
        grace=PATIENCE,
        deadline=20,
    )
    assert reaped.clean
    assert told.read_text().split() == ["SIGINT"], "not twice, through the wrapper"
    assert sorted(outcome.signal for outcome in reaped.outcomes) == ["INT", "none"]


@pytest.mark.parametrize(
    ("text", "session", "agent", "now"),
    [
        ("run", True, True, True),
        ("agent", False, True, True),
        ("keep:99999999.5", False, False, True),
        ("keep:0.1", True, True, True),
        ("keep:nonsense", True, True, True),
        ("keep", True, True, True),
        ("whatever", True, True, True),
        ("run!INT", True, True, True),
        ("agent!INT", False, True, True),
        ("keep:1e9!INT", True, True, True),
    ],
)
def test_which_stop_ends_which_lease(text: str, session: bool, agent: bool, now: bool) -> None:
    lease = leases.parse(text)
    assert lease.ends(wide=False, hard=False) is session
    assert lease.ends(wide=True, hard=False) is agent
    assert lease.ends(wide=True, hard=True) is now


def test_a_lease_outlives_the_sleep_of_the_machine_and_no_more() -> None:
    """On the boot clock: it counts while the machine sleeps, and nobody can set it."""
    assert leases.now() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=1)
    assert leases.parse(leases.wish("keep:30m")).left == pytest.approx(1800, abs=1)


# -- mark


def mark(paths: Paths, *words: str, cookie: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clawstop", "mark", *words],
        env={**environ(paths, cookie), "PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_a_process_that_runs_already_is_shown_and_marked_with_all_below(paths: Paths) -> None:
    with zoo.cage() as cage:
        script = "echo $$; for i in 1 2 3; do sleep 60 & echo $!; done; wait"
        pids = cage.spawn(["sh", "-c", script], cookie="", births=4)
        top = cage.children[0].pid
        shown = mark(paths, "--pid", str(top), "--agent", "dev1", "--dry-run")
        assert shown.returncode == 0
        assert len(shown.stdout.splitlines()) == 4
        assert everything(paths) == []
        asked = subprocess.run(
            [sys.executable, "-m", "clawstop", "mark", "--pid", str(top), "--agent", "dev1"],
            env={**environ(paths), "PYTHONPATH": os.pathsep.join(sys.path), "LC_ALL": "C"},
            input="n\n",
            capture_output=True,
            text=True,
        )
        assert asked.returncode == 1
        assert everything(paths) == []
        done = mark(paths, "--pid", str(top), "--agent", "dev1", "--yes", "--json")
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["processes"]) == 4
        assert {one.ident.pid for one in everything(paths)} == set(pids)
        known = ownership.proofs(paths, [])
        assert reaping.reap(lambda o: o.state == paths.state_id, proofs=known, grace=0).clean
        assert cage.extinct()


@pytest.mark.parametrize("whom", ["1", "0", "-5", "99999999", "me", "parent"])
def test_what_nobody_may_mark(paths: Paths, whom: str) -> None:
    pid = {"me": str(os.getpid()), "parent": str(os.getppid())}.get(whom, whom)
    done = mark(paths, f"--pid={pid}", "--agent", "dev1", "--yes")
    assert done.returncode in (2, 5)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("clawstop: ")
    assert everything(paths) == []


def test_an_agent_may_not_mark(paths: Paths) -> None:
    with zoo.cage() as cage:
        (pid,) = zoo.sleeper(cage)
        own = cookies.format(Owner(paths.state_id, SESSION, 1))
        done = mark(paths, "--pid", str(pid), "--agent", "dev1", "--yes", cookie=own)
        assert done.returncode == 5
        assert "for people" in done.stderr


def test_an_agent_may_not_mark_by_throwing_its_cookie_away(paths: Paths) -> None:
    with zoo.cage() as cage:
        (pid,) = zoo.sleeper(cage, cookie="")
        clean = ["env", "-i", f"PYTHONPATH={os.pathsep.join(sys.path)}"]
        command = [*clean, f"OPENCLAW_STATE_DIR={paths.openclaw}", sys.executable, "-m", "clawstop"]
        words = ["mark", "--pid", str(pid), "--agent", "dev1", "--yes"]
        done = run(paths, "--agent", "dev1", "--", *command, *words)
        assert (done.returncode, "for people" in done.stderr) == (5, True)


def test_another_gateway_s_process_is_not_marked(paths: Paths) -> None:
    with zoo.cage() as cage:
        (pid,) = zoo.sleeper(cage)
        done = mark(paths, "--pid", str(pid), "--agent", "dev1", "--yes")
        assert done.returncode == 5
        assert "another OpenClaw state folder" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_s_process_is_not_marked(paths: Paths) -> None:
    with zoo.cage() as cage:
        (pid,) = cage.spawn(
            ["setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", "echo $$; exec sleep 60"],
            cookie="",
        )
        done = mark(paths, "--pid", str(pid), "--agent", "dev1", "--yes")
        assert done.returncode == 5
        assert "another user" in done.stderr


# -- what is easily got wrong


def test_a_nested_lease_outlives_the_outer_wrapper(
    paths: Paths, started: list[subprocess.Popen[str]]
) -> None:
    """Who leaves puts its orphans on record, but not those who are on their own already."""
    inner = " ".join(LAUNCH) + " --agent dev1 --lease keep:1h -- sh -c 'echo ready; exec sleep 60'"
    process = start(paths, started, "--agent", "dev1", "--", "sh", "-c", f"{inner} & sleep 1")
    assert line(process) == "ready"
    assert process.wait(PATIENCE) == 0
    kinds = {leases.parse(one.owner.lease).kind for one in everything(paths)}
    assert kinds == {"keep"}


def test_another_gateway_s_process_is_not_put_on_record(
    paths: Paths, started: list[subprocess.Popen[str]]
) -> None:
    other = cookies.format(Owner("abcd", SESSION, 1))
    script = f"CLAWSTOP_COOKIE={other} sh -c 'echo ready; exec sleep 3' & sleep 0.5"
    process = start(paths, started, "--agent", "dev1", "--", "sh", "-c", script)
    assert line(process) == "ready"
    assert process.wait(PATIENCE) == 0
    assert everything(paths) == []


def test_a_daemon_that_is_started_on_the_way_out_is_found(
    paths: Paths, started: list[subprocess.Popen[str]]
) -> None:
    script = (
        "trap 'env -i setsid sh -c \"(sleep 60 &)\"; exit 0' TERM; echo ready; "
        "while :; do sleep 0.05; done"
    )
    process = start(paths, started, "--agent", "dev1", "--", "sh", "-c", script)
    assert line(process) == "ready"
    reaped = reaping.reap(
        lambda o: o.state == paths.state_id,
        proofs=lambda: ownership.proofs(paths, []),
        grace=3.0,
        deadline=15,
    )
    assert reaped.clean
    assert [o for o in reaped.outcomes if "sleep 60" in o.command and o.proof == "run"]
    assert everything(paths) == []


def test_the_command_s_signals_are_as_without_us(paths: Paths) -> None:
    """Python ignores SIGPIPE; and a caller may ignore SIGCHLD."""
    done = run(paths, "--agent", "dev1", "--", "sh", "-c", "grep SigIgn /proc/$$/status")
    ignored = int(done.stdout.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM):
        assert not ignored & 1 << (number - 1)
    script = f"trap '' CHLD; {' '.join(LAUNCH)} --agent dev1 -- sh -c 'exit 7'"
    asked = subprocess.run(["bash", "-c", script], env=environ(paths), capture_output=True)
    assert (asked.returncode, asked.stderr) == (7, b"")


def test_a_script_without_a_first_line_is_for_sh(paths: Paths, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo hello $1\n")
    script.chmod(0o755)
    assert run(paths, "--agent", "dev1", "--", str(script), "you").stdout == "hello you\n"


@pytest.mark.parametrize("cookie", ["1:ab:1:run:%ZZ", "1:x:y:z:w", "1:::::", "nonsense"])
def test_a_cookie_that_makes_no_sense_is_none(paths: Paths, cookie: str) -> None:
    done = run(paths, "--", "true", cookie=cookie)
    assert done.returncode == 2
    assert "whose is it" in done.stderr
