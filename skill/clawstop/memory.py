"""What an agent remembers after a stop: which conversations are rolled back, to where, and when.

Only when every process is proven dead, only while the session is still stopped or the message that
took over still waits, and never what a person has said since. What cannot be done yet is on record,
and the next stop does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from . import backups, scopes
from .bridges import Bridges
from .errors import ClawstopError, GoneOn, Held, NotNow, StoreError, TranscriptError, UsageError
from .paths import Paths
from .redaction import redact
from .settings import Settings
from .store import Store
from .targets import Target
from .transcripts import Agents, Files, Hosted, Move, Transcripts
from .turns import Cut

log = logging.getLogger("clawstop.memory")

NOTES = ("MEMORY.md", "memory.md", "memory/**/*")  # what an agent writes down for itself
MOST_NOTES = 20
UNTOUCHED = "the memory of "  # how every problem with one begins


@dataclass(frozen=True)
class Wanted:
    """What a stop shall do to memories."""

    rule: str = ""  # which setting decides: stop, kill, takeover; none: nothing is taken away
    turns: int = 0  # so many turns, instead of what was going on
    entry: str = ""  # or from this entry on
    named: bool = False  # the person named an agent or a session, which may be idle
    offline: bool = False  # and no gateway ran: its last turn is what they mean
    late: bool = False  # the stop was cut off, and is finished now


@dataclass(frozen=True)
class Plan:
    """One rollback: of which stop it is, where it cuts, and the generation that nobody may have
    used since."""

    stop: str
    cut: Cut
    generation: int
    latched: bool = True  # else a message that takes over waits at the gateway,
    late: bool = False  # unless that was long ago


Plans = dict[str, Plan]  # by session


@dataclass(frozen=True)
class Restored:
    """What a restore did: its id, of which receipt or backup it is, and what it could not do."""

    id: str
    of: str
    who: str
    moves: list[Move]
    left: list[str]


@dataclass
class Rolled:
    """What came of it: rows of a receipt. `again` when a gateway that comes back can do more,
    `held` when somebody only has to let go of a transcript."""

    rows: list[Move] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    again: bool = False
    held: bool = False


class Memory:
    def __init__(
        self,
        paths: Paths,
        store: Store,
        bridges: Bridges,
        *,
        settings: Callable[[], Settings],
        workspaces: Callable[[Target], list[Path]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._agents = Agents(paths)
        self._store = store
        self._bridges = bridges
        self._files = Files(self._agents, bridges)
        self._hosted = Hosted(self._agents, bridges)
        self._settings = settings
        self._workspaces = workspaces
        self._clock = clock
        # Each lives as long as somebody holds it, or waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def quiet(self, session: str) -> AsyncIterator[None]:
        """No release of this session while its memory is changed, and the other way round."""
        lock = self._locks.setdefault(session, asyncio.Lock())
        async with lock:
            yield

    def _of(self, session: str) -> Transcripts:
        return self._hosted if self._agents.hosted(session) else self._files

    def _by(self, move: Move) -> Transcripts:
        return self._hosted if move["store"] == "host" else self._files

    # -- what goes

    def plan(
        self, stop: str, wanted: Wanted, target: Target, bumped: Mapping[str, int], *, unseen: bool
    ) -> Plans:
        """What goes, of every session that a stop is about; `unseen` when no gateway told."""
        chosen, latched = Cut(entry=wanted.entry, turns=wanted.turns), wanted.rule != "takeover"
        if chosen == Cut() and not self._settings().rollback.get(wanted.rule):
            return {}
        since: dict[str, float] = {}
        for session, begun in self._store.tasks(stop, bumped, unseen=unseen).items():
            for key in (session, *self._store.descendants(session)):
                since[key] = min(begun, since.get(key, begun))
        cuts = {key: Cut(since=begun) for key, begun in since.items()}
        if chosen != Cut():
            active = [key for key in cuts if key not in self._children(cuts)]
            cuts |= dict.fromkeys(active or self._idle(wanted, target), chosen)
        elif not cuts:
            last = Cut(turns=1) if wanted.offline else Cut(unfinished=True)
            idle = set(self._idle(wanted, target)) - self._store.still_clean(bumped)
            cuts = dict.fromkeys(idle, last)
        plans = {
            key: Plan(stop, cut, bumped.get(key, self._store.generation(key)), latched, wanted.late)
            for key, cut in cuts.items()
        }
        for session in bumped:
            if waiting := self._store.waiting_rollback(session):
                of, cut, generation = waiting
                plans[session] = Plan(of, Cut(**cut), generation)
        return plans

    def _children(self, sessions: Iterable[str]) -> set[str]:
        return {child for key in sessions for child in self._store.descendants(key)}

    def _idle(self, wanted: Wanted, target: Target) -> list[str]:
        """The one conversation that is meant when nothing runs: the named one, or the agent's
        last."""
        if not wanted.named:
            return []
        if target.name in target.sessions:
            return [target.name]
        agent = next((scope for scope in target.scopes if not scopes.is_session(scope)), "")
        one = f"{agent}:"  # any of its sessions
        if self._agents.hosted(one):
            newest = self._store.last_run_in(target.sessions)
        else:
            newest = self._files.newest(one)
        return [newest] if newest else []

    async def preview(self, wanted: Wanted, target: Target, stop: str) -> list[Move]:
        """What a stop would take away."""
        bumped = {key: self._store.generation(key) + 1 for key in target.sessions}
        rows = []
        for session, plan in self.plan(stop, wanted, target, bumped, unseen=True).items():
            try:
                first = await self._of(session).find(session, plan.cut)
            except ClawstopError as error:
                rows.append({"session": session, "text": "", "why": str(error)})
                continue
            if first:
                rows.append({"session": session, "entry": first.id, "text": redact(first.text)})
        return rows

    # -- rolling back

    async def roll_back(
        self, target: Target, plans: Plans, bumped: Mapping[str, int], unverified: bool
    ) -> Rolled:
        rolled = Rolled()
        for session in self._store.still_clean(bumped):
            self._store.set_clean(session, True)
        if plans:
            folders = self._workspaces(target)
            rolled.notes = await asyncio.to_thread(_notes, folders, plans)
        for session, plan in plans.items():
            async with self.quiet(session):
                try:
                    await self._one(session, plan, unverified, rolled)
                except Exception as error:  # whatever lies in a folder, the stop has its receipt
                    if not isinstance(error, ClawstopError | OSError):
                        log.exception("the memory of %s", session)
                    rolled.again |= isinstance(error, NotNow)
                    held = isinstance(error, Held)
                    rolled.held |= held
                    why = f"{error}{Held.later if held and list(self._bridges) else ''}"
                    rolled.problems.append(f"{UNTOUCHED}{session} was not touched: {why}")
        return rolled

    async def _one(self, session: str, plan: Plan, unverified: bool, rolled: Rolled) -> None:
        done = self._store.rollback_of(plan.stop, session)
        if done:  # before a crash
            rolled.rows.append(done)
            return
        unlatched = self._store.standing(session).latched_since is None
        gone_on = unlatched if plan.latched else plan.late
        gone_on |= self._store.ran_since(session, plan.generation)
        if gone_on and not self._begun(session, plan):
            self._store.drop_rollbacks(session)
            rolled.rows.append({"session": session, "why": "gone_on"})
            return
        self._store.plan_rollback(plan.stop, session, vars(plan.cut), plan.generation)
        if unverified:
            rolled.rows.append({"session": session, "why": "alive"})
            return
        about = {"session": session, "generation": plan.generation, "receipt": plan.stop}
        try:
            move = await self._of(session).remove(session, plan.cut, about)
        except GoneOn:
            self._store.drop_rollbacks(session)
            rolled.rows.append({"session": session, "why": "gone_on"})
            return
        if move is None:
            self._store.drop_rollbacks(session)
            if plan.cut.entry or plan.cut.turns:
                rolled.rows.append({"session": session, "why": "not_there"})
            return
        row = {**move, "text": redact(move["text"])}
        rolled.rows.append(row)
        try:
            self._store.made_rollback(plan.stop, session, row)
        except StoreError as error:
            rolled.problems.append(f"{error}; the memory of {session} is rolled back")

    def _begun(self, session: str, plan: Plan) -> bool:
        """Whether its backup is there: then a crash has cut the rollback off, or its record."""
        try:
            where = backups.folder(self._agents.folder(session))
        except TranscriptError:
            return False
        return backups.of(where, plan.stop, session) is not None

    def prune(self) -> None:
        """Old backups go."""
        settings = self._settings()
        oldest = self._clock() - settings.backups_days * 86400
        for where in self._agents.backups():
            try:
                backups.prune(where, settings.backups_keep, oldest)
            except OSError as error:
                log.error("old backups stay: %s", error)

    # -- bringing back

    async def restore(self, moves: list[Move], of: str, who: str, *, force: bool) -> Restored:
        """Undo these moves. What did it can be undone too."""
        busy = {session for _, session, _ in self._store.live_runs()}
        for session in (move["session"] for move in moves):
            if session in busy and self._store.standing(session).latched_since is None:
                raise TranscriptError(f"{session} is at work; stop it first")
        prepared = [await self._by(move).prepare(move, force=force) for move in reversed(moves)]
        id = secrets.token_hex(8)
        about = {"of": of, "who": who, "moves": prepared}
        self._store.begin_restore(id, about)
        return await self.finish(id, about)

    def cut_off(self) -> list[tuple[str, dict[str, Any]]]:
        """Restores that a crash has cut off."""
        return self._store.restores()

    async def finish(self, id: str, about: dict[str, Any]) -> Restored:
        """Do what was prepared. Done again, it goes on. When nothing could be done it raises."""
        done: list[Move] = []
        errors: list[ClawstopError] = []
        for move in about["moves"]:
            session = move["session"]
            async with self.quiet(session):
                try:
                    await self._by(move).carry_out(move)
                    self._store.set_clean(session, move["did"] == "remove")
                    done.append(move)
                except ClawstopError as error:
                    errors.append(error)
        self._store.finish_restore(id)
        if errors and not done:
            raise errors[0]
        return Restored(id, about["of"], about["who"], done, [str(error) for error in errors])

    def from_backup(self, file: Path, session: str) -> Move:
        """The move that a backup is of. `session` says whose, where the file does not."""
        backup = backups.read(file)
        key = session or str(backup.header.get("session") or "") or self._files.whose(backup)
        if not key:
            raise UsageError(f"{file.name} does not say whose it is; add --session KEY")
        scopes.check_key(key)
        if "branch" in backup.header:
            return self._hosted.move_of(backup, key)
        return self._files.move_of(backup, key)


def _notes(folders: Iterable[Path], plans: Plans) -> list[str]:
    """Files in which an agent keeps what it wants to remember, changed during the task. They are
    named, not altered."""
    begun = min((plan.cut.since for plan in plans.values() if plan.cut.since), default=0.0)
    found = set()
    for folder in folders if begun else ():
        for pattern in NOTES:
            for file in folder.glob(pattern):
                with contextlib.suppress(OSError):
                    if file.is_file() and file.stat().st_mtime >= begun:
                        found.add(str(file))
    return sorted(found)[:MOST_NOTES]
