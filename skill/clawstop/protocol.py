"""The wire: one JSON object a line, requests in both directions over one connection.

    {"id": 7, "method": "tool", "params": {...}}        a request
    {"id": 7, "result": {...}}                          its answer
    {"id": 7, "error": {"code": "...", "message": "..."}}
    {"method": "tool_end", "params": {...}}             no id: nobody waits for an answer

The first request on a connection is `hello`, with the protocol number and the engine's token. A
line that is no such object, or is too long, ends the connection: a bridge that is cut off refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from .errors import BY_CODE, Ambiguous, ClawstopError, EngineUnreachable, ProtocolError

log = logging.getLogger("clawstop.protocol")

PROTOCOL = 1
OLDEST = 1  # the oldest we still speak; changes only add, so a skill may be newer than its gateway
MAX_LINE = 1 << 20  # to the engine: a tool call is a few kilobytes, a megabyte is a mistake
MAX_ANSWER = 1 << 24  # from the engine: a mirror or status of 100,000 sessions

Message = dict[str, Any]
Handler = Callable[["Peer", str, Message], Awaitable[Any]]


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # made once


def encode(message: Message) -> bytes:
    return _compact.encode(message).encode() + b"\n"


def decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a line of JSON: {line[:60]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("params", {}), dict):
        raise ProtocolError(f"not a request or an answer: {line[:60]!r}")
    if b"\\ud" in line.lower():  # half an emoji, cut by somebody: no file or database takes it
        whole = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        return dict(json.loads(whole))
    return message


class Peer:
    """One connection. `handle(peer, method, params)` serves what the other side asks."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handler
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handle = handle
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.closed = False
        self.pid: int | None = None  # who is on the other side, where the system tells

    async def run(self) -> None:
        """Read until the other side goes away; always ends closed."""
        try:
            while True:
                try:
                    line = await self._reader.readline()
                except ValueError as error:  # StreamReader's word for a line over its limit
                    raise ProtocolError(f"a line of over {MAX_LINE} bytes") from error
                if not line.endswith(b"\n"):  # end of stream; half a line is nothing
                    return
                if not line.isspace():
                    self._take(decode(line))
        except ProtocolError as error:
            log.warning("closing a connection: %s", error)
            self._send({"id": None, "error": {"code": error.code, "message": str(error)}})
            with contextlib.suppress(OSError):
                await self._writer.drain()
        except OSError:
            return  # the other side is gone: the same as an end of stream
        finally:
            self.close()
            for task in self._serving:
                task.cancel()

    def _take(self, message: Message) -> None:
        method, number = message.get("method"), message.get("id")
        if isinstance(method, str):
            task = asyncio.create_task(self._serve(method, message.get("params", {}), number))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            return
        future = self._waiting.pop(number, None) if isinstance(number, int) else None
        if future is None or future.done():
            return  # an answer that nobody waits for any more
        error = message.get("error")
        if error is None:
            future.set_result(message.get("result"))
        else:
            code, text = (
                (error.get("code"), error.get("message"))
                if isinstance(error, dict)
                else ("failed", error)
            )
            failure = BY_CODE.get(str(code), ClawstopError)(str(text))
            if isinstance(failure, Ambiguous):
                failure.choices = [str(one) for one in error.get("choices") or ()]
            future.set_exception(failure)

    async def _serve(self, method: str, params: Message, number: Any) -> None:
        try:
            answer = {"id": number, "result": await self._handle(self, method, params)}
        except ClawstopError as error:
            choices = {"choices": error.choices} if isinstance(error, Ambiguous) else {}
            told = {"code": error.code, "message": str(error), **choices}
            answer = {"id": number, "error": told}
        except Exception as error:
            log.exception("%s failed", method)
            answer = {"id": number, "error": {"code": "failed", "message": repr(error)}}
        if number is not None:
            self._send(answer)

    def _send(self, message: Message) -> None:
        if not self.closed:
            self._writer.write(encode(message))

    def notify(self, method: str, params: Message) -> None:
        self._send({"method": method, "params": params})

    async def ask(self, method: str, params: Message, timeout: float | None) -> Any:
        """Ask and wait. EngineUnreachable: the other side is gone; TimeoutError: it is late."""
        if self.closed:
            raise EngineUnreachable("the connection is closed")
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._send({"id": number, "method": method, "params": params})
        try:
            async with asyncio.timeout(timeout):  # wait_for loses a cancel that meets an answer
                return await future
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineUnreachable("the connection was closed"))
        self._waiting.clear()
        self._writer.close()

    @property
    def socket(self) -> Any:
        return self._writer.get_extra_info("socket")
