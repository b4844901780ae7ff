"""`clawstop bench zoo`: what is left alive of processes that hide, and how long it took, beside the
two recipes that everybody uses. Linux, with a cgroup that may be written.

Every animal has a number of its own on its command line. By that the survivors are counted, without
the code under test, and ended afterwards: through a pidfd, after the number was read again.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from . import cgroups, cookies, reaping
from .cookies import Owner
from .errors import UsageError
from .ownership import Proofs

assert sys.platform == "linux"

GRACE = 0.5  # seconds, for all three
SETTLE = 1.0  # seconds until an animal is in place
LIFE = 60  # seconds until any of them dies by itself
SESSION = "agent:zoo:main"

BOMB = """
import os, signal, sys, time
signal.alarm({life}); signal.signal(signal.SIGCHLD, signal.SIG_IGN)
tokens, more = os.pipe(); os.set_blocking(tokens, False); os.write(more, b"x" * 1999)
while True:
    try: os.read(tokens, 1)
    except BlockingIOError: time.sleep({life})
    else:
        if not os.fork(): signal.alarm({life})
"""
CHAIN = """
import os, signal, time
for _ in range(199):
    signal.alarm({life})
    if os.fork(): time.sleep({life})
signal.alarm({life}); time.sleep({life})
"""

# How each hides: {sleep} is a sleep with the animal's number, {python} an interpreter, {number} it.
KINDS = {
    "normal": "exec {sleep}",
    "ignores TERM": "trap '' TERM; while :; do {sleep}; done",
    "own session": "setsid {sleep} & exec {sleep}",
    "double fork": "(setsid sh -c '{sleep} & :' &); exec {sleep}",
    "double fork, clean environment": "(env -i setsid sh -c '({sleep} &)' &); exec {sleep}",
    "fork bomb of 2,000": 'exec {python} "$BOMB" {number}',
    "chain of 200": 'exec {python} "$CHAIN" {number}',
}


@dataclass(frozen=True)
class Result:
    left: int
    ms: float

    def __str__(self) -> str:
        return f"{self.left} left, {self.ms:.0f} ms"


class Animal:
    """One command, started as the gateway starts it: a shell in a session and a cage of its own."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.number = f"{secrets.randbelow(10**9):09d}"
        self.owner = Owner(secrets.token_hex(8), SESSION, 1)
        self.folder = folder
        words = {
            "sleep": f"sleep {LIFE}.{self.number}",
            "python": f"{sys.executable} -I -S -c",
            "number": self.number,
        }
        cage = folder / cookies.format(self.owner)
        cage.mkdir()
        script = f"echo 0 > '{cage}/cgroup.procs'; " + KINDS[kind].format(**words)
        self.root = subprocess.Popen(
            ["sh", "-c", script],
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "BOMB": BOMB.format(life=LIFE),
                "CHAIN": CHAIN.format(life=LIFE),
                cookies.VARIABLE: cookies.format(self.owner),
            },
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )

    def living(self) -> list[int]:
        return [pid for pid in psutil.pids() if self._is(pid)]

    def _is(self, pid: int) -> bool:
        """A zombie has no command line."""
        with suppress(OSError):
            return self.number.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def bury(self) -> None:
        """End what is left of it."""
        end = time.monotonic() + LIFE
        while (left := self.living()) and time.monotonic() < end:
            for pid in left:
                with suppress(OSError):
                    fd = os.pidfd_open(pid)
                    try:
                        if self._is(pid):
                            signal.pidfd_send_signal(fd, signal.SIGKILL)
                    finally:
                        os.close(fd)
        self.root.wait()
        cgroups.prune([self.folder], lambda _: True)


def by_group(animal: Animal) -> None:
    """TERM to the group, a grace, KILL to the group."""
    with suppress(ProcessLookupError):
        os.killpg(animal.root.pid, signal.SIGTERM)  # ours, and not waited for
        with suppress(subprocess.TimeoutExpired):
            animal.root.wait(GRACE)
        os.killpg(animal.root.pid, signal.SIGKILL)


def by_tree(animal: Animal) -> None:
    """psutil's own recipe: the children at any depth, terminated, waited for, killed."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(animal.root.pid)
        family = [*root.children(recursive=True), root]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.terminate()
        _, alive = psutil.wait_procs(family, GRACE)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(alive, GRACE)


def by_clawstop(animal: Animal) -> None:
    proofs = Proofs(folders=[animal.folder])
    reaping.reap(lambda owner: owner == animal.owner, proofs=proofs, grace=GRACE)


METHODS: dict[str, Callable[[Animal], None]] = {
    "killpg": by_group,
    "psutil children": by_tree,
    "clawstop": by_clawstop,
}


@contextmanager
def _animal(kind: str) -> Iterator[Animal]:
    folder = cgroups.folder_for(os.getpid(), secrets.token_hex(8))
    if folder is None:
        raise UsageError("the zoo needs a cgroup (v2) that may be written: run it as root")
    animal = Animal(kind, folder)
    try:
        time.sleep(SETTLE)
        yield animal
    finally:
        animal.bury()


def run(kinds: Sequence[str] = tuple(KINDS)) -> Iterator[tuple[str, dict[str, Result]]]:
    for kind in kinds:
        results = {}
        for name, method in METHODS.items():
            with _animal(kind) as animal:
                begun = time.perf_counter()
                method(animal)
                took = (time.perf_counter() - begun) * 1000
                time.sleep(0.1)
                results[name] = Result(len(animal.living()), took)
        yield kind, results


def markdown(rows: Sequence[tuple[str, dict[str, Result]]]) -> str:
    lines = [f"| | {' | '.join(METHODS)} |", f"|---|{'---|' * len(METHODS)}"]
    lines += [f"| {kind} | {' | '.join(str(r[m]) for m in METHODS)} |" for kind, r in rows]
    return "\n".join(lines)
