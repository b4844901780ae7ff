"""`stop` with the standard library alone: what is left when clawstop's environment is broken.

An engine that runs is asked over its socket and does the whole stop. Without one the stop is put on
disk as a tombstone, which the next engine takes in before anybody connects; then every process with
a cookie of the target is killed. What only an engine can do is named as left out.

Neither this module nor what it imports needs anything installed, or the network; a test says so.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import secrets
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from . import agents, flags, leases, ownership, processes, reaping, scopes, targets
from .blocking import Wire
from .bridges import Bridges
from .cookies import Owner
from .errors import Ambiguous, ClawstopError, EngineUnreachable, NotPermitted, UsageError
from .names import Names
from .paths import Paths, default_paths, private_folder, read_json, write_private
from .processes import Ident
from .redaction import redact
from .schema import SCHEMA
from .store import Store
from .targets import Target
from .words import say

LEFT = 3  # the exit code of a stop that left something out
MOST_FLAGS = 200  # a last resort does not write for long
ANSWER_SECONDS = 45.0  # the steps of a stop have deadlines of 30 s in all; past this it hangs


@dataclass(frozen=True)
class Order:
    """What was typed."""

    target: str
    state_dir: str | None
    now: bool
    dry_run: bool
    include_main: bool
    suspects: bool
    keep: bool
    turns: int | None
    to: str
    json: bool


@dataclass(frozen=True)
class Answer:
    """What came of it. `final` when an engine gave it: nothing would be gained by asking again."""

    json: bool
    body: dict[str, Any] = field(default_factory=dict)
    error: ClawstopError | None = None
    final: bool = False

    @property
    def exit_code(self) -> int:
        if self.error:
            return self.error.exit_code
        return 0 if self.body.get("dry_run") or self.body.get("converged") else LEFT

    @property
    def headline(self) -> str:
        """One line on what has been done; empty when nothing has."""
        if self.error or self.body.get("dry_run"):
            return ""
        killed = sum(process["result"] == "dead" for process in self.body["processes"])
        target = self.body["target"]
        if self.final:
            counts = {"runs": len(self.body["runs"]), "killed": killed}
            took = max(self.body["ms"].values())
            return say("stopped", target=target, ms=took, id=self.body["id"], **counts)
        latched = say("emergency_latched" if self.body["latched"] else "emergency_open")
        return say("emergency_stopped", target=target, latched=latched, killed=killed)

    def show(self) -> None:
        if self.error:
            print(f"clawstop: {self.error}", file=sys.stderr)
        elif self.json:
            print(json.dumps(self.body, ensure_ascii=False, indent=2))
        elif self.body.get("dry_run"):
            found = self.body["processes"]
            print(say("emergency_would", scopes=", ".join(self.body["scopes"]), count=len(found)))
            for process in found:
                print(f"  {process['pid']}  {process['command']}")
        else:
            print(self.headline)
            if self.body["left"]:
                print(say("emergency_left"))
            for problem in self.body["left"]:
                print(f"  - {problem}")
            for process in self.body.get("leased", ()):
                print(f"  {say('leased')}  {process['pid']}  {process['command']}")
        if not self.json and self.body.get("spared"):
            print(say("spared", agents=", ".join(self.body["spared"])))


def stop(arguments: Sequence[str]) -> Answer:
    """Carry out `stop TARGET ...` as typed. Prints nothing but a pulse; raises nothing of ours."""
    as_json = "--json" in arguments
    try:
        order = parse(arguments)
        return _stop(order, default_paths(order.state_dir))
    except _Final as final:
        return Answer(as_json, error=final.error, final=True)
    except ClawstopError as error:
        return Answer(as_json, error=error)


def parse(arguments: Sequence[str]) -> Order:
    """UsageError for what no `stop` understands."""
    parser = _Parser(prog="clawstop", add_help=False, allow_abbrev=False)
    parser.add_argument("--state-dir")
    parser.add_argument("command", choices=["stop", "kill"])
    parser.add_argument("target")
    for option in ("--now", "--dry-run", "--include-main", "--suspects", "--json"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--no-rollback", "--keep", dest="keep", action="store_true")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--to", default="")
    typed = vars(parser.parse_args(list(arguments)))
    return Order(
        target=typed["target"],
        state_dir=typed["state_dir"],
        now=typed["now"],
        dry_run=typed["dry_run"],
        include_main=typed["include_main"],
        suspects=typed["suspects"],
        keep=typed["keep"],
        turns=typed["turns"],
        to=typed["to"],
        json=typed["json"],
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _stop(order: Order, paths: Paths) -> Answer:
    id = secrets.token_hex(8)
    asked = read_json(paths.endpoint)
    try:
        return _by_engine(order, id, asked)
    except EngineUnreachable as error:
        left = [f"the engine could not do it: {error}"] if asked else []
    target = _target(order, paths)
    if order.dry_run:
        return Answer(order.json, _preview(order, paths, target))
    begun = time.perf_counter()
    tombstones, problems = _latch(order, paths, target, id)
    gateways = Bridges(paths.bridges).idents()
    with _flags(paths, target, id):
        reaped, trouble = _kill(order, paths, target, gateways)
    came = read_json(paths.endpoint)
    if came and came != asked:  # it may have looked for tombstones just before ours was there
        with contextlib.suppress(EngineUnreachable):
            answer = _by_engine(order, id, came)
            for file in tombstones:
                file.unlink(missing_ok=True)
            return answer
    left += problems + trouble
    if order.suspects:
        left.append("suspects were not looked for: only the engine knows the workspaces")
    if order.turns or order.to:
        left.append("--turns and --to were left out: run the same command again when it works")
    if not order.keep:
        left.append("memory was not touched: what ran is taken out of it by the engine")
    left += [
        f"runs in gateway {ident.pid} were not ended: it refuses their tools once the engine is "
        "back"
        for ident in sorted(gateways)
    ]
    left.append(
        "there is no receipt yet: it is written when the engine is back, at the latest by the next "
        "clawstop command that works"
    )
    return Answer(
        order.json,
        {
            "id": id,
            "emergency": True,
            "target": order.target,
            "scopes": target.scopes,
            "spared": target.spared,
            "latched": not problems,
            "processes": redact([outcome.as_dict() for outcome in reaped.outcomes]),
            "leased": _leased(order, paths, target, gateways),
            "left": redact(left),
            "converged": False,
            "ms": {"killed": round((time.perf_counter() - begun) * 1000, 1)},
        },
    )


# -- without an engine


@contextlib.contextmanager
def _known(paths: Paths) -> Iterator[Store]:
    """The sessions on record, read only; none when they cannot be read."""
    with contextlib.ExitStack() as stack:
        try:
            uri = f"{paths.database.as_uri()}?mode=ro"
            db = stack.enter_context(contextlib.closing(sqlite3.connect(uri, uri=True)))
            store = Store(db)
            store.sessions()
        except sqlite3.Error:
            db = stack.enter_context(contextlib.closing(sqlite3.connect(":memory:")))
            db.executescript(SCHEMA)
            store = Store(db)
        yield store


def _target(order: Order, paths: Paths) -> Target:
    try:
        with _known(paths) as store:
            return _resolve(order, paths, store)
    except sqlite3.Error:  # damaged further in
        with _known(Paths(paths.root / "none")) as store:
            return _resolve(order, paths, store)


def _resolve(order: Order, paths: Paths, store: Store) -> Target:
    left = agents.left_behind(paths, store.sessions())
    names = Names(agents.read(paths).agents or left, left)
    return targets.resolve(order.target, store, names, include_main=order.include_main)


def _latch(order: Order, paths: Paths, target: Target, id: str) -> tuple[list[Path], list[str]]:
    """Durable before it returns: the tombstones, and why there are none."""
    word = targets.wide(order.target)
    session = scopes.is_session(order.target)
    scope = order.target if session else target.scopes[0]
    agent = scope.removeprefix("agent:")
    # A whole name, which stays clear.
    names = [word or (scope if scopes.is_session(scope) or targets.wide(agent) else agent)]
    if word == "all" and order.include_main:
        names.append("main")
    files = []
    try:
        private_folder(paths.root)
        private_folder(paths.tombstones)
        for name, suffix in zip(names, ("", "-main"), strict=False):
            file = paths.tombstones / f"{id}{suffix}.json"
            stone = {"target": name, "at": int(time.time() * 1000)}
            stone |= {"keep": order.keep, "rule": "kill"}
            write_private(file, json.dumps(stone, ensure_ascii=False))
            files.append(file)
    except (OSError, ClawstopError) as error:
        return files, [
            f"the stop is not on disk ({error}), so new runs may start: make {paths.root} "
            "writable and run the same command again"
        ]
    return files, []


@contextlib.contextmanager
def _flags(paths: Paths, target: Target, id: str) -> Iterator[None]:
    """For tasks that look for one, before anybody is signalled; a disk that refuses kills all the
    same."""
    written = []
    for session in target.sessions[:MOST_FLAGS]:
        reach = {"wide": scopes.is_wide(target.scopes, session), "hard": False}
        about: dict[str, Any] = {"stop": id, "state": paths.known_state, "sessionKey": session}
        about |= {"signal": "SIGTERM", **reach}
        with contextlib.suppress(OSError, ClawstopError):
            home = flags.home(paths.flags)
            written.append(flags.create(home, session, "clawstop stop", **about))
    try:
        yield
    finally:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


def _kill(
    order: Order, paths: Paths, target: Target, gateways: frozenset[Ident]
) -> tuple[reaping.Reaped, list[str]]:
    """Every process with a cookie of this folder and target, of whatever generation: all are old.

    Never a gateway, the engine, or whoever asks.
    """
    try:
        spare = [*processes.ancestors(os.getpid()), *gateways, *_engine(paths)]
        reaped = reaping.reap(
            _owned(order, paths, target),
            proofs=ownership.proofs(paths, gateways),
            spare=spare,
            grace=0 if order.now else reaping.GRACE,
        )
    except (OSError, ImportError, ClawstopError) as error:  # ImportError: no psutil, not on Linux
        return reaping.Reaped(), [f"processes were not killed: {error}"]
    return reaped, reaped.problems()


def _owned(order: Order, paths: Paths, target: Target) -> processes.Match:
    state = paths.state_id
    inside = [*target.scopes, *target.sessions]
    hard = order.now and scopes.EVERYTHING in target.scopes

    def match(owner: Owner) -> bool:
        if owner.state != state or not any(scopes.covers(s, owner.session) for s in inside):
            return False
        wide = scopes.is_wide(target.scopes, owner.session)
        return leases.parse(owner.lease).ends(wide=wide, hard=hard)

    return match


def _leased(
    order: Order, paths: Paths, target: Target, gateways: frozenset[Ident]
) -> list[dict[str, Any]]:
    """What is the target's and lives on."""
    ends, all_of_it = _owned(order, paths, target), replace(order, now=True)
    everything = _owned(all_of_it, paths, replace(target, scopes=[*target.scopes, "*"]))
    try:
        found = ownership.find(everything, ownership.proofs(paths, gateways))
    except (OSError, ImportError, ClawstopError):
        return []
    inside = [*target.scopes, *target.sessions]
    return [
        {"pid": o.ident.pid, "lease": o.owner.lease, "command": redact(o.command)}
        for o in found
        if not ends(o.owner) and any(scopes.covers(s, o.owner.session) for s in inside)
    ]


def _engine(paths: Paths) -> list[Ident]:
    """The engine that said where it listens, alive or not."""
    endpoint = read_json(paths.endpoint) or {}
    pid, start = endpoint.get("pid"), endpoint.get("start")
    return [Ident(pid, start)] if isinstance(pid, int) and isinstance(start, int | float) else []


def _preview(order: Order, paths: Paths, target: Target) -> dict[str, Any]:
    made = (paths.root / "state-id").is_file()  # without it no process can have a cookie
    known = ownership.proofs(paths, Bridges(paths.bridges).idents())
    found = ownership.find(_owned(order, paths, target), known) if made else []
    return {
        "dry_run": True,
        "emergency": True,
        "target": target.name,
        "scopes": target.scopes,
        "sessions": target.sessions,
        "spared": target.spared,
        "processes": [
            {"pid": o.ident.pid, "session": o.owner.session, "command": redact(o.command)}
            for o in found
        ],
    }


# -- with an engine


class _Final(Exception):
    """The engine's own no, which stands."""

    def __init__(self, error: ClawstopError) -> None:
        super().__init__(str(error))
        self.error = error


def _by_engine(order: Order, id: str, endpoint: dict[str, Any] | None) -> Answer:
    """The running engine's receipt. EngineUnreachable: there is none, or it cannot do it."""
    params = {
        "id": id,
        "target": order.target,
        "dry_run": order.dry_run,
        "include_main": order.include_main,
        "suspects": order.suspects,
        "keep": order.keep,
        "turns": order.turns,
        "to": order.to,
        "who": _who(),
        "grace": 0 if order.now else None,
        "pid": os.getpid(),
    }
    try:
        with contextlib.closing(Wire(endpoint, "cli", waiting=_waiting)) as wire:
            try:
                receipt = wire.ask("stop", params, ANSWER_SECONDS)
            except (UsageError, Ambiguous, NotPermitted) as error:
                raise _Final(error) from error
    except EngineUnreachable:
        raise
    except (OSError, ValueError, TypeError, OverflowError, ClawstopError) as error:
        raise EngineUnreachable(str(error) or type(error).__name__) from error
    return Answer(order.json, receipt, final=True)


def _waiting(seconds: float) -> None:
    print(f"clawstop: {say('waiting', seconds=round(seconds))}", file=sys.stderr)


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name
        return ""
