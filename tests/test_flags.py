"""A stop flag counts when it is fresh, whole and ours; anything else in its place is nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clawstop import checkpoints, flags
from clawstop.cookies import Owner
from clawstop.errors import StoreError
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


def test_a_flag_of_the_future_does_not_wait_for_its_time(tmp_path: Path) -> None:
    file = flag(tmp_path)
    assert flags.check([tmp_path], "abc123", now=NOW - 3600) is None
    assert not file.exists()


def test_a_hard_link_is_no_flag(tmp_path: Path) -> None:
    mine = tmp_path / "settings.json"
    mine.write_text('{"a": 1}')
    os.utime(mine, (NOW, NOW))
    os.link(mine, tmp_path / "agent-stop-abc123.flag")
    assert sessions(tmp_path) == []


@pytest.mark.parametrize("at", ["1e400", "-5", "9" * 401])
def test_a_checkpoint_with_an_impossible_time_is_as_old_as_its_file(
    tmp_path: Path, at: str
) -> None:
    saved = checkpoints.save(tmp_path, checkpoints.State("abc123", "", [], time.time()))
    told = json.loads(saved.read_text()) | {"timestamp": 0}
    saved.write_text(json.dumps(told).replace('"timestamp": 0', f'"timestamp": {at}'))
    found = checkpoints.load(saved)
    assert found is None or abs(found.at - time.time()) < 60


def test_the_same_flag_is_the_same_stop_and_a_new_one_is_not(tmp_path: Path) -> None:
    flag(tmp_path)
    first = flags.fresh([tmp_path], NOW)[0].stop
    assert flags.fresh([tmp_path], NOW + 1)[0].stop == first
    flag(tmp_path, timestamp=int(NOW * 1000) + 5)
    assert flags.fresh([tmp_path], NOW)[0].stop != first


def test_a_session_key_is_named_in_a_form_that_is_no_path(tmp_path: Path) -> None:
    flag(tmp_path, "agent%3Amain%3Aa%2Fb")
    assert flags.fresh([tmp_path], NOW)[0].names[-1] == "agent:main:a/b"


def test_a_flag_that_goes_while_one_looks_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may make and remove such files in a temp folder, again and again."""
    scandir = os.scandir

    @contextmanager
    def racing(place: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        flag(tmp_path, "goes")
        with scandir(place) as entries:
            found = sorted(entries, key=lambda entry: "goes" not in entry.name)
        (tmp_path / "agent-stop-goes.flag").unlink()
        yield iter(found)

    flag(tmp_path)
    monkeypatch.setattr(os, "scandir", racing)
    assert sessions(tmp_path) == ["abc123"]


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


def test_tmp_counts_where_the_temp_folder_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: older scripts write to /tmp."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert flags.folders(tmp_path / "own", {}) == [tmp_path / "own", Path("/tmp"), tmp_path]


@pytest.mark.parametrize("age", ["-1", "0", "nan", "inf"])
def test_no_age_makes_every_flag_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: str
) -> None:
    monkeypatch.setenv("INTERRUPT_FLAG_MAX_AGE", age)
    flag(tmp_path)
    assert flags.check([tmp_path], "abc123", now=NOW + 1) is not None
    assert flags.check([tmp_path], "abc123", now=NOW + 59) is not None


def test_a_task_with_little_patience_takes_no_flag_of_an_engine_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERRUPT_FLAG_MAX_AGE", "1")
    engines, persons = flag(tmp_path, stop="s1"), flag(tmp_path, "other")
    for session in ("abc123", "other"):
        assert flags.check([tmp_path], session, now=NOW + 30) is None
    assert (engines.exists(), persons.exists()) == (True, False)
    assert flags.check([tmp_path], "abc123", now=NOW + 2 * 86400) is None
    assert not engines.exists(), "its engine is gone"


def test_a_flag_that_is_not_for_this_process_hides_no_order(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    flag(ours, stop="s1", state="beef", generation=3)
    flag(theirs)
    owner = Owner("beef", "abc123", 3)
    found = flags.check([ours, theirs], "abc123", now=NOW, owner=owner)
    assert found is not None
    assert found.file.parent == theirs


@pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_nothing_is_written_into_a_folder_of_somebody_else(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    place.chmod(mode)
    os.chown(place, 65534, 65534)
    (tmp_path / "link").symlink_to(place)
    state = checkpoints.State("abc123", at=time.time())
    for folder in (place, tmp_path / "link"):
        with pytest.raises(StoreError, match="not a folder of yours"):
            flags.home(tmp_path / "own", {"INTERRUPT_FLAG_DIR": str(folder)})
        with pytest.raises(StoreError, match="not a folder of yours"):
            checkpoints.save(folder, state)
    assert not list(place.iterdir())
    os.chown(place, 0, 0)
    assert flags.home(tmp_path / "own", {"INTERRUPT_FLAG_DIR": str(tmp_path / "link")})
