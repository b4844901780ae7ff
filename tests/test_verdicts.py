"""How conversations stand after a crash, told from what real gateways left behind.

`tests/tails/` holds the ends of their transcripts, made by `hosts/tails.py`; each is labelled with
what had truly happened.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clawstop import evidence, reasons, turns, verdicts
from clawstop.verdicts import Evidence

TAILS = Path(__file__).parent / "tails"
WANTED = {  # label -> what we may say
    "finished": {"finished"},
    "trivial": {"finished"},
    "cut_off": {"cut off"},
    "stopped": {"stopped"},
    "waiting": {"cut off", "finished"},  # the question went down with its gateway
    "unknown": {"unknown"},
}
# What is not on disk yet, or not told apart there, our journal knows.
UNREAD, STOPPED = {"text": "[[go]] go"}, {"stopped": True}
JOURNAL: dict[str, Any] = {
    "accepted-soon": UNREAD,
    "accepted-now": UNREAD,
    "accepted-later": UNREAD,
    "first-thanks": {"text": "thanks"},
    "cron-hang": {"run": "r1"},
    "cron-tool-key": {"run": "r1"},
    "stop-early": STOPPED,
    "stopped-now": STOPPED,
    "aborted-now": STOPPED,
}


def cases() -> list[Any]:
    return [
        pytest.param(json.loads(line), id=f"{file.stem}-{json.loads(line)['name']}")
        for file in sorted(TAILS.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]


@pytest.mark.parametrize("case", cases())
def test_a_tail_of_a_real_gateway_is_told_right(case: dict[str, Any]) -> None:
    locked = case["lock"] is not None  # its holder is dead
    found = evidence.told(case["session"], case["entry"], reversed(case["lines"]), locked=locked)
    found = replace(found, **JOURNAL.get(case["name"], {}))
    verdict = verdicts.judge(found)
    assert verdict.state in WANTED[case["label"]], f"{case['why']}: {verdict}"


def test_there_are_enough_of_them() -> None:
    labels = [param.values[0]["label"] for param in cases()]
    assert len(labels) >= 60
    assert {"finished", "cut_off", "stopped", "trivial", "unknown"} <= set(labels)


def test_every_reason_has_chinese_words() -> None:
    """Those in the code: a reason is what a Verdict, a stage or a move is given as text."""
    package = Path(reasons.__file__).parent
    found = set()
    for name in ("verdicts.py", "recovery.py", "cuts.py"):
        for node in ast.walk(ast.parse((package / name).read_text(encoding="utf-8"))):
            found |= set(_given(node))
    assert len(found) > 30
    lacking = [why for why in found if reasons.told(why, "zh") == why]
    assert lacking == []
    assert reasons.told("its will says so", "en") == "its will says so"


def _given(node: ast.AST) -> Iterator[str]:
    texts: list[ast.expr] = []
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        texts += node.args[1:2] if name == "Verdict" else []
        texts += node.args[-1:] if name in ("_move", "_failed") else []
        texts += [word.value for word in node.keywords if word.arg == "why"]
    elif isinstance(node, ast.Tuple) and node.elts and "Stage." in ast.unparse(node.elts[0]):
        texts += node.elts[1:2]
    elif isinstance(node, ast.FunctionDef) and node.name == "_of_its_own":
        texts += [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
    for text in texts:
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value:
            yield text.value
        elif isinstance(text, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else "7" for p in text.values]
            if len(parts) > 1:  # else it is somebody else's error
                yield "".join(map(str, parts))


@pytest.mark.parametrize(("stop", "state"), [("", "cut off"), ("error", "finished")])
def test_what_a_host_gave_up_on_at_its_start_was_cut_off(stop: str, state: str) -> None:
    """It says that it has failed, and that something was aborted, and nobody wanted that."""
    calls = [] if stop else [{"type": "toolCall", "id": "1", "name": "exec", "arguments": {}}]
    message = {"role": "assistant", "content": calls, "stopReason": stop or "toolUse"}
    entry = turns.read({"type": "message", "id": "e1", "message": message}, 0)
    assert entry
    tail = verdicts.Tail.of([entry])
    found = Evidence("agent:a:b", tail, status="failed", aborted=not stop, ended=9.0)
    assert verdicts.judge(replace(found, run="r1", asked=5.0)).state == state


@pytest.mark.timeout(20)
@pytest.mark.parametrize("nod", ["嗯", "哈", "ha", "k", "ok ", "好的", "thank you "])
def test_a_long_row_of_nods_and_then_a_word_is_told_at_once(nod: str) -> None:
    """The engine judges in its own loop: nobody could be stopped meanwhile."""
    assert verdicts.is_trivial(nod * 300)
    assert not verdicts.is_trivial(nod * 300 + "report?")
