"""The ownership cookie: one environment variable that says who owns a process.

A run's processes carry it and their descendants inherit it. It is plain ASCII without spaces:
`1:<state>:<generation>:<lease>:<session>`, lease and session percent-encoded. Exactly one text
stands for each owner; every other text, the empty one first of all, stands for nobody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

VARIABLE = "CLAWSTOP_COOKIE"

_STATE = re.compile(r"[0-9a-f]{1,64}")
_COOKIE = re.compile(r"1:([0-9a-f]{1,64}):(0|[1-9][0-9]{0,17}):([!-9;-~]+):([!-9;-~]+)")
_GENERATIONS = 10**18  # what the pattern's 18 digits hold


@dataclass(frozen=True)
class Owner:
    """Who owns a process: a session's generation in one OpenClaw state folder, and for how long.

    `state` is the random hex id of that folder, so that two gateways of one user never meet.
    """

    state: str
    session: str
    generation: int
    lease: str = "run"


def format(owner: Owner) -> str:
    """Return the cookie for an owner; ValueError for one that no cookie could stand for."""
    if not _STATE.fullmatch(owner.state):
        raise ValueError(f"state id {owner.state!r} is not lower-case hex")
    if not 0 <= owner.generation < _GENERATIONS:
        raise ValueError(f"generation {owner.generation} is outside 0..10^18")
    if not owner.session or not owner.lease:
        raise ValueError("an owner needs a session and a lease")
    return f"1:{owner.state}:{owner.generation}:{_encode(owner.lease)}:{_encode(owner.session)}"


@lru_cache(maxsize=1024)  # a look meets the same few cookies over and over
def parse(text: str) -> Owner | None:
    """Return the owner a cookie stands for, or None for anything else; never raises."""
    found = _COOKIE.fullmatch(text)
    if found is None:
        return None
    state, generation, lease, session = found.groups()
    try:
        owner = Owner(state, _decode(session), int(generation), _decode(lease))
        return owner if format(owner) == text else None
    except ValueError:
        return None


def _encode(text: str) -> str:
    # surrogatepass: a session key may come from a JSON file that holds a lone surrogate
    return quote(text, safe="", errors="surrogatepass")


def _decode(text: str) -> str:
    return unquote(text, errors="surrogatepass")
