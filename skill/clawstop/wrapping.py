"""`clawstop run`: starts a command as an agent's own, so that a stop finds it wherever it goes.

    python3 -I -S launch.py [--agent ID] [--session KEY] [--lease run|agent|keep:8h]
                            [--signal INT] -- COMMAND ...

The command is on record before it starts, in the cgroup of its lease where there are any, and in a
session of its own; on a terminal it stays in our group instead, so that keys and job control work
as without us. We stay above it: signals go on to it, orphans below it become our children, and we
leave as it does. No engine is needed. Standard library, and little of that: every long command of
an agent waits for this. `launch.py` starts it outside the package, whose imports are slow.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
else:
    import _signal as signal  # what `signal` is made of, without its names, which take 10 ms

USAGE = (
    "usage: clawstop run [--agent ID] [--session KEY] [--lease run|agent|keep:8h] "
    "[--signal INT] -- COMMAND ..."
)
HELP = f"""{USAGE}

Start COMMAND as an agent's own, so that a stop finds it wherever it goes.

  clawstop run --agent dev1 -- npm run build
  clawstop run --agent dev1 --lease keep:8h -- python3 -m http.server

--agent ID, --session KEY   whose it is [default: whose run started this]
--lease run                 it dies with the stop of that run (default)
--lease agent               only with a stop of the whole agent
--lease keep:8h             it lives so long (90s, 30m, 8h, 2d), unless `stop everything --now`
--signal INT                it is sent SIGINT instead of SIGTERM

Leaves as the command leaves. 126, 127: the command cannot be started, is not there."""
NOT_FOUND, NOT_RUNNABLE, WRONG_USE = 127, 126, 2
PASSED_ON = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "CONT", "WINCH")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PLAIN = "_.-~"  # what a cookie leaves as it is, beside letters and digits
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class Wrong(Exception):
    """What was typed makes no sense."""


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP)
        return 0
    try:
        options, command = parse(arguments)
        cookie = cookie_for(options)
    except Wrong as error:
        print(f"clawstop run: {error}\n{USAGE}", file=sys.stderr)
        return WRONG_USE
    environ = {**os.environ, "CLAWSTOP_COOKIE": cookie}
    if sys.platform != "win32":
        return Wrapper(cookie).run(command, environ)
    import subprocess

    return subprocess.call(command, env=environ)


# -- what was typed


def parse(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    options = {"--agent": "", "--session": "", "--lease": "run", "--signal": "TERM"}
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        name, equals, value = rest.pop(0).partition("=")
        if name == "--":
            break
        if name not in options:
            raise Wrong(f"there is no option {name}")
        if not equals and not rest:
            raise Wrong(f"{name} needs a value")
        options[name] = value if equals else rest.pop(0)
    if not rest:
        raise Wrong("which command?")
    if options["--signal"] not in ("TERM", "INT"):
        raise Wrong("a signal is TERM or INT")
    return options, rest


def cookie_for(options: dict[str, str]) -> str:
    """Whose it is: as named, or whose we are. What belongs to no run belongs to any stop."""
    own = state_id()
    generation, session = inherited()
    if options["--session"]:
        session, generation = options["--session"], "0"
    elif options["--agent"] and not session.startswith(f"agent:{options['--agent']}:"):
        session, generation = f"agent:{options['--agent']}:main", "0"
    if not session:
        raise Wrong("whose is it? Name an --agent or a --session")
    lease = lease_for(options["--lease"])
    if options["--signal"] != "TERM":
        lease += f"!{options['--signal']}"
    return f"1:{own}:{generation}:{encode(lease)}:{encode(session)}"


def inherited() -> tuple[str, str]:
    """Generation and session of the run of ours that started us; empty when it was none."""
    parts = os.environ.get("CLAWSTOP_COOKIE", "").split(":")
    if len(parts) != 5 or parts[0] != "1" or parts[1] != state_id() or not parts[2].isdigit():
        return "0", ""
    try:
        return parts[2], decode(parts[4])
    except ValueError:
        return "0", ""


def lease_for(words: str) -> str:
    if words in ("run", "agent"):
        return words
    number, unit = words[5:-1], words[-1:]
    if not words.startswith("keep:") or unit not in UNITS or not number.isascii():
        raise Wrong("a lease is run, agent, or keep: and a time (90s, 30m, 8h, 2d)")
    if not number.replace(".", "", 1).isdigit() or len(number) > 9:
        raise Wrong(f"not a time: {words[5:]}")
    return f"keep:{now() + float(number) * UNITS[unit]:.1f}"


def now() -> float:
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def encode(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    kept = (chr(byte) if byte < 128 else "" for byte in raw)
    return "".join(
        char if char and (char.isalnum() or char in PLAIN) else f"%{byte:02X}"
        for char, byte in zip(kept, raw, strict=True)
    )


def decode(text: str) -> str:
    first, *rest = text.split("%")
    raw = first.encode()
    for part in rest:
        raw += bytes.fromhex(part[:2]) + part[2:].encode()
    return raw.decode("utf-8", "surrogatepass")


# -- where things are


def root() -> str:
    home = os.environ.get("OPENCLAW_HOME", "").strip()  # as paths.py has it
    home = "~" if home in ("", "undefined", "null") else home
    chosen = os.environ.get("OPENCLAW_STATE_DIR") or os.path.join(home, ".openclaw")
    return os.path.join(os.path.abspath(os.path.expanduser(chosen)), "clawstop")


def state_id() -> str:
    try:
        with open(os.path.join(root(), "state-id"), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        raise Wrong(f"clawstop is not set up in {os.path.dirname(root())}") from None


# -- the process

if sys.platform != "win32":

    class Wrapper:
        def __init__(self, cookie: str) -> None:
            self.cookie = cookie
            self.child = 0

        def run(self, command: list[str], environ: dict[str, str]) -> int:
            become_subreaper()
            self.join_cage()
            self.record(os.getpid(), "wrapper")
            passed = _signals()
            # On a terminal the command stays in our group: the person's keys reach it without us.
            terminal = os.isatty(0)
            if terminal:
                passed = [number for number in passed if number not in (_SIGINT, _SIGQUIT)]
            # Blocked, and taken one by one in `wait`: a handler could come just before we sleep.
            watched = [*passed, signal.SIGCHLD]
            childless = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
            go, start = os.pipe()
            failed, failure = os.pipe()
            self.child = os.fork()
            if not self.child:
                os.close(start)
                signal.signal(signal.SIGCHLD, childless)
                self.become(command, environ, go, failure, terminal, mask)
            os.close(go)
            os.close(failure)
            self.record(self.child, "run")
            for number in (_SIGINT, _SIGQUIT) if terminal else ():
                signal.signal(number, signal.SIG_IGN)
            os.write(start, b"x")
            os.close(start)
            problem = os.read(failed, 2000)
            status = self.wait(watched)
            self.record_orphans()
            if problem:
                code, _, told = problem.partition(b" ")
                os.write(2, b"clawstop run: " + told + b"\n")
                return int(code)
            return leave_as(status)

        def become(
            self,
            command: list[str],
            environ: dict[str, str],
            go: int,
            failure: int,
            terminal: bool,
            mask: set[int | signal.Signals],
        ) -> None:
            """In the child: wait until it is on record, then be the command."""
            try:
                if not terminal:
                    os.setsid()
                if not os.read(go, 1):  # our parent died first
                    os._exit(1)
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                execute(command, environ)
            except OSError as error:
                code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
                told = os.fsencode(f"{code} {command[0]}: {error.strerror}")
                os.write(failure, told[:1000])
            finally:
                os._exit(1)

        def wait(self, watched: list[int]) -> int:
            """Until the command is over: signals go on to it, orphans are buried."""
            while True:
                number = signal.sigwait(watched)
                if number != signal.SIGCHLD:
                    quietly(os.kill, self.child, number)  # not waited for: nobody else has its pid
                    continue
                for pid, status in _buried():
                    if pid == self.child:
                        return status

        # -- what proves it later

        def join_cage(self) -> None:
            """A lease of its own is a cage of its own, beside the one that we are in, if any."""
            try:
                with open("/proc/self/cgroup", encoding="utf-8") as file:
                    inside = any(f"/clawstop-{self.cookie.split(':')[1]}/" in line for line in file)
                with open(os.path.join(root(), "cages"), encoding="utf-8") as file:
                    folders = [line.strip() for line in file]
            except OSError:
                return
            for folder in folders if inside else ():
                cage = os.path.join(folder, self.cookie)
                try:
                    os.makedirs(cage, exist_ok=True)
                    fd = os.open(os.path.join(cage, "cgroup.procs"), os.O_WRONLY)
                    try:
                        os.write(fd, b"0")
                    finally:
                        os.close(fd)
                    return
                except OSError:
                    continue

        def record(self, pid: int, how: str) -> None:
            """See records.py. Without it, as outside Linux, the cookie is all that proves it."""
            if sys.platform != "linux":
                return
            try:
                start = start_of(pid)
                with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                    boot = file.read().strip()
                name = f"{pid}-{start}"
                half = os.path.join(root(), "owned", f".{name}.{os.getpid()}")
                fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.write(fd, f"{boot} {pid} {start} {how} {self.cookie}\n".encode())
                os.close(fd)
                os.replace(half, os.path.join(root(), "owned", name))
            except OSError as error:
                print(f"clawstop run: not on record: {error}", file=sys.stderr)

        def record_orphans(self) -> None:
            """We are their parent until now; afterwards nobody could tell whose they are. What is
            somebody else's by now, or a gateway, is left as it is, with all that is below it."""
            try:
                known = {
                    name.partition("-")[0] for name in os.listdir(os.path.join(root(), "owned"))
                }
                gateways = os.listdir(os.path.join(root(), "bridges"))
            except OSError:
                return
            known |= {name.partition(".")[0] for name in gateways}
            todo = children(os.getpid())
            while todo:
                pid = todo.pop()
                if str(pid) in known or cookie_of(pid) not in (None, self.cookie):
                    continue
                self.record(pid, "run")
                todo += children(pid)

    def execute(command: list[str], environ: dict[str, str]) -> None:
        """Be the command. A script without a first line that names its shell is for sh."""
        try:
            os.execvpe(command[0], command, environ)
        except OSError as error:
            if error.errno != _ENOEXEC:
                raise
            os.execve("/bin/sh", ["sh", *command], environ)

    def become_subreaper() -> None:
        if sys.platform == "linux":
            import ctypes

            ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, 1, 0, 0, 0)

    def start_of(pid: int) -> int:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])

    def cookie_of(pid: int) -> str | None:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:
            return None
        texts = [entry[16:] for entry in entries if entry.startswith(b"CLAWSTOP_COOKIE=")]
        return texts[0].decode("ascii", "replace") if texts else None

    def children(pid: int) -> list[int]:
        found: list[int] = []
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
        except OSError:
            return found
        return found

    def leave_as(status: int) -> int:
        """As the command left: with its code, or by its signal."""
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
        import resource

        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
        return 128 + number

    def quietly(action: Callable[..., object], *arguments: int) -> None:
        """contextlib is slow to import too."""
        try:
            action(*arguments)
        except OSError:
            return

    def _buried() -> Iterator[tuple[int, int]]:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            yield pid, status

    def _signals() -> list[int]:
        return [getattr(signal, f"SIG{name}") for name in PASSED_ON]

    _SIGINT, _SIGQUIT = signal.SIGINT, signal.SIGQUIT
    _ENOEXEC = 8
