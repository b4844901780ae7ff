"""The watch: looks at owned processes again and again while there are any.

What it is for: a process without a cookie is known by its parent, while that lives. The watch puts
it on record, so that it is still known afterwards (`seen`). Cages need no such record. It takes at
most one hundredth of one core, whatever a look costs.
"""

from __future__ import annotations

import time

from . import cgroups, ownership, records
from .cookies import Owner
from .paths import Paths
from .processes import Match, Owned
from .records import Record

EVERY = 1.0  # seconds
SHARE = 100  # of the time that a look took: how long the next one waits
TIDY = 60  # looks
MOST = 500  # records of one look: a fork bomb is not written down


class Watch:
    def __init__(self, paths: Paths, state: str) -> None:
        self._paths, self._state = paths, state
        self._due = 0.0
        self._looks = 0

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due

    def look(self) -> list[Owned]:
        """Everything owned in this state folder; blocks for some milliseconds."""
        begun = time.monotonic()
        known = ownership.proofs(self._paths)
        found = ownership.find(self._ours, known)
        bare = [one for one in found if one.proof.startswith(("child of", "session of"))]
        for one in [one for one in bare if one.ident not in known.records][:MOST]:
            records.write(self._paths.owned, one.ident, Record(one.owner, "seen"))
        took = time.monotonic() - begun
        self._due = time.monotonic() + max(EVERY, took * SHARE)
        return found

    def tidy(self, dead: Match) -> None:
        """Take away what is on record of those who are gone, now and then."""
        if self._looks % TIDY == 0:
            records.prune(self._paths.owned)
            cgroups.prune(cgroups.folders(self._paths.cages), dead)
        self._looks += 1

    def _ours(self, owner: Owner) -> bool:
        return owner.state == self._state
