"""Benchmarks of processes, on Linux: finding them, ending them, starting them.

The herd are `sleep`s that this process started and has not waited for, so that no pid of theirs can
become somebody else's before they are buried here.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from . import cookies, ownership, reaping
from .bench import Action, Row, medians, timed
from .cookies import Owner
from .paths import Paths

assert sys.platform == "linux"

LIFE = 120  # seconds: what a crash leaves behind dies by itself
SLEEP = ["sleep", str(LIFE)]
GRACE = 0.5  # seconds
READ = 16 * 1024
PER_BATCH = 125  # processes: 5,000 with 40 batches
OWNED = 10  # one of so many is owned

DEAF = "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & while :; do sleep 1; done"


class Herd:
    """Processes of one owner; `state` is random, so that nobody else's are found."""

    def __init__(self) -> None:
        self.owner = Owner(secrets.token_hex(8), "agent:bench:main", 1)
        self.pids: list[int] = []

    def mine(self, owner: Owner) -> bool:
        return owner.state == self.owner.state

    def spawn(self, count: int, command: list[str] | None = None, *, owned: bool = True) -> None:
        words = command or SLEEP
        environ = {"PATH": os.defpath}
        if owned:
            environ[cookies.VARIABLE] = cookies.format(self.owner)
        for _ in range(count):
            self.pids.append(os.posix_spawnp(words[0], words, environ))

    def bury(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)  # ours, and not waited for: nobody else has this pid
        for pid in self.pids:
            os.waitpid(pid, 0)
        self.pids.clear()


@contextmanager
def herd() -> Iterator[Herd]:
    one = Herd()
    try:
        yield one
    finally:
        one.bury()


def find(folder: Path, batches: int) -> Row:
    """The owned among 5,000 processes."""
    count = PER_BATCH * batches
    with herd() as strangers, herd() as owned:
        strangers.spawn(count - count // OWNED, owned=False)
        owned.spawn(count // OWNED)
        time.sleep(0.2)  # the last ones are past their exec

        def look() -> None:
            assert len(ownership.find(owned.mine)) == count // OWNED

        value, reference = medians(look, _read_all, batches=max(1, batches // 4), size=1)
    against = "a bare read of every /proc/*/environ"
    return Row("find", value * 1000, "ms", reference * 1000, against, bar=1.5)


def _read_all() -> None:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                fd = os.open(f"/proc/{name}/environ", os.O_RDONLY)
                try:
                    os.read(fd, READ)
                finally:
                    os.close(fd)


def kill(folder: Path, batches: int) -> Row:
    """1,000 owned processes killed and verified dead."""
    count = PER_BATCH * batches // 5

    def by_us(one: Herd) -> None:
        assert reaping.reap(one.mine, grace=0).clean

    def bare(one: Herd) -> None:
        for found in ownership.find(one.mine):  # it has to know them too
            fd = os.pidfd_open(found.ident.pid)
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            fds.append(fd)
        poller = select.poll()
        for fd in fds:
            poller.register(fd, select.POLLIN)
        left = len(fds)
        while left:
            for fd, _ in poller.poll():
                poller.unregister(fd)
                os.close(fd)
                left -= 1
        fds.clear()

    fds: list[int] = []
    value, reference = _killings(by_us, bare, count, max(1, batches // 8))
    against = "the same found by one look and killed by a bare pidfd loop"
    return Row("kill", value * 1000, "ms", reference * 1000, against, bar=1.5)


def _killings(
    thing: Callable[[Herd], None], reference: Callable[[Herd], None], count: int, turns: int
) -> tuple[float, float]:
    taken: dict[Callable[[Herd], None], list[float]] = {thing: [], reference: []}
    for _ in range(turns):
        for action in (thing, reference):
            with herd() as one:
                one.spawn(count)
                time.sleep(0.1)
                taken[action].append(timed(partial(action, one)))
    return statistics.median(taken[thing]), statistics.median(taken[reference])


def deaf(folder: Path, batches: int) -> Row:
    """A tree that ignores TERM, dead and verified."""
    took = []
    for _ in range(max(1, batches // 8)):
        with herd() as one:
            one.spawn(1, ["sh", "-c", DEAF])
            time.sleep(0.2)
            took.append(timed(partial(reaping.reap, one.mine, grace=GRACE)))
    value = statistics.median(took)
    return Row("deaf", value * 1000, "ms", GRACE * 1000, "its grace, which it uses up", bar=1.2)


def wrapper(folder: Path, batches: int) -> Row:
    """What `clawstop run` adds to a command, in the form that agents are told to use."""
    paths = Paths(folder)
    paths.prepare()
    assert paths.state_id
    script = str(Path(__file__).with_name("launch.py"))
    launcher = [sys.executable, "-I", "-S", script, "--agent", "bench", "--", "true"]
    environ = {**os.environ, "OPENCLAW_STATE_DIR": str(folder)}

    def start(command: list[str]) -> Action:
        return lambda: subprocess.run(command, env=environ, check=True)

    value, reference = medians(start(launcher), start(["true"]), batches=batches, size=1)
    added = (value - reference) * 1000
    return Row("wrapper", added, "ms", 40.0, "what an agent may be made to wait", bar=1.0)


def memory(folder: Path, batches: int) -> Row:
    """Ours, after 10,000 kills, in pages that stay."""
    import psutil

    me, sizes = psutil.Process(), []
    for _ in range(batches // 2 or 1):
        with herd() as one:
            one.spawn(PER_BATCH * 4)
            time.sleep(0.05)
            assert reaping.reap(one.mine, grace=0).clean
        sizes.append(me.memory_info().rss / 2**20)
    early, late = sizes[len(sizes) // 10], sizes[-1]
    return Row("memory", late, "MB", early, "the same after a tenth of the kills", bar=1.1)


PROCESSES: tuple[Callable[[Path, int], Row], ...] = (find, kill, deaf, wrapper, memory)
