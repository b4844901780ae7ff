"""`python3 skill test`: lint, types, tests, real gateways. One command, one exit code."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="clawstop test", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave the real gateways out")
    options, rest = parser.parse_known_args()
    python = [sys.executable, "-X", "utf8", "-m"]
    marker = ["-m", "not gateway"] if options.quick else []
    steps = {
        "lint": [*python, "ruff", "check", "."],
        "format": [*python, "ruff", "format", "--check", "."],
        "types": [*python, "mypy"],
        "tests": [*python, "pytest", *marker, *rest],
    }
    failed = []
    for name, command in steps.items():
        print(f"== {name}", flush=True)
        begun = time.monotonic()
        if subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
    print(f"FAILED: {', '.join(failed)}" if failed else "all passed", flush=True)
    return 1 if failed else 0


def environment() -> dict[str, str]:
    """No one's own OpenClaw or clawstop gets into the tests; only the host cache may be named."""
    outside = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OPENCLAW_", "CLAWSTOP_")) or key == "CLAWSTOP_TEST_CACHE"
    }
    return {**outside, "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(main())
