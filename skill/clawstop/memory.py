"""What an agent remembers after a stop: which conversations are rolled back, to where, and when.

Only when every process is proven dead, only while the session is still stopped, and never what a
person has said since. What cannot be done yet is on record, and the next stop does it.
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
from weakref import WeakValueDictionary

from . import backups, scopes
from .bridges import Bridges
from .errors import ClawstopError, NotNow, UsageError
from .paths import Paths
from .redaction import redact
from .settings import Settings
from .store import Store
from .targets import Target
from .transcripts import Agents, Files, Hosted, Move, Transcripts
from .turns import Cut

Cuts = dict[str, Cut]  # session -> where it is cut

log = logging.getLogger("clawstop.memory")

NOTES = ("MEMORY.md", "memory.md", "memory/**/*")  # what an agent writes down for itself
MOST_NOTES = 20


@dataclass(frozen=True)
class Wanted:
    """What a stop shall do to memories."""

    rule: str = ""  # which setting decides: stop, kill; none: nothing is taken away
    turns: int = 0  # so many turns, instead of what was going on
    entry: str = ""  # or from this entry on
    named: bool = False  # the person named an agent or a session, which may be idle
    offline: bool = False  # and no gateway ran: its last turn is what they mean


@dataclass
class Rolled:
    """What came of it: rows of a receipt. `again` when a gateway that comes back can do more."""

    rows: list[Move] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    again: bool = False


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

    # -- what goes

    def cuts(self, stop: str, wanted: Wanted, target: Target, bumped: Mapping[str, int]) -> Cuts:
        """What goes, of every session that a stop is about."""
        chosen = Cut(entry=wanted.entry, turns=wanted.turns)
        if chosen == Cut() and not self._settings().rollback.get(wanted.rule):
            return {}
        since: dict[str, float] = {}
        for session, begun in self._store.tasks(stop, bumped).items():
            for key in (session, *self._store.descendants(session)):
                since[key] = min(begun, since.get(key, begun))
        found = {key: Cut(since=begun) for key, begun in since.items()}
        for session in bumped:
            if waiting := self._store.postponed(session):
                found[session] = Cut(**waiting)
        if chosen != Cut():
            active = [key for key in found if key not in self._children(found)]
            return found | dict.fromkeys(active or self._idle(target), chosen)
        if not found and wanted.named:
            last = Cut(turns=1) if wanted.offline else Cut(unfinished=True)
            return dict.fromkeys(self._idle(target), last)
        return found

    def _children(self, sessions: Iterable[str]) -> set[str]:
        return {child for key in sessions for child in self._store.descendants(key)}

    def _idle(self, target: Target) -> list[str]:
        """The one conversation that is meant when nothing runs: the named one, or the agent's
        last."""
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
        rows = []
        for session, cut in self.cuts(stop, wanted, target, self._next(target)).items():
            try:
                first = await self._of(session).find(session, cut)
            except ClawstopError as error:
                rows.append({"session": session, "text": "", "why": str(error)})
                continue
            if first:
                rows.append({"session": session, "entry": first.id, "text": redact(first.text)})
        return rows

    def _next(self, target: Target) -> dict[str, int]:
        return {key: self._store.generation(key) + 1 for key in target.sessions}

    # -- rolling back

    async def roll_back(self, stop: str, target: Target, cuts: Cuts, unverified: bool) -> Rolled:
        rolled = Rolled()
        if cuts:
            folders = self._workspaces(target)
            rolled.notes = await asyncio.to_thread(_notes, folders, cuts)
        for session, cut in cuts.items():
            generation = self._store.generation(session)
            async with self.quiet(session):
                try:
                    await self._one(stop, session, cut, generation, unverified, rolled)
                except (ClawstopError, OSError) as error:
                    rolled.problems.append(f"the memory of {session} was not touched: {error}")
        return rolled

    async def _one(
        self, stop: str, session: str, cut: Cut, generation: int, unverified: bool, rolled: Rolled
    ) -> None:
        released = self._store.standing(session).latched_since is None
        if released and backups.of(self._logs(session), stop, session) is None:
            self._store.rolled_back(session, None)
            rolled.rows.append({"session": session, "why": "gone_on"})
            return
        self._store.postpone(session, vars(cut), generation)
        if unverified:
            rolled.rows.append({"session": session, "why": "alive"})
            return
        about = {"session": session, "generation": generation, "receipt": stop}
        try:
            move = await self._of(session).remove(session, cut, about)
        except NotNow:
            rolled.again = True
            raise
        self._store.rolled_back(session, generation if move else None)
        if move:
            rolled.rows.append({**move, "text": redact(move["text"])})
            self._prune(session)

    def _logs(self, session: str) -> Path:
        return backups.folder(self._agents.folder(session))

    def _prune(self, session: str) -> None:
        settings = self._settings()
        try:
            oldest = self._clock() - settings.backups_days * 86400
            backups.prune(self._logs(session), settings.backups_keep, oldest)
        except OSError as error:
            log.error("old backups stay: %s", error)

    # -- bringing back

    async def restore(self, moves: list[Move], *, force: bool) -> tuple[str, list[Move]]:
        """Undo these moves; gives an id and the moves that did it, which can be undone too."""
        prepared = [
            await self._of(move["session"]).prepare(move, force=force) for move in reversed(moves)
        ]
        id = secrets.token_hex(8)
        self._store.begin_restore(id, prepared)
        await self._carry_out(id, prepared)
        return id, prepared

    async def resume(self) -> None:
        """Finish what a crash has cut off."""
        for id, moves in self._store.restores():
            try:
                await self._carry_out(id, moves)
            except ClawstopError as error:
                log.error("restore %s was cut off and cannot be finished: %s", id, error)
                self._store.finish_restore(id)

    async def _carry_out(self, id: str, moves: list[Move]) -> None:
        try:
            for move in moves:
                session = move["session"]
                async with self.quiet(session):
                    await self._of(session).carry_out(move)
                    back = move["did"] == "restore"
                    generation = None if back else self._store.generation(session)
                    self._store.rolled_back(session, generation)
        except NotNow:
            raise  # the next start tries again
        except ClawstopError:
            self._store.finish_restore(id)
            raise
        self._store.finish_restore(id)

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


def _notes(folders: Iterable[Path], cuts: Cuts) -> list[str]:
    """Files in which an agent keeps what it wants to remember, changed during the task. They are
    named, not altered."""
    begun = min((cut.since for cut in cuts.values() if cut.since), default=0.0)
    found = set()
    for folder in folders if begun else ():
        for pattern in NOTES:
            for file in folder.glob(pattern):
                with contextlib.suppress(OSError):
                    if file.is_file() and file.stat().st_mtime >= begun:
                        found.add(str(file))
    return sorted(found)[:MOST_NOTES]
