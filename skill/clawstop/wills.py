"""The last will of a session: what an agent, or its task, wants known if it is cut off.

One private file a session, readable without the engine, 16 KB at most:
`{agent, task, progress, last_action, timestamp, can_resume, note_to_self, ...}`. Fields of one's
own are kept. Nothing ever depends on there being one. Standard library only, as flags.py.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoints import file_of
from .errors import StoreError, UsageError
from .paths import private_folder, read_json, write_private
from .scopes import agent_of

MOST = 16 * 1024  # bytes: it is read in a chat, and by a model
SHOWN = 300  # characters of one field that are quoted


def write(folder: Path, session: str, told: Mapping[str, Any]) -> Path:
    """Durable when it returns. What it says replaces what an earlier one said."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    will = {"agent": agent_of(session), "can_resume": True, **told}
    will |= {"session": session, "timestamp": now}
    if not isinstance(will["can_resume"], bool):
        raise UsageError("can_resume is true or false")
    try:
        data = json.dumps(will, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"a will is plain JSON: {error}") from None
    if len(data) > MOST:
        raise UsageError(f"a will has at most {MOST} bytes, this one has {len(data)}")
    file = file_of(folder, session)
    try:
        private_folder(folder)
        write_private(file, data)
    except OSError as error:
        raise StoreError(f"the will is not saved: {error}") from error
    return file


def read(folder: Path, session: str) -> dict[str, Any] | None:
    """What was written last; None when there is none, or none of ours."""
    found = read_json(file_of(folder, session))
    return found if found and found.get("session") == session else None


def written(will: Mapping[str, Any]) -> float:
    """When, in seconds; 0 when that cannot be told."""
    try:
        return datetime.datetime.fromisoformat(str(will.get("timestamp"))).timestamp()
    except ValueError:
        return 0.0


def quoted(will: Mapping[str, Any]) -> str:
    """The parts that help whoever goes on, in one line."""
    parts = [will.get(key) for key in ("task", "progress", "last_action", "note_to_self")]
    texts = [
        part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    ]
    return "; ".join(" ".join(text.split())[:SHOWN] for text in texts)
