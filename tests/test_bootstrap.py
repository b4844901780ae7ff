"""`python3 skill`: set-up happens once, heals itself, and what goes wrong is one sentence."""

from __future__ import annotations

import ast
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clawstop import receipts

ROOT = Path(__file__).parent.parent
PYTHON = Path(sys.base_prefix) / "bin" / "python3"  # not the test environment's own
OFFLINE = {
    "UV_OFFLINE": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "http://127.0.0.1:9/none",
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_RETRIES": "0",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
]  # a venv takes 10 s, and 40 on a busy machine


def copied(folder: Path) -> Path:
    """clawstop in a folder with a space and Chinese characters, without run bits."""
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ("skill", "hooks"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignore, copy_function=shutil.copyfile)
    shutil.copyfile(ROOT / "claw.json", folder / "claw.json")
    return folder


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("checkout") / "my 技能")


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A PATH with nothing but a real uv on it."""
    folder = tmp_path_factory.mktemp("uv")
    found = shutil.which("uv")
    if not found:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "uv"]
        subprocess.run(pip, check=True, capture_output=True, timeout=100)
        found = str(folder / "bin" / "uv")
    (folder / "path").mkdir()
    (folder / "path" / "uv").symlink_to(found)
    return {"PATH": str(folder / "path"), "UV_CACHE_DIR": str(folder / "cache")}


@pytest.fixture(scope="module")
def made(
    checkout: Path, uv: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A home that uv has set up, and what was said meanwhile."""
    home = tmp_path_factory.mktemp("home")
    done = skill(checkout, home, "--version", **uv)
    assert done.returncode == 0, done.stderr
    return home, done.stderr


@pytest.fixture
def home(made: tuple[Path, str], tmp_path: Path) -> Path:
    """A home of one's own that is set up."""
    shutil.copytree(made[0] / ".local", tmp_path / "home" / ".local", symlinks=True)
    return tmp_path / "home"


def surroundings(home: Path, **env: str) -> dict[str, str]:
    """No uv on PATH unless a test says so, and nothing of whoever runs the tests."""
    unwanted = ("XDG_", "CLAWSTOP_", "OPENCLAW_", "LC_", "LANG", "PYTHON", "UV_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    return {**kept, "PATH": "/nowhere", "HOME": str(home), "LC_ALL": "C", **env}


def start(checkout: Path, home: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PYTHON), str(checkout / "skill"), *args],
        env=surroundings(home, **env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def skill(checkout: Path, home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    with start(checkout, home, *args, **env) as process:
        try:
            out, err = process.communicate(timeout=100)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def environments(home: Path) -> list[Path]:
    return list((home / ".local/share/clawstop").glob("env-*"))


def site(home: Path) -> Path:
    (environment,) = environments(home)
    (folder,) = environment.glob("lib/python*/site-packages")
    return folder


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that a failed start ends with."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("clawstop: ")
    return last


@contextmanager
def holding(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that is at its set-up, for ever."""
    hold = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('BEGIN EXCLUSIVE'); print(flush=True); sys.stdin.read()"
    )
    folder = home / ".local/share/clawstop"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", hold, str(folder / "set-up.lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout
        holder.stdout.readline()
        try:
            yield holder
        finally:
            holder.kill()


# -- set-up


def test_set_up_with_pip_moves_all_the_time_and_happens_once(
    checkout: Path, tmp_path: Path
) -> None:
    said, times = "", [time.monotonic()]
    with start(checkout, tmp_path, "--version", LC_ALL="", LANG="C") as process:
        assert process.stderr
        while char := process.stderr.read(1):
            said += char
            times.append(time.monotonic())
            if said.endswith("clawstop: ready\n"):
                break
        process.communicate(timeout=20)
    assert process.returncode == 0, said
    assert "setting up once" in said
    assert max(b - a for a, b in itertools.pairwise(times)) < 2
    again = skill(checkout, tmp_path, "--version", LC_ALL="", LANG="C", **OFFLINE)
    assert (again.returncode, again.stderr) == (0, ""), "silent, and without the network"
    assert len(environments(tmp_path)) == 1


def test_set_up_with_uv_where_there_is_one(made: tuple[Path, str]) -> None:
    home, said = made
    assert "installing packages" in said
    assert "pip" not in said
    assert not (site(home) / "pip").exists(), "uv's environments have none"


def test_set_ups_at_the_same_time_are_one(
    checkout: Path, uv: dict[str, str], tmp_path: Path
) -> None:
    several = [start(checkout, tmp_path, "--version", **uv) for _ in range(3)]
    said = [process.communicate(timeout=100)[1] for process in several]
    assert [process.returncode for process in several] == [0, 0, 0], said
    assert "".join(said).count("setting up once") == 1
    assert "waiting for another set-up" in "".join(said)
    assert len(environments(tmp_path)) == 1


def test_a_set_up_that_was_killed_holds_nobody_up(
    checkout: Path, home: Path, uv: dict[str, str]
) -> None:
    (environment,) = environments(home)
    (environment / "clawstop-complete").unlink()
    with holding(home) as holder, start(checkout, home, "--version", **uv) as waiting:
        assert waiting.stderr
        assert waiting.stderr.read(20) == "clawstop: waiting fo"
        holder.kill()
        out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, out.startswith("clawstop, version")) == (0, True), err
    assert "damaged or half made; making it anew" in err


def test_tests_and_the_demo_on_a_gateway_have_an_environment_of_their_own(
    home: Path, uv: dict[str, str], tmp_path: Path
) -> None:
    checkout = copied(tmp_path / "clone")
    (checkout / "tests").mkdir()
    lock = "-r ../skill/requirements.txt\niniconfig==2.3.0\n"
    (checkout / "tests" / "requirements.txt").write_text(lock)
    (checkout / "tests" / "run.py").write_text("import sys, iniconfig; print(sys.argv[1:])")
    done = skill(checkout, home, "test", "--quick", **uv)
    assert done.stdout == "['--quick']\n", done.stderr
    assert len(environments(home)) == 2
    cli = "import iniconfig\ndef main(prog_name): print('ran')\n"
    (checkout / "skill" / "clawstop" / "cli.py").write_text(cli)
    for words in (["demo", "--gateway"], ["--state-dir", "x", "demo", "--gateway=1"]):
        done = skill(checkout, home, *words)
        assert (done.stdout, done.stderr) == ("ran\n", "")


def test_tests_are_not_part_of_a_download(checkout: Path, tmp_path: Path) -> None:
    for words in (["test"], ["demo", "--gateway"]):
        assert "clone the repository" in sentence(skill(checkout, tmp_path, *words))
    assert not environments(tmp_path)


# -- words and letters


@pytest.mark.parametrize("encoding", ["cp936", "ascii", "utf-16"])
def test_everything_is_utf8_whatever_the_console_says(
    checkout: Path, home: Path, tmp_path: Path, encoding: str
) -> None:
    state = tmp_path / "状态 folder"
    state.mkdir()
    config = {"agents": {"entries": {"xm": {"name": "小明"}}}}
    (state / "openclaw.json").write_text(json.dumps(config))
    words = ["--state-dir", str(state), "stop", "小明", "--json"]
    env = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    done = skill(checkout, home, *words, **env)
    assert json.loads(done.stdout)["scopes"] == ["agent:xm"], done.stderr
    unknown = skill(checkout, home, "--state-dir", str(state), "stop", "没有", **env)
    assert unknown.returncode == 2
    assert "没有" in unknown.stderr
    forced = skill(checkout, home, "--state-dir", str(state), "stop", "没有", PYTHONUTF8="1", **env)
    assert _said(forced.stderr) == _said(unknown.stderr)
    nowhere = {**env, "XDG_DATA_HOME": "/proc/没有"}
    assert "/proc/没有" in sentence(skill(checkout, home, "status", **nowhere))


def _said(text: str) -> list[str]:
    """But for the signs of life of a busy machine."""
    return [line for line in text.splitlines() if not line.startswith("still working")]


# -- damage


def test_a_damaged_environment_without_a_network_is_a_sentence_and_heals_with_one(
    checkout: Path, home: Path, uv: dict[str, str]
) -> None:
    shutil.rmtree(site(home) / "click")
    broken = skill(checkout, home, "--version", **{**uv, **OFFLINE, "UV_CACHE_DIR": str(home)})
    assert "its environment is damaged (ModuleNotFoundError: No module named 'click'" in (
        broken.stderr
    )
    assert "trying pip" in broken.stderr
    assert "packages could not be installed" in sentence(broken)
    assert "needs the network" in sentence(broken)
    healed = skill(checkout, home, "--version", **uv)
    assert (healed.returncode, len(environments(home))) == (0, 1), healed.stderr


@pytest.mark.parametrize("damage", ["cut short", "python gone", "python is none"])
def test_a_damaged_environment_is_made_anew_within_the_same_command(
    checkout: Path, home: Path, uv: dict[str, str], damage: str
) -> None:
    (environment,) = environments(home)
    python = environment / "bin" / "python"
    if damage == "cut short":
        (site(home) / "click" / "__init__.py").write_text("from . import (")
    elif damage == "python gone":
        python.unlink()
        python.symlink_to("/nowhere/python3")
    else:
        python.unlink()
        python.write_text("text")
    done = skill(checkout, home, "--version", **uv)
    assert done.stdout.startswith("clawstop, version"), done.stderr
    assert "making it anew" in done.stderr
    assert skill(checkout, home, "--version").stderr == ""


def test_what_is_missing_only_later_heals_too_unless_the_command_may_be_half_done(
    home: Path, uv: dict[str, str], tmp_path: Path
) -> None:
    checkout = copied(tmp_path / "copy")
    cli = checkout / "skill" / "clawstop" / "cli.py"
    cli.write_text("def main(prog_name):\n    import yaml\n    print(yaml.__name__)\n")
    shutil.rmtree(site(home) / "yaml")
    done = skill(checkout, home, "restore", **uv)
    assert "run the same command again and it is made anew" in sentence(done)
    assert skill(checkout, home, "restore", **uv).stdout == "yaml\n"
    shutil.rmtree(site(home) / "yaml")
    assert skill(checkout, home, "status", **uv).stdout == "yaml\n"


def test_run_needs_no_environment(tmp_path: Path) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    (state / "clawstop" / "owned").mkdir(parents=True)
    (state / "clawstop" / "state-id").write_text("ab12\n")
    words = ("--state-dir", str(state), "run", "--agent", "dev1", "--", "/bin/sh", "-c")
    done = skill(ROOT, home, *words, "echo $CLAWSTOP_COOKIE; exit 7")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "1:ab12:0:run:agent%3Adev1%3Amain\n"
    assert environments(home) == []


def test_an_environment_that_never_works_is_made_once_and_said(
    home: Path, uv: dict[str, str], tmp_path: Path
) -> None:
    checkout = copied(tmp_path / "copy")
    cli = checkout / "skill" / "clawstop" / "cli.py"
    cli.write_text("def main(prog_name):\n    import nobody_locked_this\n")
    done = skill(checkout, home, "status", **uv)
    assert "was just made and does not work" in sentence(done)
    assert done.stderr.count("making it anew") == 1


def test_a_damaged_copy_is_not_taken_for_a_damaged_environment(home: Path, tmp_path: Path) -> None:
    checkout = copied(tmp_path / "copy")
    (checkout / "skill" / "clawstop" / "engine.py").write_text("def (")
    done = skill(checkout, home, "status")
    assert "this copy of clawstop is damaged (SyntaxError" in sentence(done)
    (checkout / "skill" / "clawstop" / "engine.py").unlink()
    assert "download it again" in sentence(skill(checkout, home, "status"))
    (environment,) = environments(home)
    assert (environment / "clawstop-complete").exists()


# -- what cannot be set up


def test_an_old_python_gets_a_sentence(checkout: Path, tmp_path: Path) -> None:
    source = (ROOT / "skill" / "__main__.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    old = (
        "import runpy, sys; sys.version_info = (3, 8, 18, 'final', 0)\n"
        "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [str(PYTHON), "-c", old, str(checkout / "skill"), "stop", "dev1"],
        env=surroundings(tmp_path),
        capture_output=True,
        text=True,
    )
    assert "needs Python 3.11 or newer, this is 3.8.18" in sentence(done)


def test_a_python_without_venv_gets_a_sentence_unless_there_is_uv(
    checkout: Path, uv: dict[str, str], tmp_path: Path
) -> None:
    """A Python as Debian has it before python3-venv is installed: without ensurepip and venv."""
    version = f"python3.{sys.version_info.minor}"
    library = tmp_path / "python" / "lib" / version
    library.mkdir(parents=True)
    for entry in (PYTHON.parent.parent / "lib" / version).iterdir():
        if entry.name not in ("venv", "ensurepip", "site-packages"):
            (library / entry.name).symlink_to(entry)
    python = tmp_path / "python" / "bin" / "python3"
    python.parent.mkdir()
    shutil.copy(PYTHON.resolve(), python)
    done = subprocess.run(
        [str(python), str(checkout / "skill"), "status"],
        env=surroundings(tmp_path),
        capture_output=True,
        text=True,
    )
    assert "cannot make a virtual environment" in sentence(done)
    assert "No module named venv" in sentence(done)
    done = subprocess.run(
        [str(python), str(checkout / "skill"), "--version"],
        env=surroundings(tmp_path, **uv),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_data_folder_that_cannot_be_written_is_a_sentence(checkout: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    taken = tmp_path / "taken"
    (taken / "clawstop" / "set-up.lock").mkdir(parents=True)
    for folder in (file, Path("/proc/self"), taken):
        done = skill(checkout, tmp_path, "--version", XDG_DATA_HOME=str(folder))
        assert f"cannot write to {folder}/clawstop" in sentence(done)


def test_a_read_only_environment_is_still_used(
    checkout: Path, home: Path, made: tuple[Path, str]
) -> None:
    before = sorted(str(path) for path in made[0].rglob("*"))
    assert skill(checkout, made[0], "--version", PYTHONDONTWRITEBYTECODE="1").returncode == 0
    assert sorted(str(path) for path in made[0].rglob("*")) == before, "nothing is written"


# -- a stop does not wait for set-up


def test_a_stop_acts_before_it_sets_up_and_is_finished_after(
    checkout: Path, uv: dict[str, str], tmp_path: Path
) -> None:
    state = tmp_path / "openclaw"
    (state / "agents" / "dev1").mkdir(parents=True)
    done = skill(checkout, tmp_path, "--state-dir", str(state), "stop", "dev1", **uv)
    assert done.returncode == 0, done.stderr
    acted = done.stderr.index("stopped dev1 without the engine")
    assert acted < done.stderr.index("setting up once")
    assert done.stdout.startswith("stopped dev1")
    found = list(receipts.read(state / "clawstop" / "receipts.jsonl"))
    assert [receipt["converged"] for receipt in found] == [True, True]
    assert found[0]["trigger"].endswith("(engine was down)")


def test_ctrl_c_during_set_up_leaves_the_stop_as_it_is(checkout: Path, tmp_path: Path) -> None:
    state = tmp_path / "openclaw"
    (state / "agents" / "dev1").mkdir(parents=True)
    words = ["--state-dir", str(state), "stop", "dev1"]
    with holding(tmp_path), start(checkout, tmp_path, *words) as stopping:
        assert stopping.stderr
        said = ""
        while "waiting for another set-up" not in said:
            said += stopping.stderr.read(1)
        stopping.send_signal(signal.SIGINT)
        out, err = stopping.communicate(timeout=20)
    assert stopping.returncode == 3, err
    assert out.startswith("stopped dev1 without the engine: closed on disk")
    assert "Traceback" not in err
    assert list((state / "clawstop" / "tombstones").glob("*.json"))
