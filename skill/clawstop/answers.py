"""What a person is told about a stop: a line or two, in their language."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from .words import say

Receipt = Mapping[str, Any]

SHORT = 60  # characters of a call: a phone shows two lines of it
MOST = 3  # calls that are named
SUSPECTS = 10  # and suspects: a person who confirms must have seen them


def killed(receipt: Receipt) -> int:
    return sum(process["result"] == "dead" for process in receipt["processes"])


def idle(receipt: Receipt) -> bool:
    """Nothing was there to stop."""
    forgotten = any("did" in row for row in receipt.get("memory") or ())
    return not (receipt["runs"] or receipt["processes"] or receipt["left"] or forgotten)


def summary(receipt: Receipt, lang: str | None = None) -> str:
    """One line of a list of stops."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(receipt["at"]))
    good = "restored" if receipt.get("trigger") == "restore" else "converged"
    word = say(good if receipt["converged"] else "incomplete", lang)
    told = {"when": when, "word": word, "killed": killed(receipt)}
    return say("receipt", lang, id=receipt["id"], target=receipt["target"], **told)


def lines(receipt: Receipt, lang: str | None = None) -> list[str]:
    """What is left comes first; then what was done; then what was already out of our hands."""
    target, id = receipt["target"], receipt["id"]
    told = []
    drained = receipt.get("drained") or {}  # an older clawstop wrote none
    if not receipt["converged"]:
        told.append(say("not_complete", lang, target=target))
        told += [f"  - {problem}" for problem in receipt["left"]]
        told.append(say("again", lang))
    if receipt.get("trigger") == "/suspects":
        told.append(say("suspects_ended", lang, killed=killed(receipt), id=id))
    elif idle(receipt):
        told.append(say("nothing_ran", lang, target=target, id=id))
    else:
        counts = {"runs": len(receipt["runs"]), "killed": killed(receipt)}
        took = max(receipt["ms"].values())
        told.append(say("stopped", lang, target=target, ms=took, id=id, **counts))
    told += _memory(receipt, lang)
    told += _calls(receipt, ("done", "failed"), "already_done", lang)
    told += _calls(receipt, ("outcome unknown",), "maybe_done", lang)
    off = [job for job in drained.get("jobs", []) if job["outcome"] == "off"]
    if off:
        told.append(say("jobs_off", lang, count=len(off), id=id))
    if receipt.get("scheduled"):
        calls = "; ".join(call[:SHORT] for call in receipt["scheduled"][:MOST])
        told.append(say("scheduled_elsewhere", lang, calls=calls))
    if receipt.get("remote"):
        calls = "; ".join(call[:SHORT] for call in receipt["remote"][:MOST])
        told.append(say("not_verified", lang, calls=calls))
    for kind, key in (("outbound", "withdrawn"), ("queued", "discarded")):
        if drained.get(kind):
            told.append(say(key, lang, count=len(drained[kind])))
    told += _named(receipt.get("leased"), "kept", lang)
    told += _named(receipt.get("suspects"), "suspected", lang, SUSPECTS, target=target)
    if receipt["spared"]:
        told.append(say("spared", lang, agents=", ".join(receipt["spared"])))
    return told


def _memory(receipt: Receipt, lang: str | None) -> list[str]:
    """What the agent does not remember any more; an older clawstop took nothing away."""
    rows = receipt.get("memory") or []
    removed = [row for row in rows if row.get("did") == "remove"]
    told = []
    if removed:
        text = "; ".join(row["text"][:SHORT] for row in removed[:MOST])
        count = sum(row["entries"] for row in removed)
        told.append(say("forgotten", lang, count=count, text=text, id=receipt["id"]))
    for row in rows:
        if "why" in row:
            why = say(f"why_{row['why']}", lang)
            told.append(say("remembered", lang, session=row["session"], why=why))
    if receipt.get("notes"):
        named = "; ".join(receipt["notes"][:MOST])
        told.append(say("noted", lang, files=named))
    return told


def restored(receipt: Receipt, lang: str | None = None, *, chat: bool = False) -> list[str]:
    """What came of a restore."""
    told = [
        say("job_on" if job["outcome"] == "on" else "job_gone", lang, id=job["id"])
        for job in receipt.get("jobs", ())
    ]
    for move in receipt["memory"]:
        key = "memory_back" if move["did"] == "restore" else "memory_gone"
        how = f"/restore {receipt['id']}" if chat else f"clawstop restore {receipt['id']}"
        told.append(say(key, lang, session=move["session"], count=move["entries"], how=how))
    told += [f"  - {problem}" for problem in receipt.get("left", ())]
    return told or [say("nothing_to_restore", lang, id=receipt["of"])]


def _named(
    rows: Sequence[Mapping[str, Any]] | None,
    key: str,
    lang: str | None,
    most: int = MOST,
    **values: str,
) -> list[str]:
    """Processes by their commands; an older clawstop wrote none."""
    if not rows:
        return []
    named = "; ".join(f"{row['pid']} {row['command'][:SHORT]}" for row in rows[:most])
    if len(rows) > most:
        named = say("and_more", lang, calls=named, count=len(rows) - most)
    return [say(key, lang, commands=named, **values)]


def tree(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Processes below their parents, each with what proves it."""
    pids = {row["pid"] for row in rows}
    below: dict[int, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["pid"]):
        parent = row.get("parent", 0)  # an older engine tells none
        below.setdefault(parent if parent in pids else 0, []).append(row)
    told: list[str] = []

    def walk(parent: int, depth: int) -> None:
        for row in below.pop(parent, ()):
            told.append(f"{'  ' * depth}{row['pid']}  {row['command']}  ({row.get('proof', '?')})")
            walk(row["pid"], depth + 1)

    walk(0, 0)
    return told


def _calls(receipt: Receipt, outcomes: tuple[str, ...], key: str, lang: str | None) -> list[str]:
    """The calls that can be seen from outside this machine, of these outcomes."""
    calls = [
        f"{call['tool']} {call['input'][:SHORT]}".strip()
        for call in receipt["tools"]
        if call.get("reach") == "outside" and call["outcome"] in outcomes
    ]
    if not calls:
        return []
    named = "; ".join(calls[:MOST])
    if len(calls) > MOST:
        named = say("and_more", lang, calls=named, count=len(calls) - MOST)
    return [say(key, lang, calls=named)]
