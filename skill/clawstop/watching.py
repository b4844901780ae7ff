"""The watch: looks at owned processes again and again while there are any.

What it is for: a process without a cookie is known by its parent, while that lives. The watch puts
it on record, so that it is still known afterwards (`seen`). Cages need no such record. It takes at
most one hundredth of one core, whatever a look costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from . import cgroups, ownership, records
from .cookies import Owner
from .ownership import Proofs
from .paths import Paths
from .processes import Match, Owned
from .reaping import Outcome
from .records import Record

EVERY = 1.0  # seconds
SHARE = 100  # of the time that a look took: how long the next one waits
TIDY = 60  # looks
HOW = {"below": "below", "child": "seen", "session": "seen"}  # by the first word of the proof
MOST = 500  # records of one look: a fork bomb is not written down


def remember(paths: Paths, found: Iterable[Owned | Outcome]) -> None:
    """Put on record who is known only by somebody who may die before them."""
    for one in found:
        how = HOW.get(one.proof.split()[0])
        if how:
            records.write(paths.owned, one.ident, Record(one.owner, how))


class Watch:
    def __init__(self, paths: Paths, state: str, proofs: Callable[[], Proofs]) -> None:
        self._paths, self._state, self._proofs = paths, state, proofs
        self._due = 0.0
        self._looks = 0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due

    def look(self) -> list[Owned]:
        """Everything owned in this state folder; blocks for some milliseconds."""
        begun = time.monotonic()
        try:
            known = self._proofs()
            found = ownership.find(self._ours, known)
            remember(self._paths, [one for one in found if one.ident not in known.records][:MOST])
            if self._looks % TIDY == 0:
                records.prune(self._paths.owned)
            return found
        finally:
            took = time.monotonic() - begun
            self._due = time.monotonic() + max(EVERY, took * SHARE)

    def tidy(self, dead: Match) -> None:
        """Take away the cages of the dead, now and then."""
        if self._looks % TIDY == 0:
            cgroups.prune(cgroups.folders(self._paths.cages), dead)
        self._looks += 1

    def _ours(self, owner: Owner) -> bool:
        return owner.state == self._state
