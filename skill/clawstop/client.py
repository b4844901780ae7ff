"""How the command line reaches the engine: the one that runs, or by being it for one command."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from .errors import EngineUnreachable
from .paths import Paths, read_json
from .protocol import MAX_ANSWER, OLDEST, PROTOCOL, Handler, Peer

if TYPE_CHECKING:
    from .engine import Engine

HELLO_SECONDS = 2.0  # an engine that cannot say hello by then is not going to stop anything
TRIES_SECONDS = 20.0  # an engine that dies under us comes back, or we become it, well before


async def call(paths: Paths, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Ask the engine; when none answers, be it for this one command.

    An engine that goes away in the middle is asked again: a stop carries its id, so that asking
    twice is asking once.
    """
    params = {**params, "pid": os.getpid()}
    with contextlib.suppress(EngineUnreachable):
        return await _ask_running(paths, method, params)
    # Only now: a person who says stop should not wait for what is not needed.
    from .server import EngineRunning, serve

    deadline = time.monotonic() + TRIES_SECONDS
    while True:
        with contextlib.suppress(EngineRunning):
            answer = await serve(paths, _job(method, params))
            assert answer is not None
            return answer
        with contextlib.suppress(EngineUnreachable):
            return await _ask_running(paths, method, params)
        if time.monotonic() > deadline:
            raise EngineUnreachable(
                f"an engine holds {paths.lock} but does not answer; see {paths.log}"
            )
        await asyncio.sleep(0.2)


def _job(method: str, params: dict[str, Any]) -> Callable[[Engine], Awaitable[dict[str, Any]]]:
    async def job(engine: Engine) -> dict[str, Any]:
        answer: dict[str, Any] = await getattr(engine.commands, method)(None, params)
        return answer

    return job


async def _ask_running(paths: Paths, method: str, params: dict[str, Any]) -> dict[str, Any]:
    peer, reading, _ = await connect(paths, "cli", _nothing_to_ask)
    try:
        answer: dict[str, Any] = await peer.ask(method, params, None)
        return answer
    finally:
        peer.close()
        await reading


async def connect(
    paths: Paths, role: str, serve: Handler, **hello: Any
) -> tuple[Peer, asyncio.Task[None], dict[str, Any]]:
    """A connection that has said hello, the task that reads it, and the engine's answer."""
    endpoint = read_json(paths.endpoint)
    if endpoint is None:
        raise EngineUnreachable("no engine is running")
    try:
        if sys.platform != "win32" and "socket" in endpoint:
            reader, writer = await asyncio.open_unix_connection(
                endpoint["socket"], limit=MAX_ANSWER
            )
        else:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", endpoint["port"], limit=MAX_ANSWER
            )
    except OSError as error:
        raise EngineUnreachable(f"no engine is listening: {error}") from error
    peer = Peer(reader, writer, serve)
    reading = asyncio.create_task(peer.run())
    token = endpoint.get("token", "")
    words = {"protocol": PROTOCOL, "oldest": OLDEST, "role": role, "token": token, **hello}
    try:
        welcome: dict[str, Any] = await peer.ask("hello", words, HELLO_SECONDS)
    except TimeoutError:
        peer.close()
        await reading
        raise EngineUnreachable("the engine does not answer") from None
    except BaseException:
        peer.close()
        await reading
        raise
    return peer, reading, welcome


async def _nothing_to_ask(peer: Peer, method: str, params: dict[str, Any]) -> Any:
    raise EngineUnreachable(f"the command line answers nothing, not even {method}")
