"""Owns the scripted model: an OpenAI-compatible chat-completions server on loopback.

A user message picks its script with a marker, `[[name]] go`; the step is the number of assistant
messages after the last marked message, so the server keeps no state per conversation. Past the last
step, or without a marker, the answer is `ok <step>`.
"""

from __future__ import annotations

import itertools
import json
import re
import select
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .loopback import Handler, Loopback

MARK = re.compile(r"\[\[([\w.-]+)\]\]")
# The host quotes old messages here, markers and all; they are not what the person said now.
QUOTED = re.compile(
    r"<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?<<<END_OPENCLAW_INTERNAL_CONTEXT>>>", re.DOTALL
)
SEARCH = "tool_call"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
HANG_UP_POLL = 0.05  # seconds between two looks whether the client or the server is gone

ToolCall = tuple[str, Mapping[str, Any]]
Message = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One assistant turn: text, tool calls or both, and how badly it is delivered."""

    text: str = ""
    tools: Sequence[ToolCall] = ()
    delay: float = 0.0  # seconds before the first byte
    hang: bool = False  # never answer
    chunk: int = 20  # characters of text per streamed chunk
    chunk_delay: float = 0.0  # seconds before each chunk
    error: int = 0  # answer with this HTTP status instead


def execute(command: str, **params: Any) -> ToolCall:
    """An exec tool call. `yieldMs` keeps it in the foreground unless told otherwise."""
    return "exec", {"command": command, "yieldMs": 120_000, **params}


def searched(name: str, **args: Any) -> ToolCall:
    """A tool that the model reaches through tool search, where the host has that."""
    return SEARCH, {"id": name, "args": args}


def _called(call: ToolCall, tools: Sequence[str]) -> ToolCall:
    """As a model that is offered these tools calls it."""
    name, arguments = call
    return call if name != SEARCH or SEARCH in tools else (arguments["id"], arguments["args"])


@dataclass
class Request:
    """One request to the model; `outcome` and `ended` change while it is answered."""

    time: float
    script: str | None
    step: int
    messages: list[Message]
    tools: list[str]
    stream: bool
    outcome: str = "answering"
    ended: float | None = None


@dataclass
class Model:
    """The server. Fill `scripts`, read `requests`; `close()` it at the end."""

    scripts: dict[str, Sequence[Step]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._requests: list[Request] = []
        self._lock = threading.Lock()
        self._loopback = Loopback(type("ModelHandler", (_Handler,), {"model": self}))
        self.url = f"{self._loopback.url}/v1"

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    def requests_since(self, since: float, script: str | None = None) -> list[Request]:
        """Requests that came at `since` or later, of one script if named."""
        return [
            request
            for request in self.requests
            if request.time >= since and (script is None or request.script == script)
        ]

    def record(self, request: Request) -> None:
        with self._lock:
            self._requests.append(request)

    @property
    def closing(self) -> bool:
        return self._loopback.closing.is_set()

    def close(self) -> None:
        self._loopback.close()

    def pick(self, messages: Sequence[Message]) -> tuple[str | None, int, Step]:
        """(script name, step number, step) for a conversation."""
        name, at = None, -1
        for index, message in enumerate(messages):
            marks = MARK.findall(QUOTED.sub("", text_of(message)))
            if message.get("role") == "user" and marks:
                name, at = marks[-1], index
        number = sum(message.get("role") == "assistant" for message in messages[at + 1 :])
        steps = self.scripts.get(name or "", ())  # "" is for who names no script
        return name, number, steps[number] if number < len(steps) else Step(f"ok {number}")


def text_of(message: Message) -> str:
    """The text of a message whose content is a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [] if isinstance(part, dict))


class _ClientGone(Exception):
    """The client hung up; the argument says where."""


class _Handler(Handler):
    model: ClassVar[Model]
    serial: ClassVar[itertools.count[int]] = itertools.count()  # tool call ids never repeat

    def do_GET(self) -> None:
        self.reply(200, {"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.body())
        messages = body.get("messages", [])
        name, number, step = self.model.pick(messages)
        request = Request(
            time=time.time(),
            script=name,
            step=number,
            messages=messages,
            tools=[tool["function"]["name"] for tool in body.get("tools") or []],
            stream=bool(body.get("stream")),
        )
        self.model.record(request)
        self.close_connection = True  # so that a hang-up is this request's
        try:
            request.outcome = self.answer(step, request)
        except _ClientGone as gone:
            request.outcome = f"client-gone:{gone}"
        except OSError as broken:
            request.outcome = f"client-gone:{type(broken).__name__}"
        request.ended = time.time()

    def answer(self, step: Step, request: Request) -> str:
        if step.error:
            self.reply(step.error, {"error": {"message": "scripted"}})
            return "error"
        self.pause(step.delay, "waiting")
        while step.hang:
            self.pause(HANG_UP_POLL, "waiting")
        calls = [
            {
                "index": index,
                "id": f"call_{next(self.serial)}",
                "type": "function",
                "function": {"name": tool, "arguments": json.dumps(arguments)},
            }
            for index, (tool, arguments) in enumerate(
                _called(call, request.tools) for call in step.tools
            )
        ]
        if request.stream:
            self.stream(step, calls)
        else:
            self.whole(step, calls)
        return "done"

    def pause(self, seconds: float, where: str) -> None:
        """Wait; raise as soon as the client hangs up or the server closes."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            readable, _, _ = select.select([self.connection], [], [], min(left, HANG_UP_POLL))
            if self.model.closing:
                raise _ClientGone("server-closed")
            if readable:
                if not self.connection.recv(1, socket.MSG_PEEK):
                    raise _ClientGone(where)
                time.sleep(min(left, HANG_UP_POLL))  # pipelined bytes: readable, not gone

    def whole(self, step: Step, calls: list[dict[str, Any]]) -> None:
        message: Message = {"role": "assistant", "content": step.text or None}
        if calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": _finish(calls)}
        self.reply(200, {**_envelope("chat.completion"), "choices": [choice], "usage": USAGE})

    def stream(self, step: Step, calls: list[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.delta({"role": "assistant", "content": ""})
        for start in range(0, len(step.text), step.chunk):
            self.pause(step.chunk_delay, f"after-{start}-chars")
            self.delta({"content": step.text[start : start + step.chunk]})
        if calls:
            self.delta({"tool_calls": calls})
        self.delta({}, _finish(calls))
        self.event(json.dumps({**_envelope(), "choices": [], "usage": USAGE}))
        self.event("[DONE]")

    def delta(self, delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.event(json.dumps({**_envelope(), "choices": [choice]}))

    def event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()


def _envelope(kind: str = "chat.completion.chunk") -> dict[str, Any]:
    return {"id": "scripted", "object": kind, "model": "scripted", "created": 1}


def _finish(calls: Sequence[object]) -> str:
    return "tool_calls" if calls else "stop"
