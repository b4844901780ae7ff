"""The last will of a session: written at once, bounded, private, and never needed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clawstop import Interruptible, cookies, wills
from clawstop.cookies import Owner
from clawstop.errors import UsageError
from clawstop.paths import Paths

S, T = "agent:dev1:main", "agent:dev2:main"
SKILL = Path(__file__).parent.parent / "skill"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths(tmp_path / "openclaw")
    found.prepare()
    return found


def command(paths: Paths, *words: str, owner: Owner | None = None) -> Any:
    env = {**os.environ, "OPENCLAW_STATE_DIR": str(paths.openclaw), "PYTHONPATH": str(SKILL)}
    env |= {cookies.VARIABLE: cookies.format(owner)} if owner else {}
    return subprocess.run(
        [sys.executable, "-m", "clawstop", "will", *words], env=env, capture_output=True, text=True
    )


def test_it_is_there_for_whoever_asks_without_an_engine(paths: Paths) -> None:
    told = ("--task", "digest", "--progress", "12/15", "--note", "记得续上王家卫风格")
    more = ("--json", '{"opening_line": "凌晨3点42分"}')
    done = command(paths, "set", "--session", S, *told, *more)
    assert done.returncode == 0, done.stderr
    shown = json.loads(command(paths, "show", "--session", S).stdout)
    assert shown["agent"] == "dev1"
    assert shown["progress"] == "12/15"
    assert shown["opening_line"] == "凌晨3点42分", "fields of one's own are kept"
    assert shown["can_resume"] is True
    assert shown["timestamp"].endswith("Z")
    assert command(paths, "show", "--session", T).returncode == 1
    (file,) = paths.wills.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_tool_writes_its_own_sessions_and_no_other(paths: Paths) -> None:
    owner = Owner(paths.state_id, S, 1)
    assert command(paths, "set", "--progress", "1", owner=owner).returncode == 0
    assert (wills.read(paths.wills, S) or {})["progress"] == "1"
    refused = command(paths, "set", "--session", T, "--progress", "2", owner=owner)
    assert refused.returncode == 2
    assert wills.read(paths.wills, T) is None


def test_a_task_writes_one(paths: Paths) -> None:
    task = Interruptible(S, paths=paths)
    task.will(task="rows", progress=3, can_resume=False, own=["a"])
    found = wills.read(paths.wills, S)
    assert found is not None
    assert (found["progress"], found["can_resume"], found["own"]) == (3, False, ["a"])
    task.will(progress=4)
    assert (wills.read(paths.wills, S) or {}).get("task") is None, "the newest one counts"


@pytest.mark.parametrize(
    "told",
    [{"note": "x" * wills.MOST}, {"note": {1, 2}}, {"note": float("nan")}, {"can_resume": "no"}],
)
def test_what_is_no_will_is_refused_and_the_old_one_stays(
    paths: Paths, told: dict[str, Any]
) -> None:
    wills.write(paths.wills, S, {"progress": "1"})
    with pytest.raises(UsageError):
        wills.write(paths.wills, S, told)
    assert (wills.read(paths.wills, S) or {})["progress"] == "1"


@pytest.mark.parametrize("content", [b"", b"{", b"\0\1", b"[]", b'{"session": "agent:x:y"}'])
def test_a_damaged_one_is_none(paths: Paths, content: bytes) -> None:
    file = wills.write(paths.wills, S, {})
    file.write_bytes(content)
    assert wills.read(paths.wills, S) is None


def test_a_name_never_becomes_a_path(paths: Paths) -> None:
    for name in ("agent:dev1:../../x", "agent:dev1:" + "长" * 1000, "agent:dev1:a/b\\c"):
        file = wills.write(paths.wills, name, {"progress": "1"})
        assert file.parent == paths.wills
        assert (wills.read(paths.wills, name) or {})["session"] == name


def test_somebody_elses_file_is_not_read(paths: Paths) -> None:
    file = wills.write(paths.wills, S, {"progress": "1"})
    file.chmod(0o666)
    assert wills.read(paths.wills, S) is None, "anybody could have written it"


def test_what_is_quoted_is_one_short_line() -> None:
    quoted = wills.quoted({"progress": "a\nb " + "x" * 1000, "note_to_self": ["c"], "other": "d"})
    assert "\n" not in quoted
    assert quoted.startswith("a b xxx")
    assert quoted.endswith('["c"]')
    assert len(quoted) < 2 * wills.SHOWN
