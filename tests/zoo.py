"""A zoo of real processes that misbehave, each carrying the cookie of its cage.

A `Cage` is a random state id. Its keeper knows the animals without the code under test: each holds
the end of a pipe, its leash, so that end-of-file proves that the animal and all it ever forked are
dead; and a mark in its environment says whom to end, through pidfds, when the cage is closed. Every
animal also dies by itself within 60 seconds.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clawstop import cookies
from clawstop.cookies import Owner

BIRTH = 10.0  # an interpreter starts in 20 ms; a machine busy with other tests takes its time
LIFE = 60  # seconds until any animal dies by itself
BOMB_LIFE = 20  # and a forking one
BOMB_SIZE = 200  # processes that one bomb starts in all

# Each animal writes a line with its pid to fd 1 when it is in place.
PRELUDE = f"""
import os, signal, sys, time
signal.alarm({LIFE})
def here(): os.write(1, b"%d\\n" % os.getpid())
def rest():
    while True: time.sleep({LIFE})
def born(life={LIFE}):
    # alarms are not inherited
    pid = os.fork()
    if not pid: signal.alarm(life)
    return pid
"""


class Cage:
    """Animals of one state id, and the ground truth about them."""

    def __init__(self) -> None:
        self.state = secrets.token_hex(16)
        self.children: list[subprocess.Popen[bytes]] = []
        self.leashes: list[int] = []

    def owner(self, session: str = "agent:dev1:main", generation: int = 1) -> Owner:
        return Owner(self.state, session, generation)

    def mine(self, owner: Owner) -> bool:
        """The match for all animals of this cage."""
        return owner.state == self.state

    def spawn(
        self,
        command: list[str | bytes],
        *,
        cookie: str | None = None,
        births: int = 1,
        env: dict[str, str] | None = None,
        **options: object,
    ) -> list[int]:
        """Start an animal and return the pids it announced."""
        text = cookies.format(self.owner()) if cookie is None else cookie
        environ = {**os.environ, **(env or {}), cookies.VARIABLE: text, "CAGE": self.state}
        read, write = os.pipe()
        leash, collar = os.pipe()
        self.leashes.append(leash)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=write,
                env=environ,
                pass_fds=[collar],
                **options,
            )  # type: ignore[call-overload]
            self.children.append(child)
        finally:
            os.close(write)
            os.close(collar)
        try:
            return _announced(read, births)
        finally:
            os.close(read)

    def python(self, body: str, births: int = 1, **options: object) -> list[int]:
        command: list[str | bytes] = [sys.executable, "-I", "-S", "-c", PRELUDE + body]
        return self.spawn(command, births=births, **options)  # type: ignore[arg-type]

    def extinct(self) -> bool:
        """Say whether every animal that was ever started or forked here is dead."""
        poller = select.poll()
        for leash in self.leashes:
            poller.register(leash, 0)
        return len(poller.poll(0)) == len(self.leashes)

    def living(self) -> set[int]:
        """The pids of all living processes that were born in this cage."""
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self.has(pid)}

    def has(self, pid: int) -> bool:
        mark = f"CAGE={self.state}".encode()
        with suppress(OSError):
            for environ in Path(f"/proc/{pid}/task").glob("*/environ"):
                with suppress(OSError):
                    if mark in environ.read_bytes().split(b"\0"):
                        return True
        return False

    def close(self) -> None:
        """End what is left. A pidfd is opened first and the mark read after: no stranger is hit."""
        end = time.monotonic() + BOMB_LIFE
        while ((left := self.living()) or not self.extinct()) and time.monotonic() < end:
            for pid in left:
                with suppress(OSError):
                    fd = os.pidfd_open(pid)
                    try:
                        if self.has(pid):
                            signal.pidfd_send_signal(fd, signal.SIGKILL)
                            select.select([fd], [], [], 1)
                    finally:
                        os.close(fd)
        for child in self.children:
            child.wait(BIRTH)
        for leash in self.leashes:
            os.close(leash)


@contextmanager
def cage() -> Iterator[Cage]:
    one = Cage()
    try:
        yield one
    finally:
        one.close()


def _announced(fd: int, births: int) -> list[int]:
    end = time.monotonic() + BIRTH
    data = b""
    while data.count(b"\n") < births:
        if not select.select([fd], [], [], max(0, end - time.monotonic()))[0]:
            raise TimeoutError(f"only {data!r} of {births} births")
        piece = os.read(fd, 4096)
        if not piece:
            raise RuntimeError(f"an animal died at birth after {data!r}")
        data += piece
    return [int(line) for line in data.split()]


# -- the animals ---------------------------------------------------------------------------------


def sleeper(cage: Cage, **options: object) -> list[int]:
    script = f"echo $$; exec sleep {LIFE}"
    pids = cage.spawn(["sh", "-c", script], **options)  # type: ignore[arg-type]
    # inside exec nobody can see its mark
    until(lambda: Path(f"/proc/{pids[0]}/cmdline").read_bytes().startswith(b"sleep"))
    until(lambda: cage.has(pids[0]))
    return pids


def is_pending(pid: int, number: int) -> bool:
    """Whether somebody has sent it this signal, which it blocks."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = next(line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)


def deaf(cage: Cage) -> list[int]:
    """Ignores every signal that can be ignored."""
    return cage.python(
        """
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM}:
    signal.signal(number, signal.SIG_IGN)
here(); rest()
"""
    )


def deaf_shell(cage: Cage) -> list[int]:
    script = (
        f"trap '' TERM HUP INT; echo $$; i=0; while [ $i -lt {LIFE} ]; do sleep 1; i=$((i+1)); done"
    )
    return cage.spawn(["sh", "-c", script])


def own_session(cage: Cage) -> list[int]:
    return cage.python("os.setsid(); here(); rest()")


def own_group(cage: Cage) -> list[int]:
    return cage.python("os.setpgid(0, 0); here(); rest()")


def daemon(cage: Cage) -> list[int]:
    """Double fork: an orphan of init, in a session of its own, in another folder."""
    return cage.python(
        """
if born(): os._exit(0)
os.setsid()
middle = os.getpid()
if born(): os._exit(0)
while os.getppid() == middle: time.sleep(0.001)
os.chdir("/"); here(); os.close(0); os.close(1); os.close(2); rest()
"""
    )


def nohup(cage: Cage) -> list[int]:
    return cage.spawn(["nohup", "sh", "-c", f"echo $$; sleep {LIFE}"], stderr=subprocess.DEVNULL)


def stopped(cage: Cage) -> list[int]:
    """Stopped, so that it sees no TERM until it is continued."""
    pids = cage.python("here(); os.kill(os.getpid(), signal.SIGSTOP); rest()")
    until(lambda: state(pids[0]) == "T")
    return pids


def on_a_pty(cage: Cage) -> list[int]:
    return cage.python(
        """
import pty
pid, master = pty.fork()
if not pid:
    signal.alarm(60); signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.write(1, b"x"); rest()
os.read(master, 1)
os.write(1, b"%d\\n" % pid); here(); rest()
""",
        births=2,
    )


def bomb(cage: Cage) -> list[int]:
    """Forks as fast as it can, deaf to TERM. A pipe of tokens bounds it over all generations."""
    return cage.python(
        f"""
end = time.monotonic() + {BOMB_LIFE}
signal.alarm({BOMB_LIFE}); signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
tokens, more = os.pipe(); os.set_blocking(tokens, False); os.write(more, b"x" * ({BOMB_SIZE} - 1))
here()
while True:
    try: os.read(tokens, 1)
    except BlockingIOError: rest()
    born(max(1, int(end - time.monotonic())))
"""
    )


def hopper(cage: Cage) -> list[int]:
    """Always one process: each forks the next and dies at once, then the last one rests."""
    return cage.python(
        f"""
end = time.monotonic() + {BOMB_LIFE}
here()
for hop in range({BOMB_SIZE} - 1):
    if born(max(1, int(end - time.monotonic()))): os._exit(0)
rest()
"""
    )


def chain(cage: Cage) -> list[int]:
    """Fifty processes, each the child of the one before."""
    return cage.python(
        """
for depth in range(49):
    here()
    if born(): rest()
here(); rest()
""",
        births=50,
    )


def zombie_holder(cage: Cage) -> list[int]:
    """A parent that never waits for its dead child; only the parent can still die."""
    return cage.python(
        """
pid = born()
if not pid: os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
here(); rest()
"""
    )


def headless(cage: Cage) -> list[int]:
    """Its main thread is gone, so it looks like a zombie, while another thread works on."""
    pids = cage.python(
        """
import ctypes, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.Thread(target=rest).start()
here()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
    )
    until(lambda: state(pids[0]) == "Z")
    return pids


ANIMALS: tuple[Callable[[Cage], list[int]], ...] = (
    sleeper,
    deaf,
    deaf_shell,
    own_session,
    own_group,
    daemon,
    nohup,
    stopped,
    on_a_pty,
    bomb,
    hopper,
    chain,
    zombie_holder,
)


def until(condition: Callable[[], bool]) -> None:
    """Wait, within bounds, for what no descriptor announces."""
    end = time.monotonic() + BIRTH
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("an animal is not in place")
        time.sleep(0.001)


def state(pid: int) -> str:
    """The letter that proc(5) gives for what a process does."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][0]
