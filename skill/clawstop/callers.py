"""Who asks: a person, or a process that an agent's run started."""

from __future__ import annotations

import os

from . import cookies, ownership, processes
from .cookies import Owner
from .errors import NotPermitted
from .ownership import Proofs


def refuse_owned(caller: int, what: str, proofs: Proofs) -> None:
    """NotPermitted when `caller`, or any process above it, is owned.

    Such a process may stop agents. It may not undo a stop, nor take the stop button out.
    """
    ours = caller == os.getpid() and cookies.parse(os.environ.get(cookies.VARIABLE, ""))
    if ours or owner_of(caller, proofs):
        raise NotPermitted(
            f"{what} is for people: process {caller}, which asks, was started by an agent's run"
        )


def owner_of(caller: int, proofs: Proofs) -> Owner | None:
    """Whose `caller` is: its own, or that of the nearest process above it."""
    line = processes.ancestors(caller)
    found = {owned.ident: owned.owner for owned in ownership.find(lambda _: True, proofs)}
    return next((found[ident] for ident in line if ident in found), None)
