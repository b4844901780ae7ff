"""Benchmarks of what a person or a task waits for: a name among thousands, a check, an interrupt.
Their references are bars of time: what may be asked of whoever waits."""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import targets
from .agents import Agent
from .bench import Row, timed
from .engine import Engine
from .interruptible import Interruptible
from .names import Names
from .paths import Paths
from .server import Server
from .starter import environment
from .stops import Request

AGENTS = 5000
CHECKS = 10_000  # in one batch
SAID = ("zero_dev4711", "dev77", "开发工程师4711", "kaifagongchengshi", "zero_dve4711", "nobody")
PATIENCE = 20.0
SESSION = "agent:dev1:main"


def names(folder: Path, batches: int) -> Row:
    """The slowest of several ways to say who is meant, among 5,000 agents."""
    every = Names.ready(Agent(f"zero_dev{n}", f"开发工程师{n}") for n in range(AGENTS))
    slowest = 0.0
    for said in SAID:
        took = [timed(partial(every.find, said)) for _ in range(batches)]
        slowest = max(slowest, statistics.median(took))
    return Row("names", slowest * 1000, "ms", 5.0, "what a person may be made to wait", bar=1.0)


def check(folder: Path, batches: int) -> Row:
    """A check point of a task that listens, when nothing has happened."""
    task = Interruptible(SESSION, paths=Paths(folder))

    def some() -> None:
        for _ in range(CHECKS):
            task.check()

    with task:
        each = statistics.median(timed(some) for _ in range(batches)) / CHECKS
    return Row("check", each * 1e6, "us", 2.0, "what a loop may be made to wait", bar=1.0)


def listening(folder: Path, batches: int) -> Row:
    """What a task that waits for nothing uses of a core: one look in each interval."""
    task = Interruptible(SESSION, paths=Paths(folder))

    def look() -> None:
        task.check_for_interrupt()

    each = statistics.median(timed(look) for _ in range(batches * 10))
    share = each / (task.interrupt_check_interval / 1000) * 100
    return Row("listening", share, "%", 0.1, "what it may use of a core", bar=1.0)


TASK = """
import sys, time
from clawstop import Interrupted, Interruptible
try:
    with Interruptible(sys.argv[1], interval=60_000) as task:
        print("ready", flush=True)
        while True:
            time.sleep(0.0005)
            task.check()
except Interrupted:
    print(time.perf_counter(), flush=True)
"""


def interrupt(folder: Path, batches: int) -> Row:
    """From a stop to `Interrupted` in a task that checks all the time; 99 of 100 are faster."""
    paths = Paths(folder)

    async def one(engine: Engine) -> float:
        task = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", TASK, SESSION),
            env={**environment(paths), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=asyncio.subprocess.PIPE,
        )
        assert task.stdout
        try:
            async with asyncio.timeout(PATIENCE):
                await task.stdout.readline()
                while not engine.cooperation.listening:
                    await asyncio.sleep(0.001)
                target = targets.restarted(SESSION, engine.store)
                request = Request(secrets.token_hex(8), target, "bench", "bench", grace=0.0)
                begun = time.perf_counter()
                stopping = asyncio.create_task(engine.stops.stop(request))
                told = await task.stdout.readline()
                await stopping
                await task.wait()
        finally:
            if task.returncode is None:
                task.kill()
                await task.wait()
        return float(told) - begun

    async def several() -> list[float]:
        server = Server(paths)
        await server.startup()
        server.engine.store.bind("r1", SESSION, "message")
        try:
            return [await one(server.engine) for _ in range(max(batches, 2))]
        finally:
            await server.shutdown()

    took = sorted(asyncio.run(several()))
    p99 = took[int(len(took) * 0.99)]
    return Row("interrupt", p99 * 1000, "ms", 20.0, "what a stop may take to arrive", bar=1.0)


TASKS: tuple[Callable[[Path, int], Row], ...] = (names, check, listening, interrupt)
