"""`clawstop mark`: a person says whose a process is. What it is is shown first; then it is on
record, with all that is below it, and in the cage of its lease where there are any."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import callers, cgroups, cookies, leases, ownership, processes, records, scopes
from .bridges import Bridges
from .cookies import Owner
from .errors import NotPermitted, UsageError
from .paths import Paths, private_folder, read_json, user
from .processes import Found, Ident
from .records import MARKED, Record


@dataclass(frozen=True)
class Mark:
    owner: Owner
    family: list[Found]  # the process itself first

    def lines(self) -> list[str]:
        return [f"{found.ident.pid}  {found.command}" for found in self.family if found.ident]

    def as_dict(self) -> dict[str, Any]:
        rows = [{"pid": f.ident.pid, "command": f.command} for f in self.family if f.ident]
        about = {"session": self.owner.session, "lease": self.owner.lease}
        return {**about, "processes": rows}


def prepare(paths: Paths, pid: int, agent: str | None, session: str | None, lease: str) -> Mark:
    """What would be marked; an error that says why it may not be."""
    gateways = Bridges(paths.bridges).idents()
    callers.refuse_owned(os.getpid(), "mark", ownership.proofs(paths, gateways))
    if bool(agent) == bool(session):
        raise UsageError("whose is it? Name an --agent or a --session, one of them")
    key = scopes.check_key(session or f"agent:{agent}:main")
    private_folder(paths.root)
    owner = Owner(paths.state_id, key, 0, leases.wish(lease))
    pids = [pid, *processes.descendants(pid)]
    family = [found for one in pids if (found := _look(one))]
    if not family or family[0].ident is None or family[0].ident.pid != pid:
        raise UsageError(f"there is no process {pid}, or it cannot be looked at")
    for found in family:
        _refuse(paths, found, gateways)
    return Mark(owner, family)


def carry_out(paths: Paths, mark: Mark) -> None:
    private_folder(paths.owned)
    cage = next(iter(cgroups.folders(paths.cages)), None)
    for found in mark.family:
        if found.ident is None or processes.gone(found.ident):
            continue
        records.write(paths.owned, found.ident, Record(mark.owner, MARKED))
        if cage and found.owners:  # it is in the cage of its run, which dies as a whole
            _move(found.ident, cage, cookies.format(mark.owner))


def _move(ident: Ident, folder: Path, name: str) -> None:
    """Into the cage of its lease. A pid that has become another's on the way is put outside."""
    cgroups.join(folder / name, ident.pid)
    if processes.compare(ident) is not processes.Sameness.SAME:
        cgroups.join(folder.parent, ident.pid)


def _look(pid: int) -> Found | None:
    if not processes.LINUX:
        return processes.look_portably(pid, set())
    try:
        return processes.look_at(pid, set(), lambda *_: True)
    except OSError:
        return None


def _refuse(paths: Paths, found: Found, gateways: Collection[Ident]) -> None:
    """Nobody may hand over what is not theirs, or what every stop depends on."""
    assert found.ident is not None
    pid = found.ident.pid
    endpoint = read_json(paths.endpoint) or {}
    never = [*processes.ancestors(os.getpid()), *gateways]
    if pid in (1, endpoint.get("pid")) or pid in (ident.pid for ident in never):
        raise NotPermitted(f"process {pid} is a gateway, clawstop, or what started this command")
    if any(owner.state != paths.state_id for owner in found.owners):
        raise NotPermitted(f"process {pid} belongs to another OpenClaw state folder")
    if processes.LINUX and _user_of(pid) not in (None, user()):
        raise NotPermitted(f"process {pid} is another user's")


def _user_of(pid: int) -> int | None:
    """Its real user: a file in /proc belongs to root where the process may not be looked into."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)
