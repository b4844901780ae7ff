"""What the command line asks of the engine, one method a question."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from . import (
    __version__,
    callers,
    canary,
    doctor,
    leases,
    ownership,
    processes,
    scopes,
    suspects,
    targets,
)
from .errors import EngineUnreachable, UsageError
from .memory import Wanted
from .params import Params, number, text
from .processes import Found, Owned
from .protocol import Peer
from .recovery import Speaker
from .redaction import redact
from .words import say

if TYPE_CHECKING:
    from .engine import Engine


MAX_PATH = 4096


class Commands:
    """Every public method may be asked for by name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.store
        self._stops = engine.stops
        self._bridges = engine.bridges

    async def stop(self, peer: Peer | None, params: Params) -> Params:
        name, main = text(params, "target"), params.get("include_main") is True
        try:
            target = await self._engine.find(name, include_main=main)
        except UsageError:
            await self._bridges.wait()  # a gateway that is coming back knows agents we may not
            target = await self._engine.find(name, include_main=main)
        caller = _caller(peer, params)
        if params.get("dry_run") is True:
            preview = await self._preview(target, caller, hard=params.get("grace") == 0)
            memory = self._engine.memory
            wanted = self._wanted(name, params)
            return {**preview, "memory": await memory.preview(wanted, target, text(params, "id"))}
        grace, wanted = params.get("grace"), self._wanted(name, params)
        request = self._engine.request(
            text(params, "id"),
            target,
            "clawstop stop",
            text(params, "who"),
            grace=float(grace) if isinstance(grace, int | float) else None,
            caller=caller,
            suspects=params.get("suspects") is True,
            memory=wanted,
        )
        return await self._stops.stop(request)

    def _wanted(self, name: str, params: Params) -> Wanted:
        """What a stop that names what it stops does to memory."""
        turns, entry = params.get("turns"), text(params, "to")
        if entry and not scopes.is_session(name):
            raise UsageError("--to needs a session's key, as an entry is one session's")
        keep = params.get("keep") is True
        return Wanted(
            rule="" if keep else "kill",
            turns=turns if isinstance(turns, int) and turns > 0 and not keep else 0,
            entry="" if keep else entry,
            named=not targets.wide(name),
            offline=not list(self._bridges) and not self._bridges.idents(),
        )

    async def freeze(self, peer: Peer | None, params: Params) -> Params:
        """Hold everything where it is, so that a person can look and decide."""
        target = await self._engine.find(text(params, "target"))
        caller = _caller(peer, params)
        spare = processes.ancestors(caller)
        held, cut_off = await self._engine.freezer.freeze(target.scopes, spare)
        left = [f"gateway {name} did not answer" for name in cut_off]
        left += [f"gateway {pid} runs but is not connected" for pid in self._bridges.absent()]
        left += [f"process {o.ident.pid} goes on: {o.error}" for o in held.outcomes if o.error]
        if not held.settled:
            left.append(f"not everybody could be looked for, or new ones kept coming {held.error}")
        return {
            **await self._preview(target, caller, hard=False),
            "dry_run": False,
            "frozen": [o.ident.pid for o in held.outcomes if o.result == "frozen" and not o.error],
            "left": left,
        }

    async def _preview(self, target: targets.Target, caller: int, *, hard: bool) -> Params:
        """What a stop would do; `hard` is one without grace."""
        inside = [*target.scopes, *target.sessions]
        runs = [
            {"run": run, "session": session, "generation": generation}
            for run, session, generation in self._store.live_runs()
            if any(scopes.covers(scope, session) for scope in inside)
        ]
        gateways, spare = self._bridges.idents(), processes.ancestors(caller)
        where, state = self._engine.workspaces(target), self._engine.paths.state_id

        def look() -> tuple[list[Owned], list[Found]]:
            everybody = ownership.find(lambda _: True, self._engine.proofs())
            known = {one.ident.pid for one in everybody}
            others = suspects.find(where, known, gateways, spare)
            mine = [o for o in everybody if o.owner.state == state]
            return [
                o for o in mine if any(scopes.covers(s, o.owner.session) for s in inside)
            ], others

        owned, others = await asyncio.to_thread(look)
        now = hard and scopes.EVERYTHING in target.scopes
        dying = [
            one
            for one in owned
            if leases.parse(one.owner.lease).ends(
                wide=scopes.is_wide(target.scopes, one.owner.session), hard=now
            )
        ]
        return {
            "dry_run": True,
            "target": target.name,
            "scopes": target.scopes,
            "sessions": target.sessions,
            "spared": target.spared,
            "runs": runs,
            "processes": [_row(one) for one in dying],
            "leased": [_row(one) for one in owned if one not in dying],
            "suspects": [
                {"pid": f.ident.pid, "command": redact(f.command)} for f in others if f.ident
            ],
            "strangers": len(processes.everybody()) - len(owned) - len(others),
        }

    async def release(self, peer: Peer | None, params: Params) -> Params:
        """Only a person may: a process that a run started is refused, however it got here."""
        callers.refuse_owned(_caller(peer, params), "release", self._engine.proofs())
        target = await self._engine.find(text(params, "target"))
        async with contextlib.AsyncExitStack() as stack:  # not in the middle of a rollback
            for session in sorted(target.sessions):
                await stack.enter_async_context(self._engine.memory.quiet(session))
            lifted = [scope for wide in target.scopes for scope in self._store.release(wide)]
        lifted += await self._engine.freezer.thaw(target.scopes)
        await self._bridges.push(self._stops.mirror())
        held = {one for key in target.sessions for one in self._engine.freezer.held_by(key)}
        return {"target": target.name, "released": lifted, "frozen": sorted(held)}

    async def restore(self, peer: Peer | None, params: Params) -> Params:
        """Bring back what a stop took away. Only a person may."""
        callers.refuse_owned(_caller(peer, params), "restore", self._engine.proofs())
        who, force = text(params, "who"), params.get("force") is True
        restoring = self._engine.restoring
        if backup := text(params, "backup", MAX_PATH):
            session = text(params, "session")
            return await restoring.by_backup(Path(backup), session, who, force=force)
        return await restoring.by_receipt(text(params, "receipt"), who, force=force)

    async def status(self, peer: Peer | None, params: Params) -> Params:
        engine = self._engine
        problems = [*engine.problems, *engine.plugins.problems]
        problems += [f"gateway {pid} runs but is not connected" for pid in self._bridges.absent()]
        problems += [f"stop {id} is not on disk: free some space" for id in self._stops.brakes]
        problems += [f"reduced: {b.name}: {lost}" for b in self._bridges for lost in b.reduced()]
        await engine.roster.refresh()
        config = engine.roster.config
        if config.problem:
            problems.append(config.problem)
        alone = not list(self._bridges)
        if alone and (port := await asyncio.to_thread(doctor.gateway_without_us, config)):
            problems.insert(0, say("not_protected", port=port))
        mirror, standby = self._stops.mirror(), set(self._store.on_standby())
        runs: dict[str, list[str]] = {}
        for run, session, _ in self._store.live_runs():
            runs.setdefault(session, []).append(run)
        return {
            "version": __version__,
            "folder": str(engine.paths.root),
            "gateways": [
                {"host": b.host, "version": b.version, "pid": b.pid, **b.capabilities}
                | {"hook_ms": await b.spent(), "reduced": b.reduced(), "limits": b.limits()}
                for b in self._bridges
            ],
            "agents": engine.roster.ids,
            "sessions": [
                {
                    "session": key,
                    "generation": self._store.generation(key),
                    "stopped_since": engine.standing(key).latched_since,
                    "standby": key in standby,
                    "runs": runs.get(key, []),
                }
                for key in sorted({*mirror["sessions"], *runs, *standby})
            ],
            "latches": sorted(mirror["latches"]),
            "frozen": mirror["frozen"],
            "unfinished": [stop for stop, _, _ in self._store.unfinished_stops()],
            "cut_off": engine.recovery.questions,
            "settings": vars(engine.settings),
            "plugins": engine.plugins.names,
            "orphans": await self._orphans(),
            "problems": problems,
        }

    async def recover(self, peer: Peer | None, params: Params) -> Params:
        """What a crash cut off; with `yes`, let what waits for a person's word go on."""
        recovery, seconds = self._engine.recovery, params.get("wait")
        if isinstance(seconds, int | float) and not await self._bridges.any(seconds):
            raise EngineUnreachable(say("no_gateway_yet", seconds=seconds))
        rows = await recovery.report()
        if params.get("yes") is True and params.get("dry_run") is not True:
            callers.refuse_owned(_caller(peer, params), "recover --yes", self._engine.proofs())
            who = Speaker(text(params, "who"), operator=True)
            named = text(params, "session")
            sessions = [named] if named else recovery.mild()
            for session in sessions:
                await recovery.answer(session, True, who)
            if list(self._bridges):
                await recovery.settled(sessions)
            rows = await recovery.report()
        return {"sessions": rows}

    async def _orphans(self) -> list[Params]:
        """Processes of runs that are over, which no lease keeps."""
        state, store = self._engine.paths.state_id, self._store
        found = await asyncio.to_thread(ownership.find, lambda _: True, self._engine.proofs())
        return [
            _row(one)
            for one in found
            if one.owner.state == state
            and 0 < one.owner.generation < store.generation(one.owner.session)
            and leases.parse(one.owner.lease).kind == "run"
        ]

    async def canary(self, peer: Peer | None, params: Params) -> Params:
        """Start a harmless run on the gateway, stop it, and give the receipt."""
        callers.refuse_owned(_caller(peer, params), "doctor --canary", self._engine.proofs())
        return await canary.fly(self._engine, text(params, "agent"))


def _row(owned: Owned) -> Params:
    return {
        "pid": owned.ident.pid,
        "parent": owned.parent,
        "session": owned.owner.session,
        "lease": owned.owner.lease,
        "proof": owned.proof,
        "command": redact(owned.command),
    }


def _caller(peer: Peer | None, params: Params) -> int:
    """The pid that asks: the system's word where it gives one, else the caller's own."""
    told = peer.pid if peer else None
    return told if told is not None else number(params, "pid")
