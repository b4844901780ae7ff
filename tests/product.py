"""Owns a copy of clawstop, with mechanisms taken out where a test wants to see red.

The product has no switch for that: the copy's text is changed, and a change that no longer fits the
text is an error.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("skill", "hooks", "agents_md_templates", "claw.json")


@dataclass(frozen=True)
class Patch:
    """One mechanism taken out: `old` stands exactly once in `file`."""

    file: str
    old: str
    new: str


NO_GATE = (
    Patch("skill/clawstop/engine.py", 'return {"refusal": refusal}', 'return {"refusal": None}'),
    Patch(
        "hooks/openclaw/bridge.js", "return refusal;\n  }\n\n  // A frozen", "}\n\n  // A frozen"
    ),
)
NO_END = (
    Patch("hooks/openclaw/host.js", "reply.abortByUser?.() === false", "true"),
    Patch(
        "hooks/openclaw/host.js", "(harness?.abortAgentHarnessRun ?? abortAtWork)(live)", "false"
    ),
    Patch("hooks/openclaw/host.js", "harness?.abortAndDrainAgentHarnessRun?.(", "harness?.none?.("),
    Patch("hooks/openclaw/host.js", 'rpc(api, "sessions.abort"', 'rpc(api, "no.such.method"'),
)
NO_KILL = (
    Patch(
        "hooks/clawstop_hooks/reaper.py",
        """reaped = reaping.reap(
        stop.owns, proofs=stop.proofs, spare=stop.spare, grace=stop.grace, signal=stop.signal
    )
    return [reaped]""",
        "return []",
    ),
    # The host ends a task's process, if it can, when the task is cancelled.
    Patch("hooks/openclaw/bridge.js", "drain.cancelTasks(this.api, sessions, execs)", "[]"),
)


def crash_at(*marks: str) -> tuple[Patch, ...]:
    """SIGKILL the engine once, right before each of these lines of a stop."""
    return tuple(
        Patch(
            "skill/clawstop/stops.py",
            f"        {mark}",
            f"        {_indent(mark)}__import__('product_crash').once(self._receipts, {number})\n"
            f"        {mark}",
        )
        for number, mark in enumerate(marks)
    )


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


CRASH = """
import os
def once(beside, number):
    mark = beside.with_name(f"crash{number}")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
"""


class Product:
    """A copy under `folder`, and its command line."""

    def __init__(self, folder: Path, *patches: Patch) -> None:
        self.folder = folder
        ignore = shutil.ignore_patterns("__pycache__")
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=ignore)
            else:
                shutil.copy(source, folder / part)
        (folder / "skill" / "product_crash.py").write_text(CRASH)
        for patch in patches:
            file = folder / patch.file
            text = file.read_text()
            assert text.count(patch.old) == 1, f"{patch.file} has no single {patch.old!r}"
            file.write_text(text.replace(patch.old, patch.new))

    @property
    def plugin(self) -> Path:
        return self.folder / "hooks" / "openclaw"

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-X", "utf8", str(self.folder / "skill")]

    def wire(self, state_dir: Path) -> None:
        """What `install` writes for the bridge."""
        folder = state_dir / "clawstop"
        folder.mkdir(mode=0o700)
        file = folder / "command.json"
        file.write_text(json.dumps({"command": [*self.command, "engine", "openclaw"]}))
        file.chmod(0o600)

    def run(self, state_dir: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *args],
            env={**os.environ, "OPENCLAW_STATE_DIR": str(state_dir), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def json(self, state_dir: Path, *args: str) -> Any:
        done = self.run(state_dir, *args, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)
