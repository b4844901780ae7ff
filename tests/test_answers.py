"""What a person is told: what is left first, what was done before the stop, in two languages."""

from __future__ import annotations

from typing import Any

from clawstop import answers
from clawstop.ledger import Ledger


def receipt(**changes: Any) -> dict[str, Any]:
    ledger = Ledger(lambda: 1.0)
    for number in range(5):
        ledger.allowed(f"m{number}", "s", "r", "message", f'{{"to":"{number}"}}')
        ledger.finished(f"m{number}", "s", True)
    ledger.allowed("x", "s", "r", "exec", '{"command":"git push --force"}')
    ledger.allowed("y", "s", "r", "exec", '{"command":"ls"}')
    return {
        "id": "abc",
        "target": "dev1",
        "runs": [{"run": "r"}],
        "processes": [{"result": "dead"}, {"result": "left"}],
        "left": [],
        "converged": True,
        "spared": [],
        "ms": {"latched": 1.0, "killed": 20.4},
        "drained": {"queued": [], "jobs": [], "outbound": []},
        **ledger.close(lambda *_: True),
        **changes,
    }


def test_what_others_can_see_already_is_told() -> None:
    told = answers.lines(receipt(), "en")
    assert told == [
        "stopped dev1: runs ended 1, processes killed 1, 20 ms, receipt abc",
        'already done: message {"to":"0"}; message {"to":"1"}; message {"to":"2"} and 2 more',
        "cut off, outcome unknown: git push --force",
    ]


def test_in_chinese_too() -> None:
    told = answers.lines(receipt(spared=["main"]), "zh")
    assert told[0].startswith("已停止 dev1:结束运行 1 个")
    assert told[1].startswith("停止前已完成:message")
    assert told[2].startswith("被中断,结果未知:git push")
    assert told[3].startswith("未停止:main")


def test_what_is_left_comes_first() -> None:
    told = answers.lines(receipt(converged=False, left=["pid 7 is alive"]), "en")
    assert told[0].startswith("NOT COMPLETE: dev1")
    assert told[1] == "  - pid 7 is alive"


def test_what_was_taken_away_and_what_could_not_be() -> None:
    jobs = [{"outcome": "off"}, {"outcome": "gone"}]
    drained = {"queued": [{"text": "x"}], "jobs": jobs, "outbound": [{"id": "1"}] * 2}
    told = answers.lines(receipt(tools=[], drained=drained, scheduled=["crontab mine"]), "en")
    assert told[1:] == [
        "scheduled jobs turned off: 1 (clawstop restore abc turns them on)",
        "scheduled outside OpenClaw, still there: crontab mine",
        "messages not delivered any more: 2",
        "messages not answered any more: 1",
    ]


def test_an_idle_session_had_nothing_running() -> None:
    quiet = receipt(runs=[], processes=[], tools=[])
    assert answers.lines(quiet, "en") == [
        "stopped dev1: nothing was running; it waits for your next message, receipt abc"
    ]
