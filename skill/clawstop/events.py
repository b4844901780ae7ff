"""The things hooks are told about. Plain values: a plugin may keep them, none ever changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import leases, scopes
from .agents import Agent
from .cookies import Owner
from .ownership import NONE, Proofs
from .processes import Ident
from .store import Standing

Receipt = Mapping[str, Any]  # one line of receipts.jsonl, as written


@dataclass(frozen=True)
class EngineInfo:
    version: str
    folder: Path
    unfinished: Sequence[str]


@dataclass(frozen=True)
class Roll:
    """The agents there are, and how they are told what a stop means for them."""

    agents: Sequence[Agent]
    protocol: str  # the setting
    folder: Path  # clawstop's own


@dataclass(frozen=True)
class Message:
    id: str
    session: str
    sender: str
    authorised: bool


@dataclass(frozen=True)
class Run:
    id: str
    cause: str
    standing: Standing


@dataclass(frozen=True)
class ToolCall:
    id: str
    run: str
    tool: str
    standing: Standing


@dataclass(frozen=True)
class Output:
    run: str | None
    kind: str
    standing: Standing


@dataclass(frozen=True)
class Stop:
    """A stop after step 1: what it covers and which generations it ended."""

    id: str
    trigger: str
    who: str
    target: str
    scopes: Sequence[str]
    bumped: Mapping[str, int]  # session -> its new generation
    first: int  # the generation of a session that was never seen
    state: str  # the id of the state folder: whose cookies count
    grace: float = 0.5
    spare: frozenset[Ident] = field(default_factory=frozenset)
    proofs: Callable[[], Proofs] = lambda: NONE  # what is known of processes at this moment
    signal: str = "TERM"  # what they are told to leave with; "INT" where a stop flag says so

    def owns(self, owner: Owner) -> bool:
        """True for a process that this stop ends: of a session in it, from a generation that it
        ended, on a lease that does not outlive it."""
        return self.concerns(owner) and leases.parse(owner.lease).ends(
            wide=scopes.is_wide(self.scopes, owner.session),
            hard=self.grace == 0 and scopes.EVERYTHING in self.scopes,
        )

    def concerns(self, owner: Owner) -> bool:
        """The same, whatever its lease says."""
        ended = owner.generation < self.bumped.get(owner.session, self.first)
        return owner.state == self.state and self._inside(owner.session) and ended

    def covers(self, session: str, generation: int) -> bool:
        """True for what a session in this stop did, up to the generation that this stop ended."""
        newest = self.bumped.get(session)
        return self._inside(session) and (newest is None or generation < newest)

    def _inside(self, session: str) -> bool:
        return session in self.bumped or any(scopes.covers(s, session) for s in self.scopes)
