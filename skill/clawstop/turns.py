"""What a transcript's entries mean, and where in them a task begins.

A transcript is a tree that only grows. Each entry names the one before it, and the conversation is
the walk from the newest entry to the root: the active branch. A turn begins with a person's message
and goes on until the agent has said its last word; a message that came in while a tool ran was
steered into the turn, and belongs to it.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

INJECTED = frozenset({"gateway-injected", "delivery-mirror"})  # the host's own lines, no model's
SHOWN = 80  # characters of a message that a receipt quotes


@dataclass(frozen=True)
class Call:
    """A tool that the agent asked for."""

    id: str
    tool: str
    given: str


@dataclass(frozen=True)
class Entry:
    """One entry, as far as it matters here. `offset` is where its line begins, in a file."""

    kind: str  # session (the header), message, compaction, custom, label, ...
    id: str = ""
    parent: str | None = None
    target: str | None = None  # of a `leaf`: the entry at which the conversation goes on
    at: float | None = None  # seconds
    role: str = ""  # of a message: user, assistant, toolResult
    last_word: bool = False  # the agent has said all it wanted to
    injected: bool = False
    text: str = ""
    calls: tuple[Call, ...] = ()  # the tools it wants, of an agent's message
    answers: str = ""  # the call that a tool's result is for
    stop: str = ""  # why the model ended there
    offset: int = 0

    @property
    def said(self) -> bool:
        """A message of the conversation: a person's, the agent's, or a tool's."""
        return self.kind == "message" and not self.injected


@dataclass(frozen=True)
class Cut:
    """Where a conversation is cut; the first of these that is set."""

    entry: str = ""  # at this entry
    turns: int = 0  # before the last so many turns
    since: float = 0.0  # at the first message of that time or later, in seconds
    unfinished: bool = False  # before the last turn, if it was cut off

    def find(self, branch: Iterable[Entry]) -> Entry | None:
        """The first entry to go, of a branch that is told newest first; None: nothing goes."""
        if self.entry:
            return next((one for one in branch if one.id == self.entry), None)
        if self.turns:
            beginnings = turns(branch)
            return next((one for n, one in enumerate(beginnings, 1) if n == self.turns), None)
        if self.since:
            return _since(branch, self.since)
        return _unfinished(branch) if self.unfinished else None


def parse(line: bytes | str, offset: int = 0) -> Entry | None:
    """An entry from its line; None for what is none. Bad bytes do no harm, as in the host."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return read(value, offset) if isinstance(value, dict) else None


def read(value: dict[str, Any], offset: int = 0) -> Entry | None:
    kind = value.get("type")
    if not isinstance(kind, str):
        return None
    message = value.get("message")
    message = message if isinstance(message, dict) else {}
    parent, target = value.get("parentId"), value.get("targetId")
    text = _text(message.get("content"))
    return Entry(
        kind=kind,
        id=str(value.get("id") or ""),
        parent=parent if isinstance(parent, str) else None,
        target=target if isinstance(target, str) else None,
        at=_seconds(value.get("timestamp")),
        role=str(message.get("role") or ""),
        last_word=_is_last_word(message),
        injected=str(message.get("model")) in INJECTED,
        text=_ENVELOPE.sub("", text, count=1)[:SHOWN].encode("utf-8", "replace").decode(),
        calls=_calls(message.get("content")) if message.get("role") == "assistant" else (),
        answers=str(message.get("toolCallId") or ""),
        stop=str(message.get("stopReason") or ""),
        offset=offset,
    )


def branch(newest_first: Iterable[Entry]) -> Iterator[Entry]:
    """The active branch, newest first. Old transcripts know no parents: there, all of it."""
    wanted: str | None = None
    for entry in newest_first:
        if entry.kind == "session":
            continue
        if entry.kind == "leaf":
            if wanted is None and entry.target is None:
                return  # it was taken back to before its first entry
            wanted = wanted or entry.target
        elif wanted is None or entry.id == wanted:
            yield entry
            if entry.id and entry.parent is None:
                return
            wanted = entry.parent


def turns(branch: Iterable[Entry]) -> Iterator[Entry]:
    """The messages that turns begin with, newest first."""
    asked: Entry | None = (
        None  # a person's message; whether it begins a turn is told by the one before
    )
    for entry in filter(lambda entry: entry.said, branch):
        if asked and entry.role != "toolResult":  # else it was steered in
            yield asked
        asked = entry if entry.role == "user" else None
    if asked:
        yield asked


def _since(branch: Iterable[Entry], since: float) -> Entry | None:
    """Never past the last word of an older turn, whatever the clock says."""
    first: Entry | None = None
    for entry in filter(lambda entry: entry.said, branch):
        asked = first is not None and first.role == "user"
        if entry.at is None or entry.at < since or (asked and entry.last_word):
            break
        if not asked or entry.role == "user":
            first = entry
    return first


def _unfinished(branch: Iterable[Entry]) -> Entry | None:
    said = (entry for entry in branch if entry.said)
    newest = next(said, None)
    if newest is None or newest.last_word:
        return None
    return next(turns(chain([newest], said)), None)


def _is_last_word(message: dict[str, Any]) -> bool:
    if message.get("role") != "assistant" or str(message.get("stopReason")) in _CUT_OFF:
        return False
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return not any(isinstance(part, dict) and part.get("type") == "toolCall" for part in parts)


# What older hosts put before a person's words: who wrote them, and when.
_ENVELOPE = re.compile(r"\ASender \(untrusted metadata\):\s*```.*?```\s*(?:\[[^\]\n]*\]\s*)?", re.S)
_CUT_OFF = frozenset({"aborted", "error", "toolUse"})


def _calls(content: Any) -> tuple[Call, ...]:
    parts = content if isinstance(content, list) else []
    found = [part for part in parts if isinstance(part, dict) and part.get("type") == "toolCall"]
    return tuple(
        Call(str(part.get("id") or ""), str(part.get("name") or ""), _given(part.get("arguments")))
        for part in found
    )


def _given(arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return text[:SHOWN].encode("utf-8", "replace").decode()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return " ".join(text for text in texts if isinstance(text, str))


def _seconds(value: Any) -> float | None:
    """A time of the host's: milliseconds, or an ISO date."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value / 1000
        return datetime.datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
