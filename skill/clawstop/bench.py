"""Benchmarks, each against a reference that is measured in the same run.

A benchmark is a function in `BENCHMARKS`, or in another `bench_*.py`, that returns a `Row`; its
name is the row's name. What it measures and its reference take turns in small batches, and their
medians are compared: a machine that is busy for a moment is busy for both. Servers run in processes
of their own, which live as long as their standard input: however this process ends, they end with
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import secrets
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any, BinaryIO

from . import plugins, targets
from .engine import Engine
from .errors import ClawstopError, UsageError
from .paths import Paths, read_json, write_private
from .protocol import MAX_LINE, PROTOCOL, decode, encode
from .server import serve
from .starter import environment
from .stops import Request
from .store import Store

BATCHES = 40  # turns that each side gets: enough for a steady median on a busy machine
SECONDS = 5.0  # one benchmark takes no more turns after that, on however slow a disk
ANSWER_SECONDS = 5.0  # an answer takes well under a millisecond
LIFE_SECONDS = 60.0  # a server that hangs is killed; all benchmarks together take a few seconds
LEAVE_SECONDS = 5.0  # a server leaves at once; one that does not is killed

# asyncio asks for 256 KB before each read. Whether glibc maps that anew every time, at a third of a
# round trip, hangs on the layout of the heap, down to the length of a path. Here it never does.
MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 22), "MALLOC_TRIM_THRESHOLD_": str(1 << 24)}

SESSION = "agent:dev1:main"
RUN, CALL = "5f0c5c4e-6a53-4d0e-9d5b-0c8f3f0f7f11", "call_00_RlK5vWq1sXc0Yz8Tn3bHd2"

Action = Callable[[], object]


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    unit: str
    reference: float  # in the same unit
    against: str  # what the reference is
    bar: float  # the largest ratio that is good enough

    @property
    def ratio(self) -> float:
        return self.value / self.reference

    @property
    def ok(self) -> bool:
        return self.ratio <= self.bar

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "ok": self.ok}


def run(
    names: Sequence[str] = (), *, folder: Path | None = None, batches: int = BATCHES
) -> Iterator[Row]:
    """Run the benchmarks called `names`, or all. Their files are in `folder` for as long as they
    run: name one on the disk that counts."""
    from .bench_memory import MEMORY  # which measure with what is here
    from .bench_recovery import RECOVERY
    from .bench_tasks import TASKS

    benchmarks = [*BENCHMARKS, *MEMORY, *TASKS, *RECOVERY]
    if sys.platform == "linux":
        from .bench_processes import PROCESSES

        benchmarks += PROCESSES
    known = {benchmark.__name__: benchmark for benchmark in benchmarks}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no benchmark {name!r}; there are: {', '.join(known)}")
    return (_row(known[name], folder or _disk(), batches) for name in names or known)


def _row(benchmark: Callable[[Path, int], Row], folder: Path, batches: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="clawstop-bench-", dir=folder) as private:
        return benchmark(Path(private), batches)


def _disk() -> Path:
    """/var/tmp outlives a restart, so it is a disk; /tmp is often memory, which syncs for free."""
    usual = Path("/var/tmp")
    return usual if os.access(usual, os.W_OK) else Path(tempfile.gettempdir())


# -- the benchmarks


def gate(folder: Path, batches: int) -> Row:
    """One verdict, asked as a bridge does, over the engine's own socket."""
    with (
        _one_cpu(),
        _server("engine", Paths(folder / "engine")) as engine,
        _server("echo", Paths(folder / "echo")) as echo,
    ):
        value, reference = medians(engine.verdict, echo.verdict, batches=batches, size=50)
    return Row(
        name="gate",
        value=value * 1000,
        unit="ms",
        reference=reference * 1000,
        against="a Python asyncio server that answers lines of JSON of the same sizes",
        bar=2.0,
    )


def latch(folder: Path, batches: int) -> Row:
    """Step 1 of a stop: one session latched and bumped, on disk when it returns."""
    store = Store.open(folder / "state.sqlite")
    plain = sqlite3.connect(folder / "reference.sqlite", isolation_level=None)
    try:
        store.bind(RUN, SESSION, "message")
        target = targets.session(SESSION, store)
        request = Request("", target, "clawstop stop", "bench", grace=0.5).dump()
        plain.execute("PRAGMA journal_mode = WAL")
        plain.execute("PRAGMA synchronous = FULL")
        plain.execute("CREATE TABLE rows (id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID")

        def stop() -> None:
            store.begin_stop(secrets.token_hex(8), request, target.scopes, target.sessions)

        def commit() -> None:
            plain.execute("INSERT INTO rows VALUES (?, ?)", (secrets.token_hex(8), time.time()))

        value, reference = medians(stop, commit, batches=batches, size=5)
    finally:
        store.close()
        plain.close()
    return Row(
        name="latch",
        value=value * 1000,
        unit="ms",
        reference=reference * 1000,
        against="one row committed by SQLite in the same folder (WAL, full sync)",
        bar=3.0,
    )


BENCHMARKS: tuple[Callable[[Path, int], Row], ...] = (gate, latch)


# -- measuring


def medians(thing: Action, reference: Action, *, batches: int, size: int) -> tuple[float, float]:
    """Both medians, in seconds. The two take turns, each going first every other time."""
    taken: dict[Action, list[float]] = {thing: [], reference: []}
    turns = [thing, reference]
    for action in turns:  # the first ones fill caches
        for _ in range(size):
            action()
    deadline = time.monotonic() + SECONDS
    for _ in range(batches):
        for action in turns:
            taken[action] += [timed(action) for _ in range(size)]
        turns.reverse()
        if time.monotonic() > deadline:
            break
    return statistics.median(taken[thing]), statistics.median(taken[reference])


def timed(action: Action) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


@contextmanager
def _one_cpu() -> Iterator[None]:
    """Keep this thread, and what it starts, on one CPU, where the system can.

    Who asks and who answers never run at the same time. Left alone, the scheduler puts one server
    beside us and the other far away, and waking a CPU costs as much as an answer.
    """
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class _Bridge:
    """The asking side: a plain blocking socket, so that next to nothing but the server counts."""

    def __init__(self, connection: socket.socket, lines: BinaryIO, token: str) -> None:
        self._connection = connection
        self._lines = lines
        self._number = 0
        hello = {"protocol": PROTOCOL, "role": "bridge", "token": token, "pid": os.getpid()}
        self._ask("hello", {**hello, "host": "bench", "version": "1"})
        self._ask("run_start", {"run": RUN, "session": SESSION, "cause": "message"})

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        self._connection.sendall(encode({"id": self._number, "method": method, "params": params}))
        answer = decode(self._lines.readline())
        while "method" in answer:  # the engine asks too, now and then
            self._connection.sendall(encode({"id": answer["id"], "result": {}}))
            answer = decode(self._lines.readline())
        if answer.get("id") != self._number or "result" not in answer:
            raise ClawstopError(f"the server of a benchmark answered {method} with {answer}")
        return answer["result"]

    def verdict(self) -> None:
        """Ask whether a tool may run; always the same call, so that the ledger does not grow."""
        answer = self._ask("tool", {"id": CALL, "run": RUN, "session": SESSION, "tool": "exec"})
        if answer != {"refusal": None}:
            raise ClawstopError(f"the server of a benchmark refused: {answer}")


def _connect(endpoint: dict[str, Any]) -> socket.socket:
    if sys.platform == "win32" or "port" in endpoint:
        return socket.create_connection(("127.0.0.1", endpoint["port"]), ANSWER_SECONDS)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_SECONDS)
    connection.connect(endpoint["socket"])
    return connection


# -- the servers, each a process of its own


@contextmanager
def _server(kind: str, paths: Paths) -> Iterator[_Bridge]:
    """Start the server `kind` in the folder of `paths` and connect to it."""
    paths.prepare()
    inherited = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    with (
        paths.log.open("w+", encoding="utf-8") as log,
        subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", "-m", __name__, kind, str(paths.openclaw)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**environment(paths), **MEMORY, "PYTHONPATH": inherited},
            start_new_session=True,  # Ctrl-C is for us; it follows when its input ends
        ) as process,
    ):
        doom = threading.Timer(LIFE_SECONDS, process.kill)
        doom.daemon = True
        doom.start()
        assert process.stdin
        assert process.stdout
        try:
            if not process.stdout.readline():
                log.seek(0)
                raise ClawstopError(f"the {kind} of a benchmark did not start: {log.read()[-500:]}")
            endpoint = read_json(paths.endpoint) or {}
            with _connect(endpoint) as connection, connection.makefile("rb") as lines:
                yield _Bridge(connection, lines, endpoint["token"])
        finally:
            doom.cancel()
            process.stdin.close()
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LEAVE_SECONDS)
            finally:
                process.kill()  # nothing, when it has left


async def _until_input_ends() -> None:
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


async def _engine(paths: Paths) -> None:
    """The engine itself, with the built-in hooks only."""
    vars(plugins)["entry_points"] = lambda **_: EntryPoints()

    async def job(engine: Engine) -> None:
        await _until_input_ends()

    await serve(paths, job)


async def _echo(paths: Paths) -> None:
    """The least that a server in asyncio can do for the same lines in and out, without a line of
    ours in it: what makes the engine faster must not make this faster."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            answer = {"id": json.loads(line)["id"], "result": {"refusal": None}}
            writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
            await writer.drain()
        writer.close()

    if sys.platform == "win32":
        server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=MAX_LINE)
        endpoint: dict[str, Any] = {"port": server.sockets[0].getsockname()[1]}
    else:
        server = await asyncio.start_unix_server(accept, paths.socket, limit=MAX_LINE)
        endpoint = {"socket": str(paths.socket)}
    write_private(paths.endpoint, json.dumps({**endpoint, "token": secrets.token_hex(16)}))
    try:
        await _until_input_ends()
    finally:
        server.close()
        paths.socket.unlink(missing_ok=True)


# -- showing


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        f"{row.value:.3f} {row.unit}",
        f"{row.reference:.3f} {row.unit}",
        f"{row.ratio:.2f}x",
        f"{row.bar:g}x",
        "ok" if row.ok else "MISSED",
        row.against,
    ]


_HEAD = ["name", "value", "reference", "ratio", "bar", "", "what the reference is"]


def table(rows: Iterable[Row]) -> str:
    """The rows for a terminal, in columns."""
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 0 < place < 5 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown."""
    ruler = ["---", "---:", "---:", "---:", "---:", "---", "---"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (_HEAD, ruler, *map(_cells, rows)))


def write_docs(file: Path, rows: Iterable[Row]) -> None:
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    made = f"{markdown(rows)}\n\nMeasured with {where}, {os.cpu_count()} CPUs."
    put_table(file, "bench", made)


def put_table(file: Path, name: str, table: str) -> None:
    """Put it between the markers of that name in `file`, and change nothing else there."""
    first, last = (f"<!-- {name}:{word} -->" for word in ("begin", "end"))
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise UsageError(f"{file} has no place for the table: {first} and {last}")
    file.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    _kind, _folder = sys.argv[1:]
    _serve = {"engine": _engine, "echo": _echo}[_kind]
    asyncio.run(_serve(Paths(Path(_folder))))
