"""Leases: how long an owned process may live, and how it wants to be told to leave.

    run                dies with the stop of its run
    agent              dies only with a stop of its whole agent
    keep:<moment>      lives until a moment of the boot clock, which also counts while the machine
                       sleeps and ends when the machine does, as the process does
    <any of them>!INT  is sent SIGINT instead of SIGTERM

The text is a part of the cookie. One that nobody understands is `run`: it spares nobody.
"""

from __future__ import annotations

import math
import re
import sys
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from .errors import UsageError

SIGNALS = ("TERM", "INT")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_TEXT = re.compile(r"(run|agent|keep):?([0-9.]+)?(?:!([A-Z]+))?")
_WISH = re.compile(r"keep:([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhd])")


Kind = Literal["run", "agent", "keep"]


@dataclass(frozen=True)
class Lease:
    kind: Kind = "run"
    until: float = 0.0  # of `keep`: on the boot clock
    signal: str = "TERM"

    def ends(self, *, wide: bool, hard: bool) -> bool:
        """Whether a stop ends it: `wide` is of a whole agent, `hard` is `stop everything --now`."""
        if self.kind == "keep":
            return hard or self.until <= now()
        return wide or self.kind == "run"

    @property
    def left(self) -> float:
        """Seconds of a `keep` that are left."""
        return max(0.0, self.until - now()) if self.kind == "keep" else 0.0


def now() -> float:
    """The boot clock: monotonic, and goes on while the machine sleeps."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()  # macOS's and Windows's count while they sleep


@lru_cache(maxsize=1024)  # a look meets the same few over and over
def parse(text: str) -> Lease:
    """What a lease's text means; `run` for one that means nothing."""
    found = _TEXT.fullmatch(text)
    kind, until, signal = found.groups() if found else ("run", None, None)
    if signal not in (None, *SIGNALS) or (kind == "keep") != (until is not None):
        return Lease()
    try:
        moment = float(until or 0)
    except ValueError:
        return Lease()
    if not math.isfinite(moment):
        return Lease()
    return Lease(cast(Kind, kind), moment, signal or "TERM")


def wish(words: str, signal: str = "TERM") -> str:
    """The text for what a person asks for: `run`, `agent`, or `keep:8h`; UsageError."""
    suffix = "" if signal == "TERM" else f"!{signal}"
    if signal not in SIGNALS:
        raise UsageError(f"a signal is one of {', '.join(SIGNALS)}, not {signal[:20]!r}")
    if words in ("run", "agent"):
        return words + suffix
    found = _WISH.fullmatch(words)
    if not found:
        raise UsageError(
            f"a lease is run, agent, or keep: and a time (90s, 30m, 8h, 2d): {words!r}"
        )
    seconds = float(found[1]) * UNITS[found[2]]
    return f"keep:{now() + seconds:.1f}{suffix}"
