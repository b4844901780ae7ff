"""Owns one WebSocket connection to a gateway: RPC calls, chat as a person, and every event seen."""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

Frame = dict[str, Any]
Event = tuple[float, Frame]

MAIN = "agent:main:main"
# On loopback with the gateway's token this client needs no paired device and has admin scope.
IDENTITY = {"id": "gateway-client", "mode": "backend", "version": "test", "platform": "linux"}
# Older releases give it no rights; a terminal has them, where `controlUi.allowInsecureAuth` is set.
TERMINAL = {**IDENTITY, "id": "openclaw-tui", "mode": "ui"}
SCOPES = ["admin", "read", "write", "approvals", "pairing"]
OPEN_TIMEOUT = 10.0  # seconds; a starting gateway accepts late, Gateway.start tries again
CALL_TIMEOUT = 90.0  # seconds; no RPC takes more than a few, but an old gateway's first ones
TURN_TIMEOUT = 60.0  # seconds; the first turn of a fresh gateway takes about 10
FINAL_STATES = frozenset({"final", "aborted", "error"})


class RpcError(Exception):
    """The gateway refused a call; `code` and `details` are its own words."""

    def __init__(self, method: str, error: Frame) -> None:
        super().__init__(f"{method}: {error.get('code')}: {error.get('message')}")
        self.code = str(error.get("code"))
        self.details = error


class Client:
    """A person at the gateway. `session` is where `send`, `abort` and `history` go by default."""

    def __init__(
        self,
        url: str,
        token: str,
        session: str = MAIN,
        timeout: float = OPEN_TIMEOUT,
        caps: Sequence[str] = (),
        identity: Mapping[str, str] = IDENTITY,
        scopes: Sequence[str] = SCOPES,
    ) -> None:
        self.session = session
        self._events: list[Event] = []
        self._seen = threading.Condition()
        self._pending: dict[str, queue.SimpleQueue[Frame]] = {}
        self._closed: str | None = None  # why, once it is
        self._exit = ExitStack()
        # Loopback never goes through a proxy; histories are larger than the default limit; an old
        # gateway answers no ping while it does its first turn.
        opened = connect(
            url,
            open_timeout=timeout,
            close_timeout=1,
            max_size=None,
            proxy=None,
            ping_interval=None,
        )
        self._socket = self._exit.enter_context(opened)
        self._reader = threading.Thread(target=self._read, name=f"client {url}", daemon=True)
        self._reader.start()
        try:
            self.hello = self.call("connect", _handshake(token, caps, identity, scopes), timeout)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def events(self) -> list[Event]:
        """(time, frame) of every event so far."""
        with self._seen:
            return list(self._events)

    def mark(self) -> int:
        """The place after the last event: the `start` of a later wait."""
        with self._seen:
            return len(self._events)

    def call(self, method: str, params: Frame | None = None, timeout: float = CALL_TIMEOUT) -> Any:
        """One RPC; its payload. RpcError when refused, ConnectionError when cut off."""
        request, answers = str(uuid.uuid4()), queue.SimpleQueue[Frame]()
        with self._seen:
            if self._closed is not None:
                raise ConnectionError(f"{method}: connection closed: {self._closed}")
            self._pending[request] = answers
        frame = {"type": "req", "id": request, "method": method, "params": params or {}}
        try:
            self._socket.send(json.dumps(frame))
            answer = answers.get(timeout=timeout)
        except ConnectionClosed as closed:
            raise ConnectionError(f"{method}: {closed}") from closed
        except queue.Empty:
            raise TimeoutError(f"{method}: no answer in {timeout:g} s") from None
        finally:
            self._pending.pop(request, None)
        if "closed" in answer:
            raise ConnectionError(f"{method}: connection closed: {answer['closed']}")
        if not answer.get("ok"):
            raise RpcError(method, answer.get("error") or {})
        return answer.get("payload")

    def send(self, text: str, session: str | None = None, **params: Any) -> Frame:
        """A person's message; the acknowledgement with its `runId`."""
        ack: Frame = self.call(
            "chat.send",
            {
                "sessionKey": session or self.session,
                "message": text,
                "idempotencyKey": str(uuid.uuid4()),
                **params,
            },
        )
        return ack

    def abort(self, session: str | None = None, **params: Any) -> Frame:
        """chat.abort, as the web page's stop button does it."""
        answer: Frame = self.call("chat.abort", {"sessionKey": session or self.session, **params})
        return answer

    def history(self, session: str | None = None, limit: int = 200) -> list[Frame]:
        """The session's messages, oldest first."""
        params = {"sessionKey": session or self.session, "limit": limit}
        messages: list[Frame] = self.call("chat.history", params)["messages"]
        return messages

    def wait(
        self, predicate: Callable[[Frame], object], timeout: float = TURN_TIMEOUT, start: int = 0
    ) -> Event:
        """The first event from `start` on for which `predicate` is true."""
        deadline = time.monotonic() + timeout
        with self._seen:
            while True:
                for index in range(start, len(self._events)):
                    if predicate(self._events[index][1]):
                        return self._events[index]
                start = max(start, len(self._events))
                if self._closed is not None:
                    raise ConnectionError(f"closed before the event came: {self._closed}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no such event in {timeout:g} s; last: {self._last()}")
                self._seen.wait(left)

    def wait_final(
        self, run_id: str | None = None, timeout: float = TURN_TIMEOUT, start: int = 0
    ) -> Event:
        """The event that ends a run: final, aborted or error."""

        def ends(frame: Frame) -> bool:
            payload = frame.get("payload") or {}
            return (
                frame.get("event") == "chat"
                and payload.get("state") in FINAL_STATES
                and run_id in (None, payload.get("runId"))
            )

        return self.wait(ends, timeout, start)

    def close(self) -> None:
        self._exit.close()
        self._reader.join(OPEN_TIMEOUT)

    def _read(self) -> None:
        why = "by this side"
        try:
            for raw in self._socket:
                self._take(json.loads(raw))
        except ConnectionClosed as closed:
            why = str(closed)
        with self._seen:
            self._closed = why
            for answers in self._pending.values():
                answers.put({"closed": why})
            self._seen.notify_all()

    def _take(self, frame: Frame) -> None:
        with self._seen:
            if frame.get("type") == "res":
                answers = self._pending.get(str(frame.get("id")))
                if answers is not None:  # else its caller has given up
                    answers.put(frame)
            else:
                self._events.append((time.time(), frame))
                self._seen.notify_all()

    def _last(self) -> str:
        names = [str(frame.get("event")) for _, frame in self._events[-8:]]
        return ", ".join(names) or "none at all"


def _handshake(
    token: str, caps: Sequence[str], identity: Mapping[str, str], scopes: Sequence[str]
) -> Frame:
    return {
        "minProtocol": 3,
        "maxProtocol": 4,
        "client": dict(identity),
        "role": "operator",
        "scopes": [f"operator.{scope}" for scope in scopes],
        "caps": ["tool-events", *caps],
        "auth": {"token": token},
    }
