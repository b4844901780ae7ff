"""Which tool calls were let through, refused, and finished: the first question after a stop is what
was already done. In memory, bounded: a receipt after an engine crash says that it does not know."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

KEPT = 1000  # finished calls kept for receipts: hours of one busy agent, well under a megabyte


@dataclass
class Call:
    id: str
    session: str
    run: str
    tool: str
    at: float
    outcome: str = "outcome unknown"  # until the host reports its end


class Ledger:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._open: dict[tuple[str, str], Call] = {}
        self._done: deque[Call] = deque(maxlen=KEPT)

    def allowed(self, id: str, session: str, run: str, tool: str) -> None:
        self._open[session, id] = Call(id, session, run, tool, self._clock())
        if len(self._open) > KEPT:  # their ends were lost
            self._open.pop(next(iter(self._open)))

    def refused(self, id: str, session: str, run: str, tool: str) -> None:
        self._done.append(Call(id, session, run, tool, self._clock(), "blocked"))

    def finished(self, id: str, session: str, ok: bool) -> None:
        call = self._open.pop((session, id), None)
        if call:
            call.outcome = "done" if ok else "failed"
            self._done.append(call)

    def close(self, sessions: Collection[str]) -> list[dict[str, Any]]:
        """Every call of these sessions, oldest first; those still open stay `outcome unknown`.

        They leave the ledger: a later stop of the same session speaks of later calls.
        """
        taken = [call for call in self._done if call.session in sessions]
        taken += [call for call in self._open.values() if call.session in sessions]
        self._done = deque((c for c in self._done if c.session not in sessions), KEPT)
        self._open = {k: c for k, c in self._open.items() if c.session not in sessions}
        return [asdict(call) for call in sorted(taken, key=lambda call: call.at)]
