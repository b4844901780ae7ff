"""A stop flag counts when it is fresh, whole and ours; anything else in its place is nothing."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from clawstop import flags
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NOW = 1_800_000_000.0


def flag(folder: Path, session: str = "abc123", **changes: Any) -> Path:
    """As the scripts people have write it."""
    content = {"sessionId": session, "timestamp": int(NOW * 1000), "reason": "enough"} | changes
    file = folder / f"agent-stop-{session}.flag"
    file.write_text(json.dumps(content))
    os.utime(file, (NOW, NOW))
    return file


def sessions(folder: Path, now: float = NOW, **environ: str) -> list[str]:
    return [found.session for found in flags.fresh([folder], now, environ)]


def test_a_fresh_flag_counts_and_an_old_one_does_not(tmp_path: Path) -> None:
    flag(tmp_path)
    assert sessions(tmp_path) == ["abc123"]
    assert sessions(tmp_path, NOW + 59) == ["abc123"]
    assert sessions(tmp_path, NOW + 61) == []
    assert sessions(tmp_path, NOW - 61) == [], "nor one from the future"
    assert sessions(tmp_path, NOW + 61, INTERRUPT_FLAG_MAX_AGE="120") == ["abc123"]
    assert sessions(tmp_path, NOW + 59, INTERRUPT_FLAG_MAX_AGE="soon") == ["abc123"]


def test_the_same_flag_is_the_same_stop_and_a_new_one_is_not(tmp_path: Path) -> None:
    flag(tmp_path)
    first = flags.fresh([tmp_path], NOW)[0].stop
    assert flags.fresh([tmp_path], NOW + 1)[0].stop == first
    flag(tmp_path, timestamp=int(NOW * 1000) + 5)
    assert flags.fresh([tmp_path], NOW)[0].stop != first


def test_a_session_key_is_named_in_a_form_that_is_no_path(tmp_path: Path) -> None:
    flag(tmp_path, "agent%3Amain%3Aa%2Fb")
    assert flags.fresh([tmp_path], NOW)[0].names[-1] == "agent:main:a/b"


def test_a_link_is_no_flag(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    real = flag(tmp_path)
    (inside / "agent-stop-abc123.flag").symlink_to(real)
    assert sessions(inside) == []


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can give a file away")
def test_another_users_flag_is_no_flag(tmp_path: Path) -> None:
    os.chown(flag(tmp_path), 65534, 65534)
    assert sessions(tmp_path) == []


def test_a_folder_a_pipe_and_a_flag_for_somebody_else_are_no_flags(tmp_path: Path) -> None:
    (tmp_path / "agent-stop-folder.flag").mkdir()
    os.mkfifo(tmp_path / "agent-stop-pipe.flag")
    flag(tmp_path, "mine", sessionId="yours")
    (tmp_path / "agent-stop-big.flag").write_text(" " * 20_000 + "{}")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/agent-stop-\xff.flag")).write_text("{}")
    assert sessions(tmp_path, time.time()) == []
    assert sessions(tmp_path / "nowhere") == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_no_content_is_more_than_a_flag_or_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "agent-stop-any.flag"
    file.write_bytes(content)
    os.utime(file, (NOW, NOW))
    assert sessions(tmp_path) in ([], ["any"])


@pytest.mark.parametrize("content", ["", "{", '{"sessionId": "half', "[]", "7", "null"])
def test_half_a_flag_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "agent-stop-half.flag").write_text(content)
    assert sessions(tmp_path, time.time()) == []


@pytest.mark.parametrize(
    ("written", "told"), [("SIGINT", "INT"), ("SIGTERM", "TERM"), ("SIGKILL", "TERM"), (7, "TERM")]
)
def test_a_flag_says_how_processes_are_told_to_leave(
    tmp_path: Path, written: Any, told: str
) -> None:
    flag(tmp_path, signal=written)
    (found,) = flags.fresh([tmp_path], NOW, {})
    assert found.signal == told
