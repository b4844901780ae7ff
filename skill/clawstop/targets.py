"""From what a person typed to what is stopped."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from . import scopes
from .errors import Ambiguous, UsageError
from .store import Store

SHORTEST = 2  # a single letter names nobody
WIDE = ("all", "everything")


@dataclass(frozen=True)
class Target:
    name: str
    scopes: list[str]  # what is latched
    sessions: list[str]  # what is bumped: known sessions, subagents before their parents
    spared: list[str]  # agents that `all` leaves alone


def resolve(
    name: str, store: Store, agents: Collection[str], *, include_main: bool = False
) -> Target:
    """`everything`, `all`, an agent's id or a part of it, or a session's key."""
    if name == "everything":
        return _target(name, store, [scopes.EVERYTHING])
    if name == "all":
        chosen = sorted(a for a in agents if include_main or a != "main") or ["main"]
        spared = sorted(set(agents) - set(chosen))
        return _target(name, store, [scopes.agent_scope(agent) for agent in chosen], spared)
    if name in agents:
        return _target(name, store, [scopes.agent_scope(name)])
    if scopes.is_session(name):
        scopes.check_key(name)
        if name in store.sessions() or scopes.agent_of(name) in agents:
            return session(name, store)
    candidates = named(name, agents)
    if len(candidates) == 1:
        return _target(name, store, [scopes.agent_scope(candidates[0])])
    if candidates:
        raise Ambiguous(f"{name} could be {', '.join(candidates)}; which one?")
    known = ", ".join(sorted(agents)) or "none"
    raise UsageError(f"no agent or session is called {name[:80]!r}; agents: {known}")


def named(name: str, agents: Collection[str]) -> list[str]:
    """Agents whose id ends with the name, or else has it somewhere: `dev1` is `zero_dev1`."""
    part = name.casefold()
    if len(part) < SHORTEST or not part.isprintable():
        return []
    ends = sorted(agent for agent in agents if agent.casefold().endswith(part))
    return ends or sorted(agent for agent in agents if part in agent.casefold())


def called(name: str, agents: Collection[str]) -> list[str]:
    """Who is meant in chat, where a name may stand in any sentence: an id, or what stands behind a
    mark in one. Part of a word names nobody: "kill it" is not about `audit`."""
    part = name.casefold()
    if part in WIDE:
        return [part]
    exact = [agent for agent in agents if agent.casefold() == part]
    ends = (f"_{part}", f"-{part}", f".{part}")
    return exact or sorted(agent for agent in agents if agent.casefold().endswith(ends))


def session(key: str, store: Store) -> Target:
    """One session with its subagent sessions, each latched by its own key."""
    family = [*store.descendants(key), key]
    return Target(key, family, family, [])


def restarted(key: str, store: Store) -> Target:
    """One session that begins anew (`/new`, `/reset`), or is taken over: what ran is over, what
    comes may run. Only its subagent sessions are latched: nobody writes to them."""
    children = store.descendants(key)
    return Target(key, children, [*children, key], [])


def _target(name: str, store: Store, wide: list[str], spared: list[str] | None = None) -> Target:
    inside = [key for key in store.sessions() if any(scopes.covers(s, key) for s in wide)]
    sessions: dict[str, None] = {}
    for key in inside:
        sessions.update(dict.fromkeys(store.descendants(key)))
    # A subagent may run under another agent's id: it is latched by its own key.
    outside = [key for key in sessions if key not in inside]
    for key in inside:
        sessions.setdefault(key)
    return Target(name, [*wide, *outside], list(sessions), spared or [])
