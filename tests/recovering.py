"""Owns gateways that come and go on the wire, and what an engine does about it, for the tests of
recovery."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clawstop import crashes, recovery
from clawstop.cuts import Stage
from clawstop.paths import Paths
from clawstop.server import Server
from wire import Wire, bridge

S, T = "agent:main:main", "agent:dev1:main"
ROUTE = {"channel": "telegram", "to": "telegram:42"}
PIDS = itertools.count(2**30)  # of gateways that never were


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts and people take seconds; a test does not."""
    for name, value in {
        "HOST_SECONDS": 0.2,
        "PATIENCE": 3.0,
        "REPLAY_SECONDS": 0.3,
        "START_SECONDS": 10.0,
        "LOOK": 0.02,
        "BACK_OFF": (0.0, 0.05, 0.05),
    }.items():
        monkeypatch.setattr(recovery, name, value)


@asynccontextmanager
async def gateway(paths: Paths, pending: list[str] | None = None) -> AsyncIterator[Wire]:
    """A gateway that has just started; what it is asked to resume becomes a run."""
    async with bridge(paths, pid=next(PIDS), born=time.time() * 1000) as one:
        one.answers |= {"pending": lambda asked: pending or [], "resume": None}
        yield one
    for _ in range(20):  # until the engine, in this very loop, has seen that it is gone
        await asyncio.sleep(0.002)


async def begin(one: Wire, run: str, session: str = S, text: str = "write the report") -> None:
    """A person's message, and the run that answers it."""
    said = {"session": session, "id": f"m-{run}", "sender": "42", "authorised": True}
    await one.result("message", **said, text=text, route=ROUTE)
    await one.result(
        "run_start", run=run, session=session, cause="message", message=f"m-{run}", asked=now()
    )


def now() -> float:
    return time.time() * 1000


def resumed(one: Wire) -> list[dict[str, Any]]:
    return [asked["params"] for asked in one.asked if asked["method"] == "resume"]


def said(one: Wire) -> list[str]:
    return [asked["params"]["text"] for asked in one.asked if asked["method"] == "say"]


async def until(isso: Callable[[], Any], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not isso():
            await asyncio.sleep(0.01)


async def quiet(seconds: float = 0.8) -> None:
    """Long enough for everything that would come."""
    await asyncio.sleep(seconds)


def stage_of(running: Server, session: str = S) -> Stage | None:
    cut = running.engine.store.cuts.get(session)
    return cut.stage if cut else None


def forget_starts(running: Server) -> None:
    """It is not a gateway that crashes every second."""
    for start in list(running.engine.store.noted(crashes.STARTS)):
        running.engine.store.unnote(crashes.STARTS, start)
