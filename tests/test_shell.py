"""The shell that the gateway starts joins the cage of its run and then is the shell that was meant;
one whose cage was taken away comes too late and runs nothing."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clawstop import cgroups

SHELL = Path(__file__).parent.parent / "hooks" / "openclaw" / "shell.js"
# What the bridge does: make our shell the host's, tell what SHELL is, put it back.
SCRIPT = """
const { useShell, restoreShell } = await import(process.argv[1]);
const used = await useShell(process.argv[2]);
const ours = process.env.SHELL;
restoreShell(process.argv[2]);
console.log(JSON.stringify({ used, ours, back: process.env.SHELL ?? null }));
"""


@pytest.fixture
def cage() -> Iterator[Path]:
    folder = cgroups.folder_for(os.getpid(), secrets.token_hex(8))
    assert folder is not None
    made = folder / "cage"
    made.mkdir()
    yield made
    for one in (made, folder):
        if one.exists():
            one.rmdir()


def install(folder: Path, person: str | None = "/bin/bash") -> dict[str, Any]:
    node = shutil.which("node")
    assert node
    clean = {key: value for key, value in os.environ.items() if key != "SHELL"}
    environ = {**clean, **({"SHELL": person} if person else {})}
    done = subprocess.run(
        [node, "--input-type=module", "-e", SCRIPT, SHELL.as_uri(), str(folder)],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def run(shell: str | None, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    assert shell
    environ = {"PATH": os.environ["PATH"], **env}
    return subprocess.run([shell, "-c", script], env=environ, capture_output=True, text=True)


def test_it_joins_the_cage_and_is_the_shell_that_was_meant(tmp_path: Path, cage: Path) -> None:
    shell = install(tmp_path)["ours"]
    script = "cat /proc/$$/cgroup; readlink /proc/$$/exe; env | grep -c CLAWSTOP; exit 7"
    done = run(shell, script, CLAWSTOP_CAGE=str(cage))
    assert (done.returncode, done.stderr) == (7, "")
    *groups, binary, ours = done.stdout.splitlines()
    assert any(line.startswith("0::") and line.endswith("/cage") for line in groups)
    assert (Path(binary).name, ours) == ("bash", "0"), "nothing of ours is left in it"


def test_one_whose_cage_was_taken_away_runs_nothing(tmp_path: Path, cage: Path) -> None:
    shell = install(tmp_path)["ours"]
    cage.rmdir()
    done = run(shell, f"touch {tmp_path}/ran", CLAWSTOP_CAGE=str(cage))
    assert (done.returncode, done.stderr) == (125, "clawstop: this run was stopped\n")
    assert not (tmp_path / "ran").exists()


def test_where_nobody_asks_the_login_shell_it_has_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host would ask a shell that is in /etc/shells; ours is not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bash_profile").write_text("export PATH=/its/own:$PATH\n")
    shell = install(tmp_path / "shell")["ours"]
    assert run(shell, "echo $PATH").stdout.startswith("/its/own:")
    assert run(shell, "echo $PATH", PATH="/only").stdout.endswith(":/only\n")


@pytest.mark.parametrize("env", [{}, {"CLAWSTOP_CAGE": "/proc"}], ids=["none", "cannot join"])
def test_without_a_cage_to_join_it_runs(tmp_path: Path, env: dict[str, str]) -> None:
    done = run(install(tmp_path)["ours"], "echo hello", **env)
    assert (done.stdout, done.stderr) == ("hello\n", "")


@pytest.mark.parametrize(
    ("person", "name"), [("/bin/bash", "bash"), ("/bin/sh", "sh"), (None, "sh")]
)
def test_its_file_is_named_as_the_host_tells_shells_and_the_person_s_comes_back(
    tmp_path: Path, person: str | None, name: str
) -> None:
    told = install(tmp_path / "it's here", person)
    assert told["used"] is True
    assert told["ours"] == str(tmp_path / "it's here" / name)
    assert told["back"] == person
    assert run(told["ours"], "echo $((6 * 7))").stdout == "42\n"
    assert os.stat(told["ours"]).st_mode & 0o777 == 0o700
