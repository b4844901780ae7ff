"""The demo proves what it shows: with a part of the stop taken out, it fails."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from product import NO_GATE, NO_KILL, ROOT, Patch, Product

NO_LATCH = (
    Patch("skill/clawstop/store.py", "            self._latch(latch, stop, now)\n", ""),
    Patch("skill/clawstop/store.py", "bumped = self._bump(bump)", "bumped = {}"),
)
NO_END = (Patch("skill/clawstop/embedded.py", "        await self._end_all(ending)\n", ""),)


def demo(product: Product, tmp_path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return product.run(tmp_path / "unused", "demo", *args, LC_ALL="C", TMPDIR=str(tmp_path))


def test_the_demo_shows_a_stop_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = demo(Product(tmp_path / "clawstop"), tmp_path, "--svg", str(tmp_path / "demo.svg"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "watched for 3 s: messages 0, tools 0, files written 0, processes alive 0" in done.stdout
    assert "the dying process wakes the agent: refused" in done.stdout
    assert "answers again" in done.stdout
    assert (tmp_path / "demo.svg").read_text(encoding="utf-8").startswith("<svg")
    assert not list(tmp_path.glob("clawstop-demo-*"))


def test_the_demo_leaves_the_agents_of_a_person_alone(tmp_path: Path) -> None:
    """Also where the variables of a real OpenClaw are set."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "AGENTS.md").write_text("# Mine\n", encoding="utf-8")
    config = tmp_path / "openclaw.json"
    config.write_text(json.dumps({"agents": {"defaults": {"workspace": str(workspace)}}}))
    product = Product(tmp_path / "clawstop")
    names = {"OPENCLAW_CONFIG_PATH": str(config), "OPENCLAW_WORKSPACE_DIR": str(workspace)}
    done = product.run(tmp_path / "unused", "demo", **names, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (workspace / "AGENTS.md").read_text(encoding="utf-8") == "# Mine\n"


def test_the_demo_as_the_first_process_of_a_container_without_cgroups(tmp_path: Path) -> None:
    """Every orphan is its own child then, and a zombie until it is waited for."""
    product = Product(tmp_path / "clawstop")
    inside = "for m in $(grep -o '/sys/fs/cgroup[^ ]*' /proc/mounts | tac); do umount -l $m; done; "
    done = subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c"),
            f'{inside} exec "$@"',
            *("sh", *product.command, "demo", "--json"),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["failures"]) == (0, [])
    assert {row["proof"] for row in told["receipt"]["processes"]} == {"cookie"}


@pytest.mark.slow
@pytest.mark.parametrize(  # without `end` alone the gate stops the run at its next tool
    ("name", "patches"),
    [("gate and end", NO_GATE + NO_END), ("kill", NO_KILL), ("latch", NO_LATCH)],
)
def test_the_demo_fails_without(tmp_path: Path, name: str, patches: tuple[Patch, ...]) -> None:
    done = demo(Product(tmp_path / "clawstop", *patches), tmp_path, "--json")
    assert done.returncode == 1, name
    assert json.loads(done.stdout)["failures"]


def test_the_picture_in_the_readme_is_there() -> None:
    assert "docs/demo.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8").startswith("<svg")
