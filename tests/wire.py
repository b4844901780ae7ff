"""An engine in this process, and raw connections to it: a peer that can say anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from clawstop.paths import Paths, read_json
from clawstop.protocol import PROTOCOL
from clawstop.server import Server

WAIT = 5.0  # seconds for an answer that takes a millisecond


@asynccontextmanager
async def engine(paths: Paths, **options: Any) -> AsyncIterator[Server]:
    server = Server(paths, **options)
    try:
        await server.startup()
        yield server
    finally:
        await server.shutdown()


class Wire:
    """Lines out, lines in. The engine's own requests are answered at once, as a bridge does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._number = 0
        self.asked: list[dict[str, Any]] = []  # what the engine asked of us
        self.acknowledge = True
        self.ended = False
        self.answers: dict[str, Any] = {"end": {"ended": [], "alive": []}, "drain": {}}
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):  # an answer of ours met a closed door
            await self._read_lines()
        self._answers.put_nowait(None)

    async def _read_lines(self) -> None:
        while data := await self._reader.readline():
            message = json.loads(data)
            if "method" not in message:
                self._answers.put_nowait(message)
                continue
            if message["method"] != "agents":  # that is asked now and then
                self.asked.append(message)
            if self.acknowledge and "id" in message and not self.ended:
                result = self.answers.get(message["method"])
                try:
                    answer = {"result": result(message["params"]) if callable(result) else result}
                except Exception as error:  # as the bridge tells one
                    answer = {"error": {"code": "failed", "message": str(error)}}
                self.write(json.dumps({"id": message["id"], **answer}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def end(self) -> None:
        self.ended = True
        self.writer.write_eof()

    async def line(self) -> dict[str, Any] | None:
        """The next answer, or None at the end of the stream."""
        return await asyncio.wait_for(self._answers.get(), WAIT)

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": params}
        self.write(json.dumps(request).encode() + b"\n")
        answer = await self.line()
        assert answer is not None, "the engine closed the connection"
        assert answer["id"] == self._number
        return answer

    async def result(self, method: str, **params: Any) -> Any:
        answer = await self.ask(method, **params)
        assert "error" not in answer, answer
        return answer["result"]

    async def hello(self, token: str, role: str = "bridge", **more: Any) -> dict[str, Any]:
        told = {"protocol": PROTOCOL, "role": role, "token": token, "pid": 1, **more}
        return await self.ask("hello", **{"host": "test", "version": "1", **told})

    async def close(self) -> None:
        self.writer.close()
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)


@asynccontextmanager
async def wire(paths: Paths) -> AsyncIterator[tuple[Wire, str]]:
    """A connection that has said nothing yet, and the token it needs."""
    endpoint = read_json(paths.endpoint)
    assert endpoint is not None
    if "socket" in endpoint:
        reader, writer = await asyncio.open_unix_connection(endpoint["socket"])
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint["port"])
    one = Wire(reader, writer)
    try:
        yield one, endpoint["token"]
    finally:
        await one.close()


@asynccontextmanager
async def bridge(paths: Paths, **hello: Any) -> AsyncIterator[Wire]:
    async with wire(paths) as (one, token):
        answer = await one.hello(token, **hello)
        assert "result" in answer, answer
        yield one
