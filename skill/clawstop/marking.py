"""`clawstop mark`: a person says whose a process is. What it is is shown first; then it is on
record, with all that is below it, and in the cage of its lease where there are any."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from . import callers, cgroups, cookies, leases, processes, records, scopes
from .bridges import Bridges
from .cookies import Owner
from .errors import NotPermitted, UsageError
from .paths import Paths, private_folder, read_json, user
from .processes import Found
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
    callers.refuse_owned(os.getpid(), "mark")
    if bool(agent) == bool(session):
        raise UsageError("whose is it? Name an --agent or a --session, one of them")
    key = scopes.check_key(session or f"agent:{agent}:main")
    private_folder(paths.root)
    owner = Owner(paths.state_id, key, 0, leases.wish(lease))
    family = [found for one in _tree(pid) if (found := _look(one))]
    if not family or family[0].ident is None or family[0].ident.pid != pid:
        raise UsageError(f"there is no process {pid}, or it cannot be looked at")
    for found in family:
        _refuse(paths, found)
    return Mark(owner, family)


def carry_out(paths: Paths, mark: Mark) -> None:
    private_folder(paths.owned)
    cage = next(iter(cgroups.folders(paths.cages)), None)
    for found in mark.family:
        if found.ident is None or processes.gone(found.ident):
            continue
        records.write(paths.owned, found.ident, Record(mark.owner, MARKED))
        if cage and found.owners:  # it is in the cage of its run, which dies as a whole
            cgroups.join(cage / cookies.format(mark.owner), found.ident.pid)


def _tree(pid: int) -> list[int]:
    if processes.LINUX:
        return [pid, *(one for child in processes.children(pid) for one in _tree(child))]
    below, found = processes.families_portably(), [pid]
    for one in found:
        found += below.get(one, ())
    return found


def _look(pid: int) -> Found | None:
    if not processes.LINUX:
        return processes.look_portably(pid, set())
    try:
        return processes.look_at(pid, set(), lambda *_: True)
    except OSError:
        return None


def _refuse(paths: Paths, found: Found) -> None:
    """Nobody may hand over what is not theirs, or what every stop depends on."""
    assert found.ident is not None
    pid = found.ident.pid
    endpoint = read_json(paths.endpoint) or {}
    never = [*processes.ancestors(os.getpid()), *Bridges(paths.bridges).idents()]
    if pid in (1, endpoint.get("pid")) or pid in (ident.pid for ident in never):
        raise NotPermitted(f"process {pid} is a gateway, clawstop, or what started this command")
    if processes.LINUX and os.stat(f"/proc/{pid}").st_uid != user():
        raise NotPermitted(f"process {pid} is another user's")
