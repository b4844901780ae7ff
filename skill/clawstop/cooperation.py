"""Tasks that cooperate: the engine tells them of a stop at once, leaves flags for those that only
look at files, and hears from who has left in order.

A flag of a stop is written before anybody is signalled, under the session's key and the host's own
id, is renewed while the stop is not done, and goes with it. It asks for no stop itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import checkpoints, flags, scopes
from .agents import shown
from .errors import ClawstopError, NotPermitted
from .params import Params, number, text
from .paths import Paths
from .protocol import Peer
from .settings import Settings
from .store import Store

log = logging.getLogger("clawstop.cooperation")

RENEW = 3.0  # a flag is renewed so often in the time that it counts
MOST = 50  # notices kept for receipts
WRITE_SECONDS = 0.25  # a hundred files take 10 ms
EARLY_SECONDS = 5.0  # the host may end a tool so long before we hear of its stop
FEW = 50  # flags that are taken away at once
Row = tuple[Path, str, Params]  # a flag: where, of whom, and what it says


@dataclass(frozen=True)
class Task:
    """A process that listens, or has told that it left."""

    session: str
    generation: int
    pid: int


@dataclass(frozen=True)
class Notice:
    """What tasks are told of a stop."""

    stop: str
    reason: str
    signal: str  # TERM or INT
    bumped: Mapping[str, int]
    scopes: Sequence[str]
    hard: bool  # of everything, at once

    def reach(self, session: str) -> Params:
        """See flags.REACH."""
        wide = scopes.is_wide(self.scopes, session)
        return {"generation": self.bumped[session], "wide": wide, "hard": self.hard}


class Cooperation:
    def __init__(
        self,
        paths: Paths,
        store: Store,
        settings: Callable[[], Settings],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._paths, self._store, self._settings, self._clock = paths, store, settings, clock
        self._tasks: dict[Peer, Task] = {}
        self._notices: list[tuple[float, Params]] = []
        self._background: set[asyncio.Task[None]] = set()
        # Stop -> when its flags were last written, how they were, and what is still there.
        self._written: dict[str, tuple[float, list[Row]]] = {}
        self._writing: dict[str, asyncio.Task[tuple[float, list[Row]]]] = {}

    # -- tasks that are connected

    def welcome(self, peer: Peer, params: Params, owner: str | None) -> Params:
        """A task listens. `owner` is the session whose process it is, if it is a run's: such a one
        listens for its own session only."""
        name = text(params, "session")
        known = self._store.session_named(name)
        session = known or name
        if owner is not None and owner != session:
            raise NotPermitted(f"a process of {owner} may not listen for {session}")
        told = params.get("pid")
        pid = peer.pid or (told if isinstance(told, int) else 0)
        task = Task(session, number(params, "generation"), pid)
        self._tasks[peer] = task
        standing = self._store.standing(session) if scopes.is_session(session) else None
        # One that nobody knows the run of came by itself, and is told of stops to come.
        dead = standing and 0 < task.generation < standing.generation
        if standing and (dead or standing.latched_since is not None):
            reach = {"wide": False, "hard": False}
            told = self._told(session, "it was stopped", "TERM", reach)
            return {"known": True, "interrupt": told}
        return {"known": known is not None}  # its flags are ours to take away, or its own

    @property
    def listening(self) -> int:
        """How many tasks do."""
        return len(self._tasks)

    def gone(self, peer: Peer) -> None:
        self._tasks.pop(peer, None)

    async def interrupted(self, peer: Peer, params: Params) -> Params:
        """A task has left in order. For the receipt of the stop, and for nobody else."""
        task = self._tasks[peer]
        short = ("checkpoint", "reason", "error", "task")
        about = {key: _plain(text(params, key, checkpoints.MAX_NAME)) for key in short}
        told = {**vars(task), **about}
        one = ("pid", "task")  # of each task of a process the last
        known = [row for row in self._notices if any(row[1][key] != told[key] for key in one)]
        self._notices = [*known, (self._clock(), told)][-MOST:]
        return {}

    def notices(self, covers: Callable[[str, int], bool], since: float) -> list[Params]:
        """Who has left in order, of these sessions and generations, for a stop of that time; told
        once. Who left long before it did so for another reason."""
        mine = [row for row in self._notices if covers(row[1]["session"], row[1]["generation"])]
        self._notices = [row for row in self._notices if row not in mine]
        return [one for at, one in mine if at > since - EARLY_SECONDS]

    # -- a stop

    def tell(self, notice: Notice) -> None:
        """To everybody who listens, at once; each knows itself whether it is meant."""
        for peer, task in self._tasks.items():
            if task.session not in notice.bumped:
                continue
            reach = notice.reach(task.session)
            told = self._told(task.session, notice.reason, notice.signal, reach)
            try:
                peer.notify("interrupt", told)
            except Exception as error:  # nobody who listens keeps a stop from anybody
                log.error("task %s of %s cannot be told: %r", task.pid, task.session, error)

    async def write(self, notice: Notice) -> None:
        """The flags of a stop, before anybody is signalled. The stop goes on whatever the disk
        says, and does not wait long for it."""
        stop = notice.stop
        try:
            writing = asyncio.create_task(asyncio.to_thread(self._put, self._rows(notice)))
        except Exception as error:
            log.error("no flags of stop %s: %r", stop, error)
            return
        self._writing[stop] = writing
        writing.add_done_callback(partial(self._wrote, stop))
        await asyncio.wait({writing}, timeout=WRITE_SECONDS)

    def _rows(self, notice: Notice) -> list[Row]:
        rows: list[Row] = []
        places = self._places()
        ids, busy, state = self._store.host_ids(), self._busy(), self._paths.state_id
        # Those first where somebody may look: the stop does not wait for all of them.
        for session in sorted(notice.bumped, key=lambda key: key not in busy):
            if self._store.generation(session) > notice.bumped[session]:
                continue  # another stop has come since, and has its own
            about = {"stop": notice.stop, "reason": notice.reason, **notice.reach(session)}
            about |= {"signal": f"SIG{notice.signal}", "sessionKey": session}
            about["state"] = state
            for name in dict.fromkeys([session, ids.get(session, session)]):
                free = (place for place in places if not self._holds_order(place, name))
                rows += [(place, name, about) for place in free]
        return rows

    def _holds_order(self, place: Path, name: str) -> bool:
        """Whether a flag is there that asks for a stop which has not begun: it must be seen."""
        flag = flags.check([place], name, now=self._clock())
        return flag is not None and not flag.by and not self._store.has_stop(flag.stop)

    def _busy(self) -> set[str]:
        live = {session for _, session, _ in self._store.live_runs()}
        return live | {task.session for task in self._tasks.values()}

    def _wrote(self, stop: str, writing: asyncio.Task[tuple[float, list[Row]]]) -> None:
        over = self._writing.pop(stop, None) is None  # it was, before they were written
        if writing.cancelled() or writing.exception():
            return
        self._written[stop] = writing.result()
        if over:
            self.over(stop)

    def over(self, stop: str) -> None:
        """Nothing of it is alive: who runs next must not find its flags."""
        self._writing.pop(stop, None)
        _, rows = self._written.pop(stop, (0.0, []))
        if len(rows) <= FEW:
            _take(rows, stop)
        else:
            self._start(asyncio.to_thread(_take, rows, stop))

    def renew(self) -> None:
        """Until they are acknowledged, or the session may run again."""
        now, often = self._clock(), flags.max_age() / RENEW
        for stop, (at, rows) in list(self._written.items()):
            if now - at < often:
                continue
            holds = {key: self._holds(key) for key in {about["sessionKey"] for *_, about in rows}}
            mine = [row for row in rows if holds[row[2]["sessionKey"]]]
            _take([row for row in rows if not holds[row[2]["sessionKey"]]], stop)
            current = [row for row in mine if _is_there(row, stop)]
            if current:
                self._written[stop] = self._put(current)
            else:
                del self._written[stop]

    def _holds(self, session: str) -> bool:
        return self._store.standing(session).latched_since is not None

    def _places(self) -> list[Path]:
        legacy = flags.shared() if self._settings().flags["legacy_tmp"] else []
        return [flags.home(self._paths.flags), *legacy]

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _put(self, rows: Iterable[Row]) -> tuple[float, list[Row]]:
        now, put = self._clock(), []
        for place, name, about in rows:
            try:
                flags.create(place, name, now=now, **about)
                put.append((place, name, about))
            except (OSError, ClawstopError) as error:  # tasks that listen are told anyway
                log.error("no stop flag for %s: %s", name, error)
        return now, put

    def _told(self, session: str, reason: str, signal: str, reach: Params) -> Params:
        about = {"sessionId": session, "reason": reason, "signal": f"SIG{signal}"}
        return {**about, "timestamp": round(self._clock() * 1000), **reach}


def _is_there(row: Row, stop: str) -> bool:
    place, name, _ = row
    return any(flag.by == stop for flag in flags.find([place], name))


def _take(rows: Iterable[Row], stop: str) -> None:
    for place, name, _ in rows:
        for flag in flags.find([place], name):
            if flag.by == stop:
                with contextlib.suppress(OSError):
                    flag.file.unlink(missing_ok=True)


def _plain(words: str) -> str:
    """A task's own words, as a line."""
    return shown(" ".join(words.split()))
