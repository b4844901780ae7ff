"""The canary: a harmless run on a real gateway, stopped for real, so that a person sees it work."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import ownership, targets
from .errors import ClawstopError, EngineUnreachable
from .params import Params

if TYPE_CHECKING:
    from .engine import Engine

TASK = (
    "This is a test of the stop button. Run this one command with your exec tool, in the "
    "foreground, and do nothing else: sleep 120"
)
NAME = "clawstop-canary"
RUN_SECONDS = 60.0  # a model that is asked for the first time takes long
PROCESS_SECONDS = 60.0
SEND_SECONDS = 20.0
LOOK = 0.2


async def fly(engine: Engine, agent: str) -> Params:
    """The receipt, and `carried`: whether the command that ran was known to be the run's."""
    bridge = next(iter(engine.bridges), None)
    if bridge is None:
        raise EngineUnreachable("no gateway has the plugin loaded and connected: clawstop doctor")
    if agent not in engine.roster.ids:
        raise ClawstopError(f"there is no agent {agent}; name one with --agent")
    session = f"agent:{agent}:{NAME}"
    told = {"session": session, "message": TASK, "id": secrets.token_hex(8)}
    await bridge.peer.ask("canary", told, SEND_SECONDS)
    began = await _until(lambda: _runs(engine, session), RUN_SECONDS)
    carried = began and await _until(lambda: _processes(engine, session), PROCESS_SECONDS)
    target = targets.session(session, engine.store)
    request = engine.request(secrets.token_hex(8), target, "clawstop doctor --canary", "clawstop")
    receipt = await engine.stops.stop(request)
    engine.store.release(session)
    await engine.bridges.push(engine.stops.mirror([session]))
    await bridge.peer.ask("canary_over", {"session": session}, SEND_SECONDS)
    if not began:
        raise ClawstopError("the gateway took the message but started no run; look at its log")
    return {"receipt": receipt, "carried": carried}


def _runs(engine: Engine, session: str) -> bool:
    return any(key == session for _, key, _ in engine.store.live_runs())


def _processes(engine: Engine, session: str) -> bool:
    return bool(ownership.find(lambda owner: owner.session == session, engine.proofs()))


async def _until(true: Callable[[], bool], seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            while not true():
                await asyncio.sleep(LOOK)
    except TimeoutError:
        return False
    return True
