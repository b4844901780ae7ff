"""What a stop covers: everything, one agent, or one session.

A scope is a plain string, so that it can be stored, sent and compared:

    "*"                    everything
    "agent:dev1"           every session of an agent, also those that do not exist yet
    "agent:dev1:main"      one session
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .errors import UsageError

EVERYTHING = "*"
MAX_KEY = 512  # the host's longest session keys are under 200 characters; a longer one is an attack


def is_session(scope: str) -> bool:
    return scope.startswith("agent:") and scope.count(":") >= 2


def agent_of(session: str) -> str:
    """The agent id inside `agent:<id>:<rest>`, or "main" for the host's short keys."""
    parts = session.split(":", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "agent" else "main"


def agent_scope(agent: str) -> str:
    return f"agent:{agent}"


def covers(scope: str, session: str) -> bool:
    if scope in (EVERYTHING, session):
        return True
    return not is_session(scope) and scope == agent_scope(agent_of(session))


def is_wide(scopes: Iterable[str], session: str) -> bool:
    """Whether one of these scopes holds all of the session's agent."""
    return any(not is_session(scope) and covers(scope, session) for scope in scopes)


def latched(mirror: Mapping[str, Any], session: str) -> bool:
    """Whether a mirror (see `Store.mirror`) has a latch on the session that nobody released."""
    released = mirror["sessions"].get(session, [0, 0])[1]
    return any(
        number > released and covers(scope, session) for scope, number in mirror["latches"].items()
    )


def check_key(key: str) -> str:
    """A session key from outside, or UsageError. It is data and never becomes a path."""
    if not key or len(key) > MAX_KEY or not key.isprintable():
        raise UsageError(f"not a session key: {key[:80]!r}")
    return key
