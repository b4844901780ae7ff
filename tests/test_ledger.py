"""What was done before a stop, what could be seen from outside first."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from clawstop.ledger import KEPT, Ledger, reach


def of(session: str, before: int = 1) -> Callable[[str, int], bool]:
    """Everything of this session from before a generation."""
    return lambda key, generation: key == session and generation < before


@pytest.mark.parametrize(
    ("tool", "input", "far"),
    [
        ("read", '{"path":"curl.txt"}', "read"),
        ("exec", '{"command":"ls"}', "machine"),
        ("exec", '{"command":"git  push"}', "outside"),
        ("exec", '{"command":"echo highlight"}', "machine"),
        ("write", '{"path":"x"}', "machine"),
        ("message", "", "outside"),
        ("a_tool_nobody_knows", "", "outside"),
    ],
)
def test_how_far_a_call_can_be_seen(tool: str, input: str, far: str) -> None:
    assert reach(tool, input) == far


def test_done_and_visible_comes_first_and_secrets_do_not_come_at_all() -> None:
    clock = itertools.count().__next__
    ledger = Ledger(lambda: float(clock()))
    ledger.refused("1", "s", "r", "message")
    ledger.allowed("2", "s", "r", "exec", "sleep 9")
    ledger.allowed("3", "s", "r", "exec", "TOKEN=abcdef make")
    ledger.finished("3", "s", True)
    ledger.allowed("4", "s", "r", "message", "hello")
    ledger.finished("4", "s", False)
    ledger.allowed("5", "s", "r", "message", "hi")
    ledger.finished("5", "s", True)
    ledger.allowed("6", "t", "r", "exec", "another session's")
    told = ledger.close(of("s"))["tools"]
    assert [(call["id"], call["outcome"]) for call in told] == [
        ("5", "done"),
        ("3", "done"),
        ("4", "failed"),
        ("2", "outcome unknown"),
        ("1", "blocked"),
    ]
    assert told[1]["input"] == "TOKEN=[redacted] make"
    assert ledger.close(of("s")) == {
        "tools": [],
        "suppressed": [],
        "scheduled": [],
        "remote": [],
    }
    assert [call["id"] for call in ledger.close(of("t"))["tools"]] == ["6"]


def test_what_was_not_said_is_told_once() -> None:
    ledger = Ledger()
    ledger.held("s", "r", "final", "password: hunter2")
    suppressed = ledger.close(of("s"))["suppressed"]
    assert suppressed[0]["text"] == "password: [redacted]"
    assert ledger.close(of("s"))["suppressed"] == []


def test_a_call_whose_end_was_lost_does_not_stay_for_ever() -> None:
    ledger = Ledger()
    for number in range(2 * KEPT):
        ledger.allowed(str(number), "s", "r", "exec")
    assert len(ledger.close(of("s"))["tools"]) == KEPT


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("(crontab -l; echo '* * * * * x') | crontab -", True),
        ("echo x | at now + 1 minute", True),
        ("systemctl --user enable --now nag.timer", True),
        ("systemd-run --on-active=60 x", True),
        ("cat notes", False),
        ("systemctl status ssh", False),
        ("echo meet me at noon", False),
        ('{"command":"at now + 1 minute"}', True),
    ],
)
def test_what_is_scheduled_outside_the_host_is_named(command: str, is_one: bool) -> None:
    ledger = Ledger()
    ledger.allowed("1", "s", "r", "exec", command)
    ledger.refused("2", "s", "r", "exec", "crontab never")
    assert ledger.close(of("s"))["scheduled"] == ([command] if is_one else [])


def test_a_write_schedules_nothing() -> None:
    ledger = Ledger()
    ledger.allowed("1", "s", "r", "write", '{"content":"crontab"}')
    assert ledger.close(of("s"))["scheduled"] == []


def test_what_a_newer_run_did_is_not_this_stops() -> None:
    ledger = Ledger()
    ledger.allowed("old", "s", "r1", "exec", "", 1)
    ledger.allowed("new", "s", "r2", "exec", "", 2)
    assert [call["id"] for call in ledger.close(of("s", 2))["tools"]] == ["old"]
    assert [call["id"] for call in ledger.close(of("s", 3))["tools"]] == ["new"]


@pytest.mark.parametrize(
    ("input", "remote"),
    [
        ('{"command": "ssh box make"}', True),
        ('{"command": "cd x && docker run -d img"}', True),
        ('{"command": "sudo podman exec c sh"}', True),
        ('{"command": "tmux new -d top"}', True),
        ('{"command": "make", "host": "node"}', True),
        ('{"command": "make", "host": "gateway"}', False),
        ('{"command": "cat docker-compose.yml"}', False),
        ('{"command": "echo sshd"}', False),
        ('{"command": "ls ~/.ssh "}', False),
    ],
)
def test_what_was_started_elsewhere_is_named(input: str, remote: bool) -> None:
    ledger = Ledger()
    ledger.allowed("c1", "s", "r", "exec", input, 1)
    assert bool(ledger.close(lambda *_: True)["remote"]) is remote
