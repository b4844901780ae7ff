"""Checkpoints: where a task was, on disk at once, for whoever goes on with it.

One private file for each task, replaced in one step:
`{version, sessionId, task, checkpoints: [{name, data, timestamp}], timestamp, finished}`.
The newest ones are kept, for a week. Standard library only, as flags.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import StoreError, UsageError
from .flags import MAX_TIME, encoded
from .paths import private_folder, trusted_folder, user, write_private

VERSION = 1
FOLDER = "AGENT_STATE_DIR"
KEPT = 20  # of one task
MOST = 1 << 20  # bytes of one checkpoint's data: it is a place, not a copy of the work
LARGEST = (KEPT + 1) * (MOST + 4096)  # bytes of a file that may be ours
MAX_NAME = 200  # characters
MAX_FILE = 200  # bytes of a file's name, with room for what is written beside it
DAYS = 7.0
HALF_SECONDS = 86400.0  # a save takes some milliseconds


@dataclass
class State:
    """What is known of one task."""

    session: str
    task: str = ""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    at: float = 0.0  # seconds
    finished: bool = False  # by itself: there is nothing to go on with

    @property
    def last(self) -> dict[str, Any] | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def as_dict(self) -> dict[str, Any]:
        about = {"version": VERSION, "sessionId": self.session, "task": self.task}
        told = {"checkpoints": self.checkpoints, "timestamp": round(self.at * 1000)}
        return {**about, **told, "finished": self.finished}


def folder(private: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Where they are kept: as configured, or in clawstop's own folder."""
    return Path(environ.get(FOLDER) or private)


def file_of(place: Path, session: str, task: str = "") -> Path:
    name = f"{encoded(session)}@{encoded(task)}" if task else encoded(session)
    if len(name) > MAX_FILE:
        digest = hashlib.sha256(name.encode()).hexdigest()[:32]
        name = f"{name[: MAX_FILE - 40]}+{digest}"  # as in flags.encoded
    return place / f"{name}.json"


def checkpoint(name: str, data: Any, now: float) -> dict[str, Any]:
    """One checkpoint, if it can be written down; UsageError says why not."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        raise UsageError(f"a checkpoint needs a name of 1 to {MAX_NAME} characters")
    one = {"name": name, "data": data, "timestamp": round(now * 1000)}
    try:
        text = json.dumps(one, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"checkpoint {name!r}: its data is not JSON: {error}") from None
    if len(text) > MOST:
        raise UsageError(f"checkpoint {name!r}: {len(text)} bytes are more than {MOST}")
    return dict(json.loads(text))  # as it will be read


def save(place: Path, state: State) -> Path:
    """Durable when it returns; StoreError where the disk refuses, and the old file stays."""
    file = file_of(place, state.session, state.task)
    state.checkpoints = state.checkpoints[-KEPT:]
    try:
        if place.is_dir():
            trusted_folder(place)
        else:
            private_folder(place)
        write_private(file, json.dumps(state.as_dict(), ensure_ascii=False).encode(*_UTF8))
    except OSError as error:
        raise StoreError(f"the checkpoint is not saved: {error}") from error
    return file


_UTF8 = ("utf-8", "surrogatepass")
_HALF = re.compile(r"\..+\.json\.[a-z0-9_]{8}")  # as write_private names what it has not finished


def load(file: Path, now: float | None = None) -> State | None:
    """What a file holds; None for one that is not there, not ours, damaged, or too old."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with os.fdopen(os.open(file, flags), "rb") as stream:
            info = os.fstat(stream.fileno())
            if not stat.S_ISREG(info.st_mode) or info.st_uid != user() or info.st_size > LARGEST:
                return None
            found = json.loads(stream.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("sessionId"), str):
        return None
    if found.get("version") != VERSION:
        return None
    listed, at = found.get("checkpoints"), found.get("timestamp")
    seconds = info.st_mtime
    if isinstance(at, int | float) and 0 <= at <= MAX_TIME:
        seconds = at / 1000
    if seconds < (time.time() if now is None else now) - DAYS * 86400:
        return None
    return State(
        found["sessionId"],
        str(found.get("task") or ""),
        [one for one in listed if _is_one(one)] if isinstance(listed, list) else [],
        seconds,
        found.get("finished") is True,
    )


def _is_one(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and "data" in value


def listing(place: Path) -> list[State]:
    """Every task's, the newest first."""
    files = sorted(place.glob("*.json")) if place.is_dir() else []
    found = [state for state in map(load, files) if state]
    return sorted(found, key=lambda state: -state.at)


def prune(place: Path, now: float) -> None:
    """Take away what is too old to go on with, and what a kill has left half written."""
    for file in place.glob("*.json") if place.is_dir() else ():
        state = load(file, -math.inf)  # whatever its age; the folder may hold other things
        ours = state and file == file_of(place, state.session, state.task)
        if state and ours and state.at < now - DAYS * 86400:
            with contextlib.suppress(OSError):
                file.unlink()
    for file in place.glob(".*.json.*") if place.is_dir() else ():
        with contextlib.suppress(OSError):
            info = os.lstat(file)
            mine = stat.S_ISREG(info.st_mode) and info.st_uid == user()
            if mine and _HALF.fullmatch(file.name) and info.st_mtime < now - HALF_SECONDS:
                file.unlink()
