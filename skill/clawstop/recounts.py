"""What is told of a crash: to a person who asks, to the receipts, and to the model that goes on."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import answers, evidence, reaping, scopes, wills
from .cuts import OVER, Cut
from .errors import StoreError
from .paths import Paths
from .processes import Owned
from .redaction import redact
from .stops import Stops, lease_row
from .store import Store
from .turns import Call
from .verdicts import State, Verdict, judge
from .words import say

log = logging.getLogger("clawstop.recovery")

Row = dict[str, Any]


class Recounts:
    def __init__(
        self,
        paths: Paths,
        store: Store,
        stops: Stops,
        workspaces: Callable[[str], list[Path]],  # of an agent
    ) -> None:
        self._paths = paths
        self._store = store
        self._stops = stops
        self._workspaces = workspaces

    async def every(self) -> list[Row]:
        """Every session, as the evidence shows it now; what is finished or stopped too."""
        everything = await asyncio.to_thread(lambda: list(evidence.sessions(self._paths)))
        others: dict[str, str] = {}
        for agent in {scopes.agent_of(found.session) for found in everything}:
            where = self._workspaces(agent)
            others |= await asyncio.to_thread(evidence.marked, agent, where)
        cuts = {cut.session: cut for cut in self._store.cuts.every()}
        alive = {session for _, session, _ in self._store.live_runs()}
        rows = []
        for found in everything:
            cut = cuts.pop(found.session, None)
            if found.session in alive:
                rows.append({"session": found.session, "state": "running", "why": "", "did": ""})
                continue
            if cut and cut.stage not in OVER:
                rows.append(_open_row(cut))
                continue
            stopped = self._store.standing(found.session).latched_since is not None
            whole = replace(found, stopped=stopped, resumed_by=others.get(found.session, ""))
            rows.append(row(found.session, judge(whole), *_stage(cut)))
        return rows + [_open_row(cut) for cut in cuts.values()]  # not on the host's disk yet

    def crash(
        self, rows: list[Row], swept: reaping.Reaped | None = None, kept: Iterable[Owned] = ()
    ) -> None:
        """A receipt of what was found after one."""
        ended = swept or reaping.Reaped()
        told = {
            "recovered": rows,
            "processes": [outcome.as_dict() for outcome in ended.outcomes],
            "leased": [lease_row(one) for one in kept],
            "left": ended.problems(),
        }
        self._record("what a crash cut off", **told)

    def became(self, cut: Cut, did: str, left: Iterable[str] = ()) -> None:
        """A receipt of what became of one."""
        told = {"session": cut.session, "state": "cut off", "did": did, "because": cut.why}
        self._record(cut.session, recovered=[told], left=list(left))

    def _record(self, target: str, **told: Any) -> None:
        try:
            self._stops.record(secrets.token_hex(8), "recovery", "clawstop", target, **told)
        except StoreError as error:  # it goes on all the same
            log.error("%s", error)


def row(session: str, verdict: Verdict, stage: str, why: str) -> Row:
    """As a receipt and a person are told."""
    told: Row = {"session": session, "state": str(verdict.state), "why": verdict.why}
    told |= {"did": str(stage), "because": why}
    if verdict.open:
        told["unknown"] = [f"{call.tool} {redact(call.given)}" for call in verdict.open]
    return told


def _open_row(cut: Cut) -> Row:
    return row(cut.session, Verdict(State.CUT_OFF, cut.why), *_stage(cut))


def _stage(cut: Cut | None) -> tuple[str, str]:
    return (cut.stage, cut.why) if cut else ("", "")


def message(cut: Cut, unknown: Iterable[Call], will: Mapping[str, Any]) -> str:
    """What the model is told, in the language of the person's own words."""
    lang = "zh" if answers.is_chinese(cut.text) else "en"
    parts = [say("resume_text", lang)]
    if cut.text:
        parts.append(say("resume_quote", lang, text=cut.text))
    for call in unknown:
        parts.append(say("resume_unknown", lang, call=f"{call.tool} {call.given}"))
    if told := wills.quoted(will):
        parts.append(say("resume_will", lang, will=told))
    return "\n\n".join(parts)
