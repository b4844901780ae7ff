"""Reaping: end every process of a matching owner, and prove that each is dead.

Look, freeze, look again until a look finds nobody new; TERM (or the signal that its lease names)
and a grace; KILL; look again. One deadline holds for the whole set, and what is alive at the end is
said to be alive. Cages are frozen and killed as a whole where a whole look found nobody else in
them: nothing forks away from that.

Linux signals through pidfds, which can never reach a recycled pid. Elsewhere, with
`portable=True`, and where pidfds cannot be had, the identity is compared right before each signal.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from clawstop import cgroups, leases
from clawstop.cookies import Owner
from clawstop.ownership import NONE, Source, scan
from clawstop.processes import Ident, Match, Missed, Owned, Sameness, compare, gone

if sys.platform == "win32":

    def _descriptors() -> float:
        return float("inf")

else:
    import resource

    def _descriptors() -> float:
        """How many this process may have."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return float("inf") if limit == resource.RLIM_INFINITY else limit


GRACE = 0.5  # enough to flush and unlock; a person who said stop sees no delay
DEADLINE = 10.0  # exit of a process with much memory or on a slow disk; longer means stuck in I/O
FREEZE = 2.0  # a fork bomb of 1,500 freezes in about one second; past that KILL is kinder
SLICE = 0.2  # between looks while something killed is slow to die: its children must not wait
TICK = 0.01  # start times have this resolution on Linux; finer polling would only burn CPU
SPARE_DESCRIPTORS = 64  # for looking, and for the rest of the engine, while pidfds are held
RESTLESS_LOOKS = 10  # a busy machine always misses somebody; its strangers must not hold us up
LOST_LOOKS = 50  # but when one of ours died under our eyes: it may fork on, and is met in 2 to 20


def _kernel() -> tuple[int, ...]:
    if sys.platform == "win32":
        return (0,)
    return tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


_READABLE = getattr(select, "POLLIN", 1)  # a pidfd is readable when its process is dead

_POLL_PROVES = sys.platform == "linux" and _kernel() >= (6, 16)
NotDead = Literal["would", "alive", "frozen"]
# psutil's words, which Windows has too, but for one
Verb = Literal["suspend", "terminate", "interrupt", "resume", "kill"]


@dataclass(frozen=True)
class Outcome:
    """What was done to one process and what came of it, `ms` after the reaping began."""

    ident: Ident
    owner: Owner
    proof: str
    command: str
    signal: Literal["TERM", "INT", "KILL", "none", "host"]
    result: Literal["dead", "alive", "spared", "would", "frozen"]
    ms: float
    error: str = ""

    def as_dict(self) -> dict[str, object]:
        """As a receipt lists it."""
        return {
            "pid": self.ident.pid,
            "start": self.ident.start,
            "session": self.owner.session,
            "generation": self.owner.generation,
            "lease": self.owner.lease,
            "proof": self.proof,
            "signal": self.signal,
            "result": self.result,
            "ms": round(self.ms, 1),
            "command": self.command,
        }


@dataclass(frozen=True)
class Reaped:
    """The end of a reaping: `left` are those of `outcomes` that are not dead.

    `settled` is False when no look came back empty before the deadline, or when somebody had to be
    killed after a look that failed; `error` says why the last one did.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[Outcome] = field(default_factory=list)
    spared: list[Outcome] = field(default_factory=list)
    looks: int = 0
    settled: bool = True
    error: str = ""

    @property
    def clean(self) -> bool:
        return self.settled and not self.left

    def problems(self) -> list[str]:
        """What is left, for a person to read; nothing when all is dead."""
        found = [f"process {o.ident.pid} is still alive: {o.command} {o.error}" for o in self.left]
        found += [
            f"process {o.ident.pid} asked for this stop, or is a gateway, and was left alone: "
            f"{o.command}"
            for o in self.spared
        ]
        if not self.settled and not self.left:
            found.append(f"not everybody could be looked for, or new ones kept coming {self.error}")
        return [problem.strip() for problem in found]


def reap(
    match: Match,
    *,
    proofs: Source = NONE,
    spare: Collection[Ident] = (),
    grace: float = GRACE,
    deadline: float = DEADLINE,
    signal: str = "TERM",
    portable: bool = False,
    dry_run: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Reaped:
    """End every process whose owner matches, except the spared and the caller itself.

    A caller that may run inside what it stops spares `processes.ancestors(os.getpid())`.
    `grace` 0 kills at once. `signal` is "INT" for a gentler word than TERM. `dry_run` looks once,
    signals nobody, and answers "would".
    """
    hunt = _Hunt(match, proofs, spare, portable, clock, sleep)
    hunt.gentle = signal == "INT"
    end = hunt.began + deadline
    try:
        if dry_run:
            hunt.look(None)
            return hunt.reaped(not hunt.error, "would")
        frozen_by = hunt.began + min(FREEZE, deadline / 2)
        while (look := hunt.look("suspend")) and clock() < frozen_by:
            hunt.freeze()
        if grace > 0:
            hunt.tell()  # all of them before any goes on, so that nobody is restarted
            hunt.send("resume")
            hunt.thaw()
            hunt.wait(min(clock() + grace, end))
            look = True
        while True:
            # Stopped at sight, killed after the look: the living prove whose their children are.
            new = look and hunt.look("suspend")
            hunt.kill()
            quiet = not new and not hunt.dying()
            if quiet or clock() >= end:
                break
            hunt.wait(min(clock() + SLICE, end))
            look = True
        return hunt.reaped(quiet and not hunt.blind, "alive")
    finally:
        hunt.thaw()  # the condemned are stopped one by one; a cage may hold somebody else
        hunt.close()


def suspend(
    match: Match, *, proofs: Source = NONE, spare: Collection[Ident] = (), portable: bool = False
) -> Reaped:
    """Stop every process of a matching owner where it is, until `resume`; nothing is ended."""
    hunt = _Hunt(match, proofs, spare, portable, time.monotonic, time.sleep)
    try:
        end = hunt.began + FREEZE
        while (again := hunt.look("suspend")) and hunt.clock() < end:
            pass
        return hunt.reaped(not again, "frozen")
    finally:
        hunt.close()


def resume(match: Match, *, proofs: Source = NONE, portable: bool = False) -> Reaped:
    """Let every process of a matching owner go on."""
    hunt = _Hunt(match, proofs, (), portable, time.monotonic, time.sleep)
    try:
        hunt.look("resume")
        return hunt.reaped(not hunt.error, "would")
    finally:
        hunt.close()


def end_one(ident: Ident, grace: float, sleep: Callable[[float], None] = time.sleep) -> bool:
    """TERM, `grace` seconds, KILL for one process that is known by name, not by cookie: a gateway.

    True when it is proven dead. Never the caller itself.
    """
    if ident.pid == os.getpid():
        return False
    try:
        return _end_one(ident, grace, sleep)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False


def _end_one(ident: Ident, grace: float, sleep: Callable[[float], None]) -> bool:
    fd = _pidfd(ident)
    try:
        steps: tuple[tuple[Verb, float], ...] = (("terminate", grace), ("kill", DEADLINE))
        for verb, patience in steps:
            if fd is None:
                _signal_by_pid(ident, verb)
            else:
                _signal_by_fd(fd, verb)
            end = time.monotonic() + patience
            while not gone(ident) and time.monotonic() < end:
                sleep(0.05)
            if gone(ident):
                return True
        return False
    finally:
        if fd is not None:
            os.close(fd)


def ended_by_host(
    seen: Iterable[Owned], reaped: Iterable[Reaped], clock: Callable[[], float], began: float
) -> list[Outcome]:
    """Those seen before the host ended the runs that nobody had to signal any more."""
    met = {outcome.ident for one in reaped for outcome in one.outcomes}
    ms = (clock() - began) * 1000
    return [
        Outcome(o.ident, o.owner, o.proof, o.command, "host", "dead", ms)
        for o in seen
        if o.ident not in met and gone(o.ident)
    ]


class _Hunt:
    """All that one reaping knows: whom it met, who is dead, who slipped by."""

    def __init__(
        self,
        match: Match,
        proofs: Source,
        spare: Collection[Ident],
        portable: bool,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.match, self.portable, self.clock, self.sleep = match, portable, clock, sleep
        self._source = proofs if callable(proofs) else lambda: proofs
        self.proofs = NONE
        self.complete = False  # whether the last look saw everybody
        self.gentle = False  # whether everybody is told to leave with INT
        self.blind = False  # whether somebody was killed before all below them were looked for
        self.spare: dict[int, list[Ident]] = {}
        for ident in spare:
            self.spare.setdefault(ident.pid, []).append(ident)
        self.began = clock()
        self.targets: dict[Ident, _Target] = {}
        self.spared: dict[Ident, Owned] = {}
        self.missed: set[int] = set()
        self.others: set[int] = set()
        self.looks = self.restless = 0
        self.lost = False
        self.error = ""

    def look(self, verb: Verb | None) -> bool:
        """Look once, do this to whoever is new at sight, and say whether to look again."""
        self.looks += 1
        self.error = ""
        self.complete = False
        missed = Missed()
        new = False
        try:
            self.proofs = self._source()  # somebody may have been put on record meanwhile
            held, portable = self._held(), self.portable
            look = scan(self.match, self.proofs, held=held, portable=portable, missed=missed)
            for owned in look:
                new = self._meet(owned, verb) or new
        except OSError as error:  # no look, no proof: end what we know, look again
            self.error = str(error)
            self.sleep(TICK)
            return True
        self.complete, self.others = True, missed.others
        self.lost = self.lost or missed.owned
        dead = {ident.pid for ident, target in self.targets.items() if target.died is not None}
        slipped_by = missed.pids - self.missed - dead
        self.missed |= missed.pids
        self.restless = self.restless + 1 if slipped_by and not new else 0
        return new or 0 < self.restless < (LOST_LOOKS if self.lost else RESTLESS_LOOKS)

    def _held(self) -> list[Owned]:
        """Those whom we have met and who are alive."""
        poller = select.poll() if hasattr(select, "poll") else None
        alive = [target for target in self.targets.values() if target.died is None]
        if poller:
            for target in alive:
                if target.fd is not None:
                    poller.register(target.fd, _READABLE)
        ready = {fd for fd, _ in poller.poll(0)} if poller else set()
        doubtful = [target for target in alive if target.fd is None or target.fd in ready]
        for target in doubtful:
            target.check()
        return [target.owned for target in alive if target.died is None]

    def _meet(self, owned: Owned, verb: Verb | None) -> bool:
        """Do this to one that a look found, unless it is spared or was met before."""
        if self._is_spared(owned.ident):
            self.spared[owned.ident] = owned
            return False
        target = self.targets.get(owned.ident)
        if target and target.died is None:
            return False
        target = self.targets[owned.ident] = _Target(owned, self.clock)  # the found are not dead
        if verb:
            target.send(verb)
            self.lost = self.lost or target.died is not None
        return True

    def _is_spared(self, ident: Ident) -> bool:
        # compare, as the two may hold different clocks; in doubt it is spared
        spare = self.spare.get(ident.pid, [])
        try:
            return any(compare(one) is not Sameness.DIFFERENT for one in spare)
        except OSError:
            return True

    def freeze(self) -> None:
        for cage in self._cages():
            cgroups.freeze(cage, True)

    def thaw(self) -> None:
        """All of them: one may have been frozen by a reaping that a crash cut off."""
        with suppress(OSError):
            for cage in [] if self.portable else cgroups.cages(self.proofs.folders):
                if self.match(cage.owner):
                    cgroups.freeze(cage.path, False)

    def kill(self) -> None:
        for cage in self._cages():
            inside = set(cgroups.members(cage))
            cgroups.kill(cage)
            for target in self.dying():
                if target.ident.pid in inside:  # else it would seem to have gone before
                    target.signal = "KILL"
        self.blind = self.blind or (not self.complete and bool(self.dying()))
        self.send("kill")
        self.thaw()

    def _cages(self) -> Iterator[Path]:
        """Those of ours in which everybody is condemned, as far as a whole look could tell."""
        if self.portable or not self.complete:
            return
        with suppress(OSError):  # who is in it cannot be told: then one by one
            for cage in cgroups.cages(self.proofs.folders):
                if not self.match(cage.owner):
                    continue
                if not any(map(self._may_live, cgroups.members(cage.path))):
                    yield cage.path

    def _may_live(self, pid: int) -> bool:
        """Whether this pid is one that the reaping may not touch, or somebody else's."""
        strangers = {ident.pid for ident in self.proofs.strangers}
        return pid in (1, os.getpid()) or pid in self.spare or pid in strangers | self.others

    def tell(self) -> None:
        """Tell everybody to leave, each in the way it wants; a wrapper leaves with its command."""
        for target in self._newest_first():
            if not target.owned.wrapper:
                target.send("interrupt" if self.gentle else target.farewell)

    def send(self, verb: Verb) -> None:
        """Do this to everybody who is not dead, descendants before their parents."""
        for target in self._newest_first():
            target.send(verb)

    def _newest_first(self) -> list[_Target]:
        alive = [target for target in self.targets.values() if target.died is None]
        return sorted(alive, key=lambda target: target.ident.start, reverse=True)

    def dying(self) -> list[_Target]:
        return [t for t in self.targets.values() if t.died is None and not t.error]

    def wait(self, until: float) -> None:
        """Wait for all whom we could signal to be dead, but not longer."""
        poller = select.poll() if hasattr(select, "poll") else None
        polled: dict[int, _Target] = {}
        ticked: list[_Target] = []
        for target in self.dying():
            if poller and target.fd is not None:
                poller.register(target.fd, _READABLE)
                polled[target.fd] = target
            else:
                ticked.append(target)
        while True:
            ticked = [target for target in ticked if not target.check()]
            left = until - self.clock()
            if left <= 0 or not (ticked or polled):
                return
            pause = min(left, TICK) if ticked else left
            if not (poller and polled):
                self.sleep(pause)
                continue
            for fd, _ in poller.poll(pause * 1000):
                poller.unregister(fd)
                target = polled.pop(fd)
                if _POLL_PROVES:
                    target.bury()
                else:  # an exec by a thread woke the poll too: believe it, but verify
                    ticked.append(target)

    def reaped(self, settled: bool, not_dead: NotDead) -> Reaped:
        ms = (self.clock() - self.began) * 1000
        outcomes = [target.outcome(self.began, ms, not_dead) for target in self.targets.values()]
        left = [outcome for outcome in outcomes if outcome.result != "dead"]
        spared = [
            Outcome(o.ident, o.owner, o.proof, o.command, "none", "spared", ms)
            for o in self.spared.values()
        ]
        return Reaped(outcomes, left, spared, self.looks, settled, self.error)

    def close(self) -> None:
        for target in self.targets.values():
            target.close()


class _Target:
    """One condemned process: how to reach it, what was done to it, when it was seen dead."""

    def __init__(self, owned: Owned, clock: Callable[[], float]) -> None:
        self.owned, self.ident, self.clock = owned, owned.ident, clock
        self.signal: Literal["TERM", "INT", "KILL", "none"] = "none"
        polite = leases.parse(owned.owner.lease).signal == "INT"
        self.farewell: Verb = "interrupt" if polite else "terminate"
        self.error = ""
        self.died: float | None = None
        self.fd = _pidfd(self.ident)

    def send(self, verb: Verb) -> None:
        """Signal the process if it is the same one; nobody else can be hit."""
        try:
            if self.fd is None:
                _signal_by_pid(self.ident, verb)
            else:
                _signal_by_fd(self.fd, verb)
        except ProcessLookupError:
            self.bury()
        except OSError as error:  # not ours to signal, or nothing can be opened at the moment
            self.error = str(error)
        else:
            self.error = ""
            if verb == "terminate":
                self.signal = "TERM"
            elif verb == "interrupt":
                self.signal = "INT"
            elif verb == "kill":
                self.signal = "KILL"

    def check(self) -> bool:
        """Look whether it is dead, and say so; who cannot be looked at is not."""
        with suppress(OSError):
            if self.died is None and gone(self.ident):
                self.bury()
        return self.died is not None

    def bury(self) -> None:
        self.died = self.clock()
        self.close()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def outcome(self, began: float, ms: float, not_dead: NotDead) -> Outcome:
        dead = self.check()
        if self.died is not None:
            ms = (self.died - began) * 1000
        o = self.owned
        result = "dead" if dead else not_dead
        error = "" if dead else self.error
        return Outcome(o.ident, o.owner, o.proof, o.command, self.signal, result, ms, error)


def _pidfd(ident: Ident) -> int | None:
    """Open a pidfd on this very process; None where that cannot be had."""
    if sys.platform != "linux" or isinstance(ident.start, float):
        return None
    try:
        fd = os.pidfd_open(ident.pid)
    except (OSError, AttributeError):  # dead, old kernel, seccomp, or out of descriptors
        return None
    enough = fd < _descriptors() - SPARE_DESCRIPTORS
    with suppress(OSError):
        if enough and compare(ident) is Sameness.SAME:
            return fd
    os.close(fd)
    return None


def _signal_by_fd(fd: int, verb: Verb) -> None:
    if sys.platform == "linux":  # nobody else has a descriptor to come here with
        signal.pidfd_send_signal(fd, _signal(verb))


def _signal_by_pid(ident: Ident, verb: Verb) -> None:
    sameness = compare(ident)
    if sameness is Sameness.DIFFERENT:
        raise ProcessLookupError(f"process {ident.pid} is gone")
    if sameness is Sameness.UNKNOWN:
        raise PermissionError(f"the identity of process {ident.pid} cannot be verified")
    if isinstance(ident.start, int):
        os.kill(ident.pid, _signal(verb))
        return
    import psutil

    try:
        process = psutil.Process(ident.pid)
        if verb == "interrupt" and sys.platform != "win32":
            process.send_signal(signal.SIGINT)
        else:
            getattr(process, "terminate" if verb == "interrupt" else verb)()
    except psutil.NoSuchProcess as error:
        raise ProcessLookupError(str(error)) from error
    except psutil.AccessDenied as error:
        raise PermissionError(str(error)) from error


def _signal(verb: Verb) -> signal.Signals:
    names = {"suspend": "STOP", "terminate": "TERM", "interrupt": "INT", "resume": "CONT"}
    return signal.Signals[f"SIG{names.get(verb, 'KILL')}"]
