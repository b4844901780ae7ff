"""The engine's wire for who waits on a plain socket: one question at a time, news in between.
Standard library only; see protocol.py for what goes over it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from .errors import BY_CODE, ClawstopError, EngineUnreachable, ProtocolError
from .protocol import MAX_ANSWER, OLDEST, PROTOCOL, decode, encode

HELLO_SECONDS = 2.0  # an engine that cannot say hello by then is not going to do anything
PULSE = 2.0  # a person who waits longer than this without a word thinks that it hangs


def _nobody_waits(_: float) -> None:
    pass


class Wire:
    """A connection that has said hello. OSError or ClawstopError: there is no engine."""

    def __init__(
        self,
        endpoint: dict[str, Any] | None,
        role: str,
        *,
        waiting: Callable[[float], None] = _nobody_waits,
        **hello: Any,
    ) -> None:
        if endpoint is None:
            raise EngineUnreachable("no engine is running")
        self._waiting = waiting
        self._rest = b""
        self._number = 0
        self.news: list[dict[str, Any]] = []  # what the engine told without being asked
        self.socket = _connected(endpoint)
        words = {"protocol": PROTOCOL, "oldest": OLDEST, "role": role, "pid": os.getpid()}
        words["token"] = endpoint.get("token", "")
        try:
            self.welcome = self.ask("hello", {**words, **hello}, HELLO_SECONDS)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def ask(self, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": params}
        self.socket.sendall(encode(request))
        begun = time.monotonic()
        while True:
            answer = decode(self._line(begun, seconds))
            if "method" in answer:
                self.news.append(answer)
                continue
            if answer.get("id") not in (self._number, None):
                continue  # what was asked before, and given up
            error = answer.get("error")
            if isinstance(error, dict):
                kind = BY_CODE.get(str(error.get("code")), ClawstopError)
                raise kind(str(error.get("message")))
            result = answer.get("result")
            if not isinstance(result, dict):
                raise ProtocolError(f"the engine answered {str(answer)[:80]}")
            return result

    @property
    def pending(self) -> bool:
        """Whether something was read already that nobody has heard."""
        return bool(self.news) or b"\n" in self._rest

    def read(self) -> dict[str, Any]:
        """The next thing that the engine tells without being asked; waits for it."""
        return self.news.pop(0) if self.news else decode(self._line(time.monotonic(), PULSE))

    def _line(self, begun: float, seconds: float) -> bytes:
        while b"\n" not in self._rest:
            left = begun + seconds - time.monotonic()
            if left <= 0:
                raise EngineUnreachable(f"the engine did not answer within {seconds:.0f} s")
            self.socket.settimeout(min(left, PULSE))
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                waited = time.monotonic() - begun
                if waited < seconds:
                    self._waiting(waited)
                continue
            if not data:
                raise EngineUnreachable("the engine went away")
            self._rest += data
            if len(self._rest) > MAX_ANSWER:
                raise ProtocolError("the engine's answer has no end")
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _connected(endpoint: dict[str, Any]) -> socket.socket:
    if "socket" in endpoint and hasattr(socket, "AF_UNIX"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(HELLO_SECONDS)
        try:
            connection.connect(str(endpoint["socket"]))
        except BaseException:
            connection.close()
            raise
        return connection
    return socket.create_connection(("127.0.0.1", int(endpoint.get("port", 0))), HELLO_SECONDS)
