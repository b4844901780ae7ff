"""`python3 skill test`: lint, types, tests, a real gateway. One command, one exit code."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from hosts.install import DEFAULT_VERSION
from hosts.table import ALONE, FILES, RECORD

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ["skill/clawstop", "skill/__main__.py", "hooks/clawstop_hooks"]
WORKERS = "4"  # most tests wait for processes to die, not for a core
PROCESSES = "tests/test_processes.py"
GATEWAYS = "2"  # at once: a gateway's tests wait more than they work
SOAK = "tests/hosts/test_soak.py"
OLDER = ("2026.7.35", "2026.4.9")  # the quick scenarios run on them too
NO_TESTS = 5  # pytest's exit code; fine where a person has chosen with options of their own
AGAIN = ["--last-failed", "--last-failed-no-failures", "none"]
FIRST = ["--maxfail", "1"]
PYTHON = [sys.executable, "-X", "utf8", "-m"]


def main() -> int:
    # A background job ignores Ctrl-C, and so would everything it starts: tests press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nor a hangup, behind nohup
    parser = argparse.ArgumentParser(prog="clawstop test", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="under a minute: no gateway, no set-up"
    )
    parser.add_argument("--host", metavar="VERSION", help="another OpenClaw release")
    parser.add_argument("--soak", action="store_true", help="also what takes long")
    parser.add_argument(
        "--table",
        action="store_true",
        help="with --host: only the scenarios, and its column in docs/hosts.md is written anew",
    )
    options, rest = parser.parse_known_args()
    release = options.host or DEFAULT_VERSION
    os.environ.update({"CLAWSTOP_TEST_HOST": options.host} if options.host else {})
    os.environ.update({"CLAWSTOP_TEST_SOAK": "1"} if options.soak else {})
    if options.table:
        return 0 if scenarios(release, rest, [], write=True) else 1
    checks = {
        "lint": [*PYTHON, "ruff", "check", "."],
        "format": [*PYTHON, "ruff", "format", "--check", "."],
        "types": [*PYTHON, "mypy"],
    }
    spread = [*PYTHON, "pytest", "-n", WORKERS]
    if options.quick:
        checks["tests"] = [*spread, "-m", "not gateway and not slow", "-k", "not portable", *rest]
    else:
        checks |= {
            "types on macOS": [*PYTHON, "mypy", "--platform", "darwin", *SHIPPED],
            "types on Windows": [*PYTHON, "mypy", "--platform", "win32", *SHIPPED],
            "tests": [*spread, "-m", "not gateway", f"--ignore={PROCESSES}", *rest],
        }
    fine = {0, NO_TESTS} if rest else {0}
    alone: list[str] = []  # steps with tests that failed beside others and passed by themselves

    def passes(name: str, command: list[str]) -> bool:
        """A step, and what failed in it beside other tests once more, alone: waits are bounded,
        and several gateways on two cores can be slower than any bound. Twice red is red."""
        if step(name, command, fine=fine):
            return True
        if "-n" not in command:
            return False
        if not step(f"{name}, alone", [*command, "-n", "0", *AGAIN, *FIRST]):
            return False
        alone.append(name)
        return True

    bare = not options.quick and not step("packages", [*PYTHON, "packages"], cwd=ROOT / "tests")
    older = () if options.host or options.quick else OLDER
    failed = []
    if not options.quick:
        # Alone: they watch the whole machine's processes, and a busy one makes them wait.
        failed += (
            [] if passes("processes", [*PYTHON, "pytest", PROCESSES, *rest]) else ["processes"]
        )
    with fetching(*([] if options.quick else [release, *older])):
        failed += [name for name, command in checks.items() if not passes(name, command)]
    if bare and os.environ.get("CI") == "true":
        failed.append("packages")
    skipped = options.quick
    if not skipped and not step("host", [*PYTHON, "hosts.install", release], cwd=ROOT / "tests"):
        skipped = True
        if os.environ.get("CI") == "true":
            failed.append("host")
    which = "gateway" if options.soak else "gateway and not soak"
    several = [*PYTHON, "pytest", "-n", GATEWAYS, "--dist", "loadfile", "-m", which]
    on_gateways = {
        "gateway": [*several, f"--ignore={SOAK}", *rest],
        "soak": [*PYTHON, "pytest", SOAK, *rest],  # alone: it counts what comes late
    }
    if not skipped:
        failed += [name for name, one in on_gateways.items() if not passes(name, one)]
        failed += [f"scenarios on {one}" for one in older if not scenarios(one, rest, alone)]
    if skipped:
        print("SKIPPED: the tests on a real gateway", flush=True)
    if options.quick:
        print("SKIPPED: set-up, the demo's mutants, the portable path, other platforms", flush=True)
    if not (options.soak or skipped):
        print("LEFT OUT: what takes long, see --soak", flush=True)
    if alone:
        print(f"ONLY ALONE: some passed only the second time, see above: {', '.join(alone)}")
    print(f"FAILED: {', '.join(failed)}" if failed else "all passed", flush=True)
    return 1 if failed else 0


def scenarios(release: str, rest: list[str], alone: list[str], *, write: bool = False) -> bool:
    """The scenarios of docs/hosts.md on this release; those that fail once more, alone."""
    told = {"CLAWSTOP_TEST_HOST": release, "PYTHONPATH": str(ROOT / "tests")}
    told |= {RECORD: "1"} if write else {}
    run = [*PYTHON, "pytest", "-n", GATEWAYS, "--dist", "loadfile", "-p", "hosts.table", *FILES]
    ready = step("host", [*PYTHON, "hosts.install", release], cwd=ROOT / "tests", told=told)
    fine = {0, NO_TESTS} if rest else {0}
    name = f"scenarios on {release}"
    if not ready or step(name, [*run, *rest], fine=fine, told=told):
        return ready
    told |= {RECORD: ALONE} if write else {}
    enough = AGAIN if write else [*AGAIN, *FIRST]
    passed = step(f"{name}, alone", [*run, "-n", "0", *enough, *rest], told=told)
    alone += [name] if passed else []
    return passed


@contextmanager
def fetching(*releases: str) -> Iterator[None]:
    """These hosts are downloaded meanwhile, quietly; the step that needs one waits, or tells."""
    command = [*PYTHON, "hosts.install", *releases]
    quiet = subprocess.DEVNULL
    fetch = subprocess.Popen(command, cwd=ROOT / "tests", stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        fetch.wait()


def step(
    name: str,
    command: list[str],
    cwd: Path = ROOT,
    fine: Set[int] = frozenset({0}),
    told: Mapping[str, str] = MappingProxyType({}),
) -> bool:
    print(f"== {name}", flush=True)
    begun = time.monotonic()
    done = subprocess.run(command, cwd=cwd, env={**environment(), **told}, check=False)
    print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
    return done.returncode in fine


def environment() -> dict[str, str]:
    """No one's own OpenClaw or clawstop gets into the tests, only what is meant for them."""
    outside = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("OPENCLAW_", "CLAWSTOP_")) or key.startswith("CLAWSTOP_TEST_")
    }
    return {**outside, "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(main())
