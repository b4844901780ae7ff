"""Owns the small words of a gateway test: wait until, what is alive, what the transcript says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import processes
from .client import Client
from .gateway import Gateway
from .processes import Process

POLL = 0.02  # seconds; well below anything a test measures
SHARE = 10  # one part of the time for looking: a look at all processes takes 5 ms of a core

T = TypeVar("T")


def until(probe: Callable[[], T | None], timeout: float, what: str) -> T:
    """The first true value of `probe`; TimeoutError naming `what` when there is none in time."""
    deadline = time.monotonic() + timeout
    while True:
        begun = time.monotonic()
        value = probe()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"not in {timeout:g} s: {what} (last: {value!r})")
        time.sleep(max(POLL, SHARE * (now - begun)))


def alive(gateway: Gateway, needle: str, *, anywhere: bool = False) -> list[Process]:
    """Living processes of this gateway with `needle` in their command line.

    They are told by the state folder in their environment; `anywhere` looks at every process
    instead, for children that threw their environment away: then `needle` must be unique.
    """
    if anywhere:
        return processes.running(needle)
    found = processes.carrying(gateway.state_dir)
    return [process for process in found if needle in process.command]


def in_files(gateway: Gateway) -> bool:
    """Whether this release keeps its conversations in files, and not in a database."""
    return any(gateway.state_dir.glob("agents/*/sessions/*.jsonl"))


def transcript(client: Client, session: str | None = None) -> list[str]:
    """The history as lines: `role: text <toolCall exec> [stopReason]`."""
    return [_line(message) for message in client.history(session)]


def _line(message: dict[str, Any]) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    words = [_part(part) for part in parts if isinstance(part, dict)]
    notes = [f"[{message[key]}]" for key in ("stopReason", "errorMessage") if message.get(key)]
    return " ".join([f"{message.get('role')}:", *filter(None, words), *notes])


def _part(part: dict[str, Any]) -> str:
    if "text" in part:
        return str(part["text"])
    return f"<{' '.join(filter(None, (part.get('type'), part.get('name'))))}>"
