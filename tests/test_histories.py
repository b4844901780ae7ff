"""Random histories of real processes in a namespace of their own; see histories.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from product import ROOT, Patch, Product

LONG = bool(os.environ.get("CLAWSTOP_TEST_SOAK"))
COUNT = 10_000 if LONG else 1_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200 if LONG else 300)]


def play(skill: Path, count: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
            *(sys.executable, str(ROOT / "tests" / "histories.py"), str(count)),
        ],
        env={**os.environ, "PYTHONPATH": str(skill), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


def test_no_stranger_is_ever_signalled_and_nobody_owned_survives() -> None:
    done = play(ROOT / "skill", COUNT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{COUNT} histories\n"


MUTANTS = {
    "a record is a pid": Patch(
        "skill/clawstop/ownership.py", "return stat.start == ident.start", "return True"
    ),
    "a lease is nothing": Patch(
        "skill/clawstop/leases.py", "return hard or self.until <= now()", "return True"
    ),
    "nobody looks into cages": Patch(
        "skill/clawstop/ownership.py", "yield from self._caged()", "pass"
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_histories_find_a_mistake(tmp_path: Path, mutant: str) -> None:
    done = play(Product(tmp_path, MUTANTS[mutant]).folder / "skill", 1_000)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
