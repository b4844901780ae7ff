"""Random lives of real processes against a model: whoever is signalled was owned, whoever was owned
is dead, and nobody else was touched.

A program: `unshare --pid --fork --mount-proc python histories.py COUNT`. In a namespace of its own
a look costs nothing, a pid that has become free can be given to the next process, and nothing
outside can be hit by a mistake. Every signal is noted on its way out.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clawstop import cgroups, cookies, leases, processes
from clawstop.cookies import Owner
from clawstop.ownership import Proofs
from clawstop.processes import Ident
from clawstop.reaping import reap
from clawstop.records import Record
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

STATE, OTHER = "aa11", "bb22"
SESSION = "agent:dev1:main"
MINE = Owner(STATE, SESSION, 1)
KEPT = Owner(STATE, SESSION, 1, "keep:99999999")
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
TICK = 0.011  # start times count in 10 ms: an heir within the same one could not be told apart
SLEEP = "/bin/sleep"

KINDS = {
    "own": MINE,
    "own later": Owner(STATE, SESSION, 2),  # after the stop that is tested
    "another session's": Owner(STATE, "agent:dev2:main", 1),
    "another gateway's": Owner(OTHER, SESSION, 1),
    "kept": KEPT,
    "anonymous": None,
}
STEPS = [*KINDS, "scrubbed child", "recorded", "caged", "leave", "recycle", "halt", "reap"]


@dataclass
class Model:
    """Who is alive, and who of them a stop must end."""

    condemned: set[int] = field(default_factory=set)
    strangers: set[int] = field(default_factory=set)
    free: list[int] = field(default_factory=list)  # pids of the dead
    records: dict[Ident, Record] = field(default_factory=dict)
    signalled: list[tuple[int, int]] = field(default_factory=list)


def spawn(owner: Owner | None) -> int:
    environ = {cookies.VARIABLE: cookies.format(owner)} if owner else {}
    pid = os.posix_spawn(SLEEP, ["sleep", "100"], environ)
    settled(pid)
    return pid


def settled(pid: int) -> None:
    """Past its exec: before that it still looks like us, who carry no cookie."""
    end = time.monotonic() + 5
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
        assert time.monotonic() < end


def family() -> tuple[int, int]:
    """An owned shell and its child, which has thrown its environment away."""
    read, write = os.pipe()
    script = f"env -i {SLEEP} 100 & echo $!; exec {SLEEP} 100"
    parent = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", script],
        {cookies.VARIABLE: cookies.format(MINE), "PATH": "/usr/bin:/bin"},
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )
    os.close(write)
    child = int(os.read(read, 20))
    os.close(read)
    end = time.monotonic() + 5
    while not Path(f"/proc/{child}/cmdline").read_bytes().startswith(SLEEP.encode()):
        assert time.monotonic() < end
    return parent, child


def bury() -> None:
    """We are the init of this namespace: everybody's orphans are ours."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def gone(pid: int) -> bool:
    """Dead; a zombie of another parent is too, but keeps its pid."""
    bury()
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 5
    while not gone(pid):
        assert time.monotonic() < end


class Watched:
    """Every signal that leaves this process, with the pid that it goes to."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __enter__(self) -> None:
        self.kill, self.send = os.kill, signal.pidfd_send_signal

        def noted_kill(pid: int, number: int) -> None:
            self.model.signalled.append((pid, number))
            self.kill(pid, number)

        def noted_send(fd: int, number: int, *rest: Any) -> None:
            text = Path(f"/proc/self/fdinfo/{fd}").read_text()
            pid = next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pid:")
            self.model.signalled.append((pid, number))
            self.send(fd, number, *rest)

        os.kill, signal.pidfd_send_signal = noted_kill, noted_send

    def __exit__(self, *_: object) -> None:
        os.kill, signal.pidfd_send_signal = self.kill, self.send


def play(steps: list[str], seed: int, folder: Path) -> None:
    choose = random.Random(seed)
    model = Model()
    cage = folder / cookies.format(MINE)
    try:
        for step in [*steps, "reap"]:
            take(step, model, choose, cage)
            for pid in model.strangers:
                assert not gone(pid), f"a stranger died at {step}"
    finally:
        for pid in model.condemned | model.strangers:
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)
        bury()


def take(step: str, model: Model, choose: random.Random, cage: Path) -> None:
    everybody = sorted(model.condemned | model.strangers)
    if step in KINDS:
        owner = KINDS[step]
        (model.condemned if owner == MINE else model.strangers).add(spawn(owner))
    elif step == "scrubbed child":
        model.condemned |= set(family())
    elif step == "recorded":
        pid = spawn(None)
        ident = processes.ident_of(pid)
        assert ident
        model.records[ident] = Record(MINE, choose.choice(["run", "marked", "seen"]))
        model.condemned.add(pid)
    elif step == "caged":
        cage.mkdir(exist_ok=True)
        pid = spawn(None)
        assert cgroups.join(cage, pid)
        model.condemned.add(pid)
    elif step == "leave" and everybody:
        pid = choose.choice(everybody)
        family_of = {child for child in processes.children(pid) if not gone(child)}
        kill(pid)
        if not Path(f"/proc/{pid}").exists():
            model.free.append(pid)
        model.condemned.discard(pid)
        model.strangers.discard(pid)
        # Its child has no cookie and no parent now: nothing proves whose it is.
        model.strangers |= family_of
        model.condemned -= family_of
    elif step == "recycle" and model.free:
        time.sleep(TICK)
        LAST_PID.write_text(str(model.free.pop() - 1))
        model.strangers.add(spawn(None))
    elif step == "halt" and everybody:
        pid = choose.choice(everybody)
        os.kill(pid, signal.SIGSTOP)
    elif step == "reap":
        stop(model, choose, cage)


def stop(model: Model, choose: random.Random, cage: Path) -> None:
    def ended(owner: Owner) -> bool:
        mine = owner.state == STATE and owner.session == SESSION and owner.generation <= 1
        return mine and leases.parse(owner.lease).ends(wide=True, hard=False)

    known = Proofs(records=dict(model.records), folders=[cage.parent])
    with Watched(model):
        reaped = reap(ended, proofs=known, grace=choose.choice([0.0, 0.0, 0.05]))
    assert reaped.clean, reaped
    hit = {pid for pid, _ in model.signalled}
    assert hit <= model.condemned, f"strangers were signalled: {hit - model.condemned}"
    assert {outcome.ident.pid for outcome in reaped.outcomes} == model.condemned
    for pid in model.condemned:
        assert gone(pid), f"{pid} is alive"
    model.free += [pid for pid in model.condemned if not Path(f"/proc/{pid}").exists()]
    model.condemned.clear()
    model.signalled.clear()


def main(count: int) -> None:
    folder = cgroups.folder_for(os.getpid(), STATE)
    assert folder is not None

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=10), st.integers(0, 2**32))
    def histories(steps: list[str], seed: int) -> None:
        assert folder is not None
        play(steps, seed, folder)

    try:
        histories()
    finally:
        cgroups.prune([folder], lambda _: True)
    print(f"{count} histories")


if __name__ == "__main__":
    main(int(sys.argv[1]))
