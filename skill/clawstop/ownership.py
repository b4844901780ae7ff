"""Ownership: which living processes belong to an owner, and what proves it. Signals nobody.

In this order, and the first that says anything decides:

    run, marked     a person's or an agent's own word, in a record; holds for all `below` it
    cookie          in its environment
    cgroup          it is in the cage of a cookie (Linux)
    seen            it was seen below an owned process while that lived, in a record
    child           its parent is owned
    session         the leader of its session is owned, and alive (Linux)

A process group proves nothing: a pipeline in a person's shell is one. Nor does a session whose
leader is gone, since its number may be somebody else's by now.

macOS and Windows, and `portable=True`, know records, cookies and children, through psutil.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from . import cgroups, processes, records
from .cookies import Owner
from .paths import Paths
from .processes import LINUX, Found, Ident, Match, Missed, Owned, Sameness, Stat
from .records import WRAPPER, Record


@dataclass(frozen=True)
class Proofs:
    """What is known of processes beside their cookies.

    `strangers` (gateways, engines) are never owned, and nothing is owned because of them.
    """

    records: Mapping[Ident, Record] = field(default_factory=dict)
    folders: Sequence[Path] = ()  # of cages
    strangers: frozenset[Ident] = field(default_factory=frozenset)


NONE = Proofs()
Source = Proofs | Callable[[], Proofs]  # what is known, or how it is found out anew


def proofs(paths: Paths, strangers: Iterable[Ident]) -> Proofs:
    """What is on disk at this moment. OSError when it cannot be read: then nothing is known."""
    folders = cgroups.folders(paths.cages)
    return Proofs(records.read(paths.owned), folders, frozenset(strangers))


def find(match: Match, proofs: Proofs = NONE, *, portable: bool = False) -> list[Owned]:
    """Every living process of a matching owner. OSError when nothing can be looked at."""
    return list(scan(match, proofs, portable=portable))


def scan(
    match: Match,
    proofs: Proofs = NONE,
    *,
    portable: bool = False,
    missed: Missed | None = None,
    held: Iterable[Owned] = (),
) -> Iterator[Owned]:
    """Like `find`, one at a time, so that each can be stopped before the next is looked for.

    The `held` are known to be owned and alive: they are not given again, what is below them is.
    """
    kind = _Linux if LINUX and not portable else _Portable
    return kind(match, proofs, missed or Missed(), held).scan()


class _Look:
    """One look at all processes. Whoever is decided on is not looked at again."""

    portable = False

    def __init__(self, match: Match, proofs: Proofs, missed: Missed, held: Iterable[Owned]) -> None:
        self.match, self.proofs, self.missed = match, proofs, missed
        self.strange = {i.pid for i in proofs.strangers if not processes.gone(i)}
        self.owned = list(held)
        self.held = len(self.owned)
        self.decided = {0, 1, os.getpid(), *self.strange, *(o.ident.pid for o in self.owned)}

    def scan(self) -> Iterator[Owned]:
        yield from self._recorded(decides=True)
        yield from self._cookies()
        yield from self._caged()
        yield from self._recorded(decides=False)
        yield from self._families()

    def _decide(self, found: Found, owner: Owner, proof: str, *, wrapper: bool = False) -> bool:
        """Whether the owner matches: then it is the last of `owned`."""
        return self._settle(found, owner, proof, self.match(owner), wrapper)

    def _settle(
        self, found: Found, owner: Owner, proof: str, mine: bool, wrapper: bool = False
    ) -> bool:
        assert found.ident is not None
        self.decided.add(found.ident.pid)
        if mine:
            about = (proof, found.parent, found.command, wrapper, found.threads)
            self.owned.append(Owned(found.ident, owner, *about))
        else:
            self.missed.others.add(found.ident.pid)
        return mine

    def _recorded(self, *, decides: bool) -> Iterator[Owned]:
        known = {i: r for i, r in self.proofs.records.items() if r.decides is decides}
        alive: list[tuple[Ident, Owner]] = []
        for ident, record in known.items():
            found = None if ident.pid in self.decided else self._look_at_record(ident)
            if found is None:
                continue
            alive.append((ident, record.owner))
            if self._decide(found, record.owner, record.how, wrapper=record.how == WRAPPER):
                yield self.owned[-1]
        while decides and alive:  # what is below them is theirs, whatever it carries
            parent, owner = alive.pop()
            # Below one that a person has merely pointed at, only who carries nobody's cookie.
            state = "" if owner.lease == "asked" else owner.state
            for found in self._children_of(parent, state, 0):
                assert found.ident is not None
                alive.append((found.ident, owner))
                if self._decide(found, owner, f"below {parent.pid}"):
                    yield self.owned[-1]

    def _cookies(self) -> Iterator[Owned]:
        listed = processes.listed(self.missed.pids, self.decided, portable=self.portable)
        for found in listed:
            owner = next(filter(self.match, found.owners), None)
            if found.ident is None:
                self.missed.owned = self.missed.owned or owner is not None
            elif found.ident.pid not in self.decided and self._settle(
                found, owner or found.owners[0], "cookie", owner is not None
            ):
                yield self.owned[-1]

    def _families(self) -> Iterator[Owned]:
        done = 0
        while done < len(self.owned):
            while done < len(self.owned):
                parent = self.owned[done]
                threads = parent.threads if done >= self.held else 0  # it may have more by now
                done += 1
                for found in self._children_of(parent.ident, parent.owner.state, threads):
                    self._settle(found, parent.owner, f"child of {parent.ident.pid}", True)
                    yield self.owned[-1]
            yield from self._sessions()

    # -- what differs between systems

    def _look_at_record(self, ident: Ident) -> Found | None:
        raise NotImplementedError

    def _children_of(self, parent: Ident, state: str, threads: int) -> Iterator[Found]:
        """Children that are not decided on, and carry nobody else's cookie."""
        raise NotImplementedError

    def _caged(self) -> Iterator[Owned]:
        return iter(())

    def _sessions(self) -> Iterator[Owned]:
        return iter(())


class _Linux(_Look):
    def _look_at_record(self, ident: Ident) -> Found | None:
        def same(folder: int, stat: Stat, owners: list[Owner]) -> bool:
            return stat.start == ident.start

        return processes.look_at(ident.pid, self.missed.pids, same)

    def _children_of(self, parent: Ident, state: str, threads: int) -> Iterator[Found]:
        def mine(folder: int, stat: Stat, owners: list[Owner]) -> bool:
            ours = stat.parent == parent.pid and all(owner.state == state for owner in owners)
            return ours and processes.compare(parent) is Sameness.SAME  # nobody else has its pid

        for pid in processes.children(parent.pid, threads):
            found = None if pid in self.decided else self._look_at(pid, mine)
            if found:
                yield found

    def _look_at(self, pid: int, proves: processes.Proves) -> Found | None:
        return processes.look_at(pid, self.missed.pids, proves)

    def _caged(self) -> Iterator[Owned]:
        for cage in cgroups.cages(self.proofs.folders):

            def inside(
                folder: int, stat: Stat, owners: list[Owner], cage: cgroups.Cage = cage
            ) -> bool:
                there = cgroups.holds(cage.path, processes.read_below(folder, "cgroup"))
                return there and not self._below_a_stranger(stat.parent)

            for pid in cgroups.members(cage.path):
                found = None if pid in self.decided else self._look_at(pid, inside)
                if found and self._decide(found, cage.owner, "cgroup"):
                    yield self.owned[-1]

    def _sessions(self) -> Iterator[Owned]:
        pids = {one.ident.pid: one for one in self.owned}
        leaders = {pid: one for pid, one in pids.items() if _session(pid) == pid}
        if not leaders:
            return
        for pid in processes.everybody():
            leader = leaders.get(_session(pid)) if pid not in self.decided else None
            if leader is None:
                continue

            def led(folder: int, stat: Stat, owners: list[Owner], by: Owned = leader) -> bool:
                mine = stat.session == by.ident.pid and not owners
                same = mine and processes.compare(by.ident) is Sameness.SAME
                return same and not self._below_a_stranger(stat.parent)

            if found := self._look_at(pid, led):
                self._settle(found, leader.owner, f"session of {leader.ident.pid}", True)
                yield self.owned[-1]

    def _below_a_stranger(self, parent: int) -> bool:
        if not self.strange:
            return False
        return any(ident.pid in self.strange for ident in processes.ancestors(parent))


def _session(pid: int) -> int:
    if sys.platform == "win32":  # nobody comes here
        return -1
    try:
        return os.getsid(pid)
    except OSError:
        return -1


class _Portable(_Look):
    portable = True

    @cached_property
    def _families_seen(self) -> dict[int, list[int]]:
        return processes.families_portably()

    def _look_at_record(self, ident: Ident) -> Found | None:
        if processes.gone(ident):
            return None
        found = processes.look_portably(ident.pid, self.missed.pids)
        same = processes.compare(ident) is Sameness.SAME
        return found._replace(ident=ident) if found and same else None

    def _children_of(self, parent: Ident, state: str, threads: int) -> Iterator[Found]:
        for pid in self._families_seen.get(parent.pid, ()):
            found = None
            if pid not in self.decided:
                found = processes.look_portably(pid, self.missed.pids)
            if not found or not found.ident or found.parent != parent.pid:
                continue
            # Windows keeps naming a parent that is gone, whose pid may be another's by now.
            younger = type(found.ident.start) is not type(parent.start) or (
                found.ident.start >= parent.start
            )
            same = younger and processes.compare(parent) is Sameness.SAME
            if same and all(owner.state == state for owner in found.owners):
                yield found
