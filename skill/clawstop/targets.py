"""From what a person typed to what is stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import scopes
from .agents import normal_id
from .errors import Ambiguous, UsageError
from .names import Names, fold
from .store import Store
from .words import say

WIDE = ("all", "everything")
ALL = ("全部", "所有", "所有人", "全部智能体", "所有智能体")  # `all`, as it is said in Chinese
SHOWN = 9  # of several that go by a name: each has a digit


@dataclass(frozen=True)
class Target:
    name: str
    scopes: list[str]  # what is latched
    sessions: list[str]  # what is bumped: known sessions, subagents before their parents
    spared: list[str]  # agents that `all` leaves alone


def resolve(
    name: str,
    store: Store,
    names: Names,
    labels: Mapping[str, str] | None = None,
    *,
    include_main: bool = False,
) -> Target:
    """`everything`, `all`, an agent by any of its names, or a session by its key, the end of its
    key, or its label. `labels` are by session."""
    if wide(name) or name in names.ids or name in map(scopes.agent_scope, names.everybody):
        return exact(name, store, names.ids, include_main=include_main)
    if scopes.is_session(name):
        scopes.check_key(name)
        if name in store.sessions() or scopes.agent_of(name) in names.everybody:
            return session(name, store)
    found = called(name, names, store, labels)
    if len(found) == 1:
        return exact(full(found[0]), store, names.ids)
    if found:
        lines = [say("could_be", name=name), *(f"  {line}" for line in numbered(found, names))]
        raise Ambiguous("\n".join(lines), [full(one) for one in found[:SHOWN]])
    near = names.nearest(name)
    told = ("no_target_near", ", ".join(near)) if near else ("no_target", few(names.ids))
    raise UsageError(say(told[0], name=repr(name[:80]), agents=told[1]))


def exact(name: str, store: Store, ids: Sequence[str], *, include_main: bool = False) -> Target:
    """The same for a name that is nobody's guess: `everything`, `all`, an agent's id or scope, or
    a session's key. An agent need not be known: somebody has stopped it."""
    if word := wide(name):
        if word == "everything":
            return _target(word, store, [scopes.EVERYTHING])
        alone = not set(ids) - {"main"}
        everybody = {*ids, *map(scopes.agent_of, store.sessions()), *(["main"] if alone else ())}
        chosen = sorted(a for a in everybody if a != "main" or alone or include_main)
        spared = sorted(set(ids) - set(chosen))
        return _target(word, store, [scopes.agent_scope(agent) for agent in chosen], spared)
    if scopes.is_session(name):
        return session(scopes.check_key(name), store)
    id = name.removeprefix("agent:")
    if id not in ids and normal_id(id) != id:
        raise UsageError(f"{name[:80]!r} is no agent's id")
    return _target(id, store, [scopes.agent_scope(id)])


def wide(name: str) -> str:
    """The word for many agents that this is, however it is written; else nothing."""
    folded = fold(name)
    return folded if folded in WIDE else "all" if folded in ALL else ""


def full(name: str) -> str:
    """An agent's scope, a session's key: an agent may be called `all`."""
    return name if scopes.is_session(name) else scopes.agent_scope(name)


def called(
    name: str, names: Names, store: Store, labels: Mapping[str, str] | None = None
) -> list[str]:
    """Agents or sessions that go by that name: those that surely do before those that may."""
    return names.find(name, plain=True) or _sessions(name, store, labels or {}) or names.find(name)


def meant(name: str, names: Names) -> list[str]:
    """Who is meant in a sentence, where a name may be a word."""
    return [wide(name)] if wide(name) else names.find(name, plain=True)


def numbered(found: list[str], names: Names) -> list[str]:
    """A line for each, with the number that chooses it."""
    told = [f"{place}. {names.called(one)}" for place, one in enumerate(found[:SHOWN], 1)]
    return [*told, f"... {len(found) - SHOWN} more"] if len(found) > SHOWN else told


def _sessions(name: str, store: Store, labels: Mapping[str, str]) -> list[str]:
    """By the label, or by the last parts of the key: `telegram:direct:42`."""
    wanted = fold(name)
    by_label = sorted(key for key, label in labels.items() if fold(label) == wanted)
    ends = (key for key in {*store.sessions(), *labels} if key.endswith(f":{name}"))
    return by_label or (sorted(ends) if name else [])


def few(names: list[str]) -> str:
    told = ", ".join(sorted(names)[:SHOWN]) or "none"
    return f"{told} and {len(names) - SHOWN} more" if len(names) > SHOWN else told


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
