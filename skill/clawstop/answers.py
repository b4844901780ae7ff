"""What a person is told about a stop: a line or two, in their language."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import reasons, receipts, scopes
from .errors import Held
from .words import language, say

Receipt = Mapping[str, Any]
Fact = tuple[str, dict[str, object]]  # which text, and what is filled in

SHORT = 60  # characters of a call: a phone shows two lines of it
MOST = 3  # calls that are named
SUSPECTS = 10  # and suspects: a person who confirms must have seen them
CHAT = {key: f"chat_{key}" for key in ("forgotten", "kept", "suspected", "spared")}
# What whoever has sent a new message has to know of the task that it ended.
NEEDED = {"forgotten", "already_done", "tried", "maybe_done", "jobs_off"}
NEEDED |= {"scheduled_elsewhere", "not_verified"}
CHINESE, KANA = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3040-\u30ff\uac00-\ud7af]")


def killed(receipt: Receipt) -> int:
    return sum(process["result"] == "dead" for process in receipt["processes"])


def short(receipt: Receipt) -> str:
    """As much of its id as finds it again."""
    return str(receipt["id"][: receipts.SHORT_ID])


def idle(receipt: Receipt) -> bool:
    """Nothing was there to stop."""
    forgotten = any("did" in row for row in receipt.get("memory") or ())
    return not (receipt["runs"] or receipt["processes"] or receipt["left"] or forgotten)


def summary(receipt: Receipt, lang: str | None = None, *, chat: bool = False) -> str:
    """One line of a list of stops."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(receipt["at"]))
    good = {"restore": "restored", "recovery": "recovered"}.get(
        receipt.get("trigger", ""), "converged"
    )
    word = say(good if receipt["converged"] else "incomplete", lang)
    told = {"when": when, "word": word, "killed": killed(receipt)}
    id = short(receipt) if chat else receipt["id"]
    return say("chat_line" if chat else "receipt", lang, id=id, target=receipt["target"], **told)


def lines(receipt: Receipt, lang: str | None = None) -> list[str]:
    """On a command line: what is left comes first; then what was done; then what was already out of
    our hands."""
    target, id = receipt["target"], receipt["id"]
    told = []
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
        told.append(say("stopped", lang, target=target, ms=_took(receipt), id=id, **counts))
    return told + [say(key, lang, **values) for key, values in _facts(receipt, lang)]


def chat(receipt: Receipt, lang: str | None = None) -> list[str]:
    """In chat: one line of short sentences, which a phone shows whole. What is left comes first."""
    told = _incomplete(receipt, lang)
    if receipt.get("trigger") == "/suspects":
        told.append(say("chat_suspects_ended", lang, killed=killed(receipt)))
    elif receipt["converged"] and idle(receipt):
        told.append(say("chat_nothing_ran", lang, name=_name(receipt)))
    elif receipt["runs"] or killed(receipt) or receipt["converged"]:
        told.append(say("chat_stopped", lang, name=_name(receipt), **_counts(receipt, lang)))
    told += _sentences(_facts(receipt, lang), receipt, lang)
    if short(receipt) not in " ".join(told):
        told.append(say("chat_receipt", lang, id=short(receipt)))
    return [_joined(told, lang)]


def taken(receipt: Receipt, lang: str | None = None) -> list[str]:
    """Of a task that a new message took over from a person hears only what they have to know: the
    answer to their message is what they wait for."""
    facts = [fact for fact in _facts(receipt, lang) if fact[0] in NEEDED]
    left = _incomplete(receipt, lang)
    if not facts and not left:
        return []
    ended = receipt["runs"] or killed(receipt)
    done = [say("chat_taken", lang, **_counts(receipt, lang))] if ended else []
    if receipt.get("alive"):
        done.append(say("chat_waits", lang))
    return [_joined([*left, *done, *_sentences(facts, receipt, lang)], lang)]


def is_chinese(text: str) -> bool:
    """Whether a person wrote this in Chinese; the bridge has the same rule."""
    return bool(CHINESE.search(text)) and not KANA.search(text)


def _incomplete(receipt: Receipt, lang: str | None) -> list[str]:
    if receipt["converged"]:
        return []
    again = "/stop" if scopes.is_session(receipt["target"]) else f"kill {receipt['target']}"
    again = "/suspects" if receipt.get("trigger") == "/suspects" else again
    return [say("chat_left", lang, left=_left(receipt, lang), again=again)]


def _left(receipt: Receipt, lang: str | None) -> str:
    """What is not done: what happens most in the person's language, the rest as it was told."""
    alive = [row for row in receipt["processes"] if row["result"] != "dead"]
    told = []
    if receipt.get("alive"):
        told.append(say("left_runs", lang, count=len(receipt["alive"])))
    if alive:
        named = "; ".join(f"{row['pid']} {row['command'][:SHORT]}" for row in alive[:MOST])
        told.append(say("left_processes", lang, count=len(alive), commands=named))
    held = [problem for problem in receipt["left"] if problem.endswith(Held.later)]
    if held:
        told.append(say("left_held", lang))
    counted = [("run ", receipt.get("alive")), ("process ", alive)]
    known = tuple(begin for begin, rows in counted if rows)
    rest = [problem for problem in receipt["left"] if problem not in held]
    others = [problem for problem in rest if not (known and problem.startswith(known))]
    told += others[:MOST]
    if len(others) > MOST:
        told[-1] = say("and_more", lang, calls=told[-1], count=len(others) - MOST)
    return "; ".join(told)


def _took(receipt: Receipt) -> float:
    return float(max(receipt["ms"].values()))


def _name(receipt: Receipt) -> str:
    """Whoever writes in a session knows which it is; an agent has a name."""
    return "" if scopes.is_session(receipt["target"]) else f" {receipt['target']}"


def _counts(receipt: Receipt, lang: str | None) -> dict[str, object]:
    runs, dead = len(receipt["runs"]), killed(receipt)
    return {
        "runs": say("one_run" if runs == 1 else "some_runs", lang, count=runs),
        "killed": say("one_killed" if dead == 1 else "some_killed", lang, count=dead),
        "seconds": f"{_took(receipt) / 1000:.1f}",
    }


def _sentences(facts: Sequence[Fact], receipt: Receipt, lang: str | None) -> list[str]:
    """As on the command line, but for what a person does about it in chat."""
    there = scopes.is_session(receipt["target"])  # they write in the stopped session itself
    keys = CHAT if there else {**CHAT, "suspected": "chat_suspected_elsewhere"}
    return [say(keys.get(key, key), lang, **values) for key, values in facts]


def _joined(told: Sequence[str], lang: str | None) -> str:
    begun = [text[:1].upper() + text[1:] for text in told]
    return say("sentence", lang).join(begun) + say("sentence", lang).rstrip()


def _facts(receipt: Receipt, lang: str | None) -> list[Fact]:
    """What a person should know beside the numbers, in the order of telling."""
    target, id = receipt["target"], receipt["id"]
    drained = receipt.get("drained") or {}  # an older clawstop wrote none
    facts = _memory(receipt, lang)
    facts += _calls(receipt, "done", "already_done", lang)
    facts += _calls(receipt, "failed", "tried", lang)
    facts += _calls(receipt, "outcome unknown", "maybe_done", lang)
    off = [job for job in drained.get("jobs", []) if job["outcome"] == "off"]
    if off:
        facts.append(("jobs_off", {"count": len(off), "id": id}))
    for kind, key in (("scheduled", "scheduled_elsewhere"), ("remote", "not_verified")):
        if receipt.get(kind):
            calls = "; ".join(call[:SHORT] for call in receipt[kind][:MOST])
            facts.append((key, {"calls": calls}))
    saved = [row["checkpoint"] for row in receipt.get("cooperated") or () if row["checkpoint"]]
    if saved:
        facts.append(("cooperated", {"places": "; ".join(name[:SHORT] for name in saved[:MOST])}))
    for kind, key in (("outbound", "withdrawn"), ("queued", "discarded")):
        if drained.get(kind):
            facts.append((key, {"count": len(drained[kind])}))
    facts += _named(receipt.get("leased"), "kept", lang)
    facts += _named(receipt.get("suspects"), "suspected", lang, SUSPECTS, target=target)
    if receipt["spared"]:
        facts.append(("spared", {"agents": ", ".join(receipt["spared"])}))
    return facts


def _memory(receipt: Receipt, lang: str | None) -> list[Fact]:
    """What the agent does not remember any more; an older clawstop took nothing away."""
    rows = receipt.get("memory") or []
    removed = [row for row in rows if row.get("did") == "remove"]
    facts: list[Fact] = []
    if removed:
        text = "; ".join(row["text"][:SHORT] for row in removed[:MOST])
        count = sum(row["entries"] for row in removed)
        undo = "/restore" if scopes.is_session(receipt["target"]) else f"/restore {short(receipt)}"
        about = {"count": count, "text": text, "id": receipt["id"], "undo": undo}
        facts.append(("forgotten", about))
    for row in [row for row in rows if "why" in row][:MOST]:
        why = say(f"why_{row['why']}", lang)
        facts.append(("remembered", {"session": row["session"], "why": why}))
    if receipt.get("notes"):
        facts.append(("noted", {"files": "; ".join(receipt["notes"][:MOST])}))
    return facts


def restored(receipt: Receipt, lang: str | None = None, *, chat: bool = False) -> list[str]:
    """What came of a restore."""
    told = [
        say("job_on" if job["outcome"] == "on" else "job_gone", lang, id=job["id"])
        for job in receipt.get("jobs", ())
    ]
    for move in receipt["memory"]:
        key = "memory_back" if move["did"] == "restore" else "memory_gone"
        how = f"/restore {short(receipt)}" if chat else f"clawstop restore {receipt['id']}"
        key = f"chat_{key}" if chat else key
        told.append(say(key, lang, session=move["session"], count=move["entries"], how=how))
    told += [f"  - {problem}" for problem in receipt.get("left", ())]
    return told or [say("nothing_to_restore", lang, id=receipt["of"])]


def recovered(
    rows: Sequence[Mapping[str, Any]], lang: str | None = None, *, every: bool = False
) -> list[str]:
    """What a crash cut off, and what became of it; `every` session, if wanted."""
    shown = [row for row in rows if every or row["did"] or row["state"] not in _SETTLED]
    return [_cut(row, lang) for row in shown] or [say("no_cuts", lang)]


_SETTLED = frozenset({"finished", "stopped", "running"})


def _cut(row: Mapping[str, Any], lang: str | None) -> str:
    tongue = lang or language()
    state = say(f"cut_{row['state'].replace(' ', '_')}", tongue)
    because = reasons.told(row["because"], tongue) if row["did"] else ""
    did = f" · {say('did_' + row['did'], tongue, why=because)}" if row["did"] else ""
    why = reasons.told(row["why"], tongue)
    return say("cut_line", tongue, state=state, session=row["session"], why=why, did=did)


def _call(tool: str, given: str) -> str:
    """A command as it was typed; anything else as it was given."""
    try:
        command = json.loads(given)["command"]
    except (ValueError, KeyError, TypeError):
        return f"{tool} {given[:SHORT]}".strip()
    return " ".join(str(command).split())[:SHORT]


def _named(
    rows: Sequence[Mapping[str, Any]] | None,
    key: str,
    lang: str | None,
    most: int = MOST,
    **values: object,
) -> list[Fact]:
    """Processes by their commands; an older clawstop wrote none."""
    if not rows:
        return []
    named = "; ".join(f"{row['pid']} {row['command'][:SHORT]}" for row in rows[:most])
    if len(rows) > most:
        named = say("and_more", lang, calls=named, count=len(rows) - most)
    return [(key, {"commands": named, **values})]


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


def _calls(receipt: Receipt, outcome: str, key: str, lang: str | None) -> list[Fact]:
    """The calls of this outcome that can be seen from outside this machine; of the runs that were
    ended, where that is known."""
    runs = {run["run"] for run in receipt["runs"]}
    calls = [
        _call(call["tool"], call["input"])
        for call in receipt["tools"]
        if call.get("reach") == "outside" and call["outcome"] == outcome
        if not runs or call.get("run") in runs
    ]
    if not calls:
        return []
    named = "; ".join(calls[:MOST])
    if len(calls) > MOST:
        named = say("and_more", lang, calls=named, count=len(calls) - MOST)
    return [(key, {"calls": named})]
