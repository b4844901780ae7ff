"""What a person is told: what is left first, what was done before the stop, in two languages."""

from __future__ import annotations

from typing import Any

from clawstop import answers
from clawstop.errors import Held
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
    assert told[0].startswith("已停止 dev1：结束运行 1 个")
    assert told[1].startswith("停止前已完成：message")
    assert told[2].startswith("被中断，结果未知：git push")
    assert told[3].startswith("未停止：main")


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


# -- in chat


def test_in_chat_it_is_one_line() -> None:
    forgot = [{"session": "s", "did": "remove", "text": "x", "entries": 3}]
    told = answers.chat(receipt(target="agent:dev1:main", memory=forgot, id="0123456789"), "en")
    assert told == [
        "Stopped: 1 run ended, 1 process killed, 0.0 s. It has forgotten the task; /restore brings "
        'it back. Already done: message {"to":"0"}; message {"to":"1"}; message {"to":"2"} and 2 '
        "more. Cut off, outcome unknown: git push --force. Receipt 01234567."
    ]


def test_a_stop_of_another_agent_is_undone_by_its_receipt() -> None:
    forgot = [{"session": "agent:dev1:main", "did": "remove", "text": "x", "entries": 3}]
    [line] = answers.chat(receipt(tools=[], memory=forgot, id="0123456789"), "zh")
    assert line.startswith("已停止 dev1：结束 1 个任务，终止 1 个进程")
    assert "/restore 01234567" in line


def test_what_is_left_comes_first_in_chat_and_says_how_to_go_on() -> None:
    alive = {"pid": 7, "result": "left", "command": "sleep 9"}
    left = ["run r of s is still alive; restart", "process 7 is still alive: sleep 9", *"abcde"]
    changes: dict[str, Any] = {"converged": False, "left": left, "processes": [alive], "tools": []}
    [line] = answers.chat(receipt(alive=[{"run": "r"}], runs=[], **changes), "en")
    assert line.startswith(
        "NOT COMPLETE: runs still alive: 1 (restarting the gateway ends them); processes still "
        "alive: 1 (7 sleep 9); a; b; c and 2 more. Send kill dev1 to try again."
    )
    assert "Stopped" not in line, "nothing was"


def test_a_file_that_the_host_holds_is_told_in_the_persons_language() -> None:
    left = [f"the memory of s was not touched: process 7 still holds s0.jsonl{Held.later}"]
    for lang, words in (("en", "OpenClaw still holds"), ("zh", "OpenClaw 仍占用对话文件")):
        [line] = answers.chat(receipt(converged=False, left=left, tools=[], processes=[]), lang)
        assert words in line
        assert "s0.jsonl" not in line


def test_of_a_task_taken_over_only_what_matters_is_told() -> None:
    lease = [{"pid": 3, "command": "server"}]
    assert answers.taken(receipt(tools=[], leased=lease, suspects=lease), "en") == []
    [line] = answers.taken(receipt(), "en")
    assert line.startswith("The earlier task was ended: 1 run ended, 1 process killed, 0.0 s. Alr")


def test_calls_of_an_earlier_task_are_not_this_ones() -> None:
    others = receipt(runs=[{"run": "another"}])
    assert answers.taken(others, "en") == []


def test_what_failed_was_not_done() -> None:
    calls = [{**call, "outcome": "failed"} for call in receipt()["tools"]]
    told = answers.lines(receipt(tools=calls), "en")
    assert not [line for line in told if line.startswith("already done")]
    assert told[1].startswith("tried, and failed: ")
