"""The commands of the tool that many come from do what they did, without run bits."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clawstop import ownership
from clawstop.paths import Paths
from product import ROOT, Product

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    (folder / "agents" / "zero_dev1").mkdir(parents=True)
    Paths(folder).prepare()
    assert Paths(folder).state_id
    space = tmp_path / "space"
    space.mkdir()
    (space / "AGENTS.md").write_text("# Hello\n")
    entries = {"zero_dev1": {"workspace": str(space)}}
    (folder / "openclaw.json").write_text(json.dumps({"agents": {"entries": entries}}))
    return folder


@pytest.fixture
def compat(tmp_path: Path, state: Path) -> Run:
    product = Product(tmp_path / "product")

    def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-X", "utf8", str(product.folder / "skill/compat" / script), *args],
            env={**os.environ, "OPENCLAW_STATE_DIR": str(state), "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("args", [["dev1"], ["--agent", "dev1"], ["--all"], ["all"]])
def test_interrupt(compat: Run, state: Path, args: list[str]) -> None:
    assert "would stop" in compat("interrupt.py", *args, "--dry-run").stdout
    assert not (state / "clawstop/receipts.jsonl").exists()
    done = compat("interrupt.py", *args)
    assert done.returncode == 0, done.stderr
    receipts = (state / "clawstop/receipts.jsonl").read_text().splitlines()
    assert json.loads(receipts[-1])["scopes"] == ["agent:zero_dev1"]


def test_interrupt_of_nobody(compat: Run) -> None:
    assert compat("interrupt.py").returncode == 2
    assert "nobody" in compat("interrupt.py", "nobody_at_all").stderr


def test_run_and_mark(compat: Run, state: Path) -> None:
    done = compat(
        "run.py", "--agent", "zero_dev1", "--", "sh", "-c", "echo $CLAWSTOP_COOKIE; exit 7"
    )
    assert done.returncode == 7
    assert "agent%3Azero_dev1%3Amain" in done.stdout
    mine = subprocess.Popen(["sleep", "61"])
    try:
        assert compat("mark.py", "--agent", "zero_dev1").returncode == 2
        assert compat("mark.py", "--agent", "zero_dev1", "--clear").returncode == 0
        done = compat("mark.py", "--agent", "zero_dev1", "--pid", str(mine.pid))
        assert done.returncode == 0, done.stderr
        known = ownership.proofs(Paths(state), frozenset()).records
        assert mine.pid in [ident.pid for ident in known]
    finally:
        mine.kill()
        mine.wait()


def test_watch_and_install(compat: Run, tmp_path: Path) -> None:
    assert compat("watch.py").returncode == 0
    assert "You are the agent `zero_dev1`" in (tmp_path / "space/AGENTS.md").read_text()
    done = compat("install.py", "--dry-run", "--include-main", "--agent", "zero_dev1")
    assert "openclaw" in done.stdout + done.stderr  # it is found, or it is said that it is not


def test_nothing_needs_a_run_bit_and_every_script_says_what_it_is() -> None:
    for file in (ROOT / "skill/compat").iterdir():
        assert not file.stat().st_mode & stat.S_IXUSR
        if file.suffix != ".py":
            continue
        done = subprocess.run([sys.executable, str(file), "--help"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_folder_that_was_used_is_as_it_was_downloaded(compat: Run, tmp_path: Path) -> None:
    """An updater takes one that is not for edited, and leaves it alone."""
    folder = tmp_path / "product"
    before = sorted(folder.rglob("*"))
    compat("interrupt.py", "dev1")
    compat("run.py", "--agent", "zero_dev1", "--", "true")
    again = [sys.executable, str(folder / "skill"), "status"]
    subprocess.run(again, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True)
    assert sorted(folder.rglob("*")) == before
