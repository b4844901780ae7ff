"""`python3 skill`: set-up happens once, and what goes wrong is one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = Path(sys.base_prefix) / "bin" / "python3"  # not the test environment's own


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy in a folder with a space and Chinese characters, without run bits."""
    folder = tmp_path / "my 技能"
    for part in ("skill", "hooks"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, folder / part, ignore=ignore, copy_function=shutil.copyfile)
    shutil.copyfile(ROOT / "claw.json", folder / "claw.json")
    return folder


def skill(checkout: Path, home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "CLAWSTOP_"))}
    return subprocess.run(
        [str(PYTHON), str(checkout / "skill"), *args],
        env={**kept, "HOME": str(home), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
    )


def environments(home: Path) -> list[Path]:
    return list((home / ".local/share/clawstop").glob("env-*"))


def test_set_up_happens_once_heals_itself_and_needs_no_network_again(
    checkout: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    first = skill(checkout, home, "--version", LANG="C")
    assert first.returncode == 0, first.stderr
    assert "setting up once" in first.stderr
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/none", "PIP_NO_INDEX": "1"}
    second = skill(checkout, home, "--version", LANG="C", **offline)
    assert (second.returncode, second.stderr) == (0, "")
    (environment,) = environments(home)
    shutil.rmtree(next(environment.glob("lib/python*/site-packages/click")))
    broken = skill(checkout, home, "--version", **offline)
    assert broken.returncode == 1
    assert "its environment was damaged" in broken.stderr
    assert "Traceback" not in broken.stderr
    failed = skill(checkout, home, "--version", **offline)
    assert failed.returncode == 1
    assert "the first set-up needs the network" in failed.stderr
    healed = skill(checkout, home, "--version")
    assert healed.returncode == 0, healed.stderr
    assert len(environments(home)) == 1


def test_a_home_that_cannot_be_written_is_a_sentence(checkout: Path, tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("not a folder")
    done = skill(checkout, home, "--version")
    assert done.returncode == 1
    assert "clawstop: cannot write to" in done.stderr
    assert "Traceback" not in done.stderr


def test_tests_are_not_part_of_a_download(checkout: Path, tmp_path: Path) -> None:
    done = skill(checkout, tmp_path, "test")
    assert done.returncode == 1
    assert "clone the repository" in done.stderr
