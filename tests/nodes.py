"""Owns the bridge outside a gateway: a Node process that is asked line by line."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clawstop.paths import Paths

PLUGIN = Path(__file__).parent.parent / "hooks" / "openclaw" / "bridge.js"
S = "agent:main:main"
DRIVER = Path(__file__).parent / "bridge_driver.mjs"
WAIT = 10.0  # seconds; Node starts in a tenth of one


class Node:
    """The bridge in a process of its own; `node.gate(...)` calls the bridge's method."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            answer = json.loads(line)
            future = self._waiting.pop(answer["id"])
            if "error" in answer:
                future.set_exception(AssertionError(answer["error"]))
            else:
                future.set_result(answer["result"])

    def __getattr__(self, call: str) -> Callable[..., Awaitable[Any]]:
        def ask(*args: Any) -> Awaitable[Any]:
            number = next(self._ids)
            future = self._waiting[number] = asyncio.get_running_loop().create_future()
            line = json.dumps({"id": number, "call": call, "args": args})
            assert self.process.stdin
            self.process.stdin.write(line.encode() + b"\n")
            return asyncio.wait_for(future, WAIT)

        return ask

    async def tool(self, run: str = "r1", session: str = S) -> str | None:
        call = {"id": "c", "run": run, "session": session, "tool": "exec"}
        refusal: str | None = await self.gate(call)
        return refusal

    async def until(self, call: str, *args: Any) -> None:
        async with asyncio.timeout(WAIT):
            while not await getattr(self, call)(*args):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def node(place: Paths) -> AsyncIterator[Node]:
    binary = shutil.which("node")
    assert binary, "Node is needed: the bridge is JavaScript"
    process = await asyncio.create_subprocess_exec(
        binary,
        str(DRIVER),
        str(PLUGIN),
        str(place.root),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    one = Node(process)
    try:
        await one.start()
        yield one
    finally:
        assert process.stdin
        process.stdin.close()
        await asyncio.wait_for(process.wait(), WAIT)
        await one.reading


async def stop(server: Any, target: str) -> dict[str, Any]:
    return dict(await server.engine.commands.stop(None, {"target": target, "pid": 1}))
