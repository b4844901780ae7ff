"""The command line without a gateway: words, exit codes, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from string import Formatter

import pytest
from clawstop import cookies, install, processes, receipts, starter
from clawstop.cookies import Owner
from clawstop.paths import Paths, write_private
from clawstop.words import TEXTS

SKILL = Path(__file__).parent.parent / "skill"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "openclaw").mkdir()
    configure(tmp_path / "openclaw", "main", "dev1")
    return tmp_path / "openclaw"


def configure(state: Path, *agents: str) -> None:
    entries: dict[str, dict[str, str]] = {id: {} for id in agents}
    (state / "openclaw.json").write_text(json.dumps({"agents": {"entries": entries}}))


def made(state: Path) -> Paths:
    paths = Paths(state)
    paths.prepare()
    return paths


def clawstop(state: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "utf8", str(SKILL), *args],
        env={**os.environ, "LC_ALL": "C", "OPENCLAW_STATE_DIR": str(state), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_stop_without_a_gateway_latches_and_says_so(state: Path) -> None:
    done = clawstop(state, "stop", "dev1")
    assert done.returncode == 0
    assert done.stdout.startswith("stopped dev1: nothing was running")
    assert "stopped  agent:dev1" in clawstop(state, "status").stdout


def test_kill_is_another_name_for_stop(state: Path) -> None:
    assert clawstop(state, "kill", "dev1").stdout.startswith("stopped dev1")


def test_an_unknown_target_lists_the_agents_and_exits_2(state: Path) -> None:
    done = clawstop(state, "stop", "nobody")
    assert done.returncode == 2
    assert "no agent or session is called 'nobody'; agents: dev1, main" in done.stderr
    assert not (state / "clawstop" / "receipts.jsonl").exists()


def test_all_spares_main_and_names_it(state: Path) -> None:
    done = clawstop(state, "stop", "all")
    assert "not stopped: main (add --include-main" in done.stdout


def test_all_with_main(state: Path) -> None:
    answer = json.loads(clawstop(state, "stop", "all", "--include-main", "--json").stdout)
    assert (answer["scopes"], answer["spared"]) == (["agent:dev1", "agent:main"], [])


def test_a_part_of_an_id_is_enough_when_it_is_one_agents(state: Path) -> None:
    configure(state, "zero_pm", "zero_dev2", "one_dev2")
    answer = json.loads(clawstop(state, "stop", "PM", "--json").stdout)
    assert answer["scopes"] == ["agent:zero_pm"]


def test_a_name_that_several_have_is_exit_4_and_stops_nobody(state: Path) -> None:
    configure(state, "zero_dev2", "one_dev2")
    done = clawstop(state, "stop", "dev2")
    assert done.returncode == 4
    assert "dev2 could be\n  1. one_dev2\n  2. zero_dev2" in done.stderr
    assert json.loads(clawstop(state, "status", "--json").stdout)["latches"] == []


def test_chinese_by_locale(state: Path) -> None:
    done = clawstop(state, "stop", "dev1", LANG="zh_CN.UTF-8", LC_ALL="")
    assert done.stdout.startswith("已停止 dev1：没有正在运行的任务")
    done = clawstop(state, "stop", "nobody", LANG="zh_CN.UTF-8", LC_ALL="")
    assert "没有名为 'nobody' 的智能体或会话；现有：dev1, main" in done.stderr


def test_every_text_exists_in_both_languages_with_the_same_values() -> None:
    for key, (english, chinese) in TEXTS.items():
        fields = [sorted(f for _, f, _, _ in Formatter().parse(t) if f) for t in (english, chinese)]
        assert fields[0] == fields[1], key


def test_all_is_main_when_there_is_nobody_else(tmp_path: Path) -> None:
    for agent in ("main", "stale"):
        (tmp_path / "agents" / agent).mkdir(parents=True)
    answer = json.loads(clawstop(tmp_path, "stop", "all", "--json").stdout)
    assert (answer["scopes"], answer["spared"]) == (["agent:main"], [])


def test_a_folder_that_was_left_is_not_meant_before_an_agent(state: Path) -> None:
    configure(state, "main", "zero_pm")
    for agent in ("pm", "old"):
        (state / "agents" / agent).mkdir(parents=True)
    answer = json.loads(clawstop(state, "stop", "pm", "--json").stdout)
    assert answer["scopes"] == ["agent:zero_pm"]
    answer = json.loads(clawstop(state, "stop", "old", "--json").stdout)
    assert answer["scopes"] == ["agent:old"], "where nobody else is meant"


def test_a_dry_run_changes_nothing(state: Path) -> None:
    preview = json.loads(clawstop(state, "stop", "everything", "--dry-run", "--json").stdout)
    assert preview["scopes"] == ["*"]
    assert json.loads(clawstop(state, "status", "--json").stdout)["latches"] == []
    assert not (state / "clawstop" / "receipts.jsonl").exists()


def test_what_cannot_be_killed_is_exit_3_with_what_is_left(state: Path) -> None:
    """Asked for by the session's own process, which is never shot while it asks."""
    session = "agent:dev1:main"
    cookie = cookies.format(Owner(made(state).state_id, session, 0))
    inner = [sys.executable, "-X", "utf8", str(SKILL), "stop", session]
    outer = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    done = subprocess.run(
        [sys.executable, "-c", outer, *inner],
        env={**os.environ, "OPENCLAW_STATE_DIR": str(state), cookies.VARIABLE: cookie},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "NOT COMPLETE" in done.stdout
    assert "asked for this stop, or is a gateway, and was left alone" in done.stdout
    assert clawstop(state, "stop", session).returncode == 0, "a repeated stop completes it"


def test_release_is_refused_to_a_process_of_an_agent_with_exit_5(state: Path) -> None:
    clawstop(state, "stop", "dev1")
    cookie = cookies.format(Owner("0123456789abcdef", "agent:dev1:main", 1))
    done = clawstop(state, "release", "dev1", **{cookies.VARIABLE: cookie})
    assert done.returncode == 5
    assert "release is for people" in done.stderr
    assert "stopped  agent:dev1" in clawstop(state, "status").stdout


def test_release_of_what_is_not_stopped_says_so(state: Path) -> None:
    done = clawstop(state, "release", "dev1")
    assert (done.returncode, done.stdout) == (0, "dev1 was not stopped\n")


def test_receipts_verify_fails_on_an_edited_file(state: Path) -> None:
    clawstop(state, "stop", "dev1")
    assert clawstop(state, "receipts", "--verify").returncode == 0
    file = state / "clawstop" / "receipts.jsonl"
    file.write_text(file.read_text().replace("dev1", "dev2"))
    done = clawstop(state, "receipts", "--verify")
    assert done.returncode == 1
    assert "was changed" in done.stdout


def test_one_receipt_is_shown_by_its_id(state: Path) -> None:
    clawstop(state, "stop", "dev1")
    (receipt,) = receipts.read(state / "clawstop" / "receipts.jsonl")
    assert json.loads(clawstop(state, "receipts", receipt["id"]).stdout) == receipt
    assert clawstop(state, "receipts", "nope").returncode == 2


def test_doctor_says_what_to_do_and_exits_1(state: Path) -> None:
    done = clawstop(state, "doctor")
    assert done.returncode == 1
    assert "-> run: clawstop install" in done.stdout


def test_install_without_openclaw_is_a_sentence(state: Path) -> None:
    done = clawstop(state, "install", PATH="/nowhere")
    assert done.returncode == 2
    assert "install OpenClaw first" in done.stderr


def test_the_installed_command_works_without_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    skill = tmp_path / "skill.py"
    skill.write_text("import sys; print('bootstrap', sys.argv[1:])")
    for python in (sys.executable, str(tmp_path / "gone")):
        assert list(install._write_launcher([python, str(skill)], tmp_path, dry_run=False))
        done = subprocess.run([str(starter.launcher()), "stop", "a b"], capture_output=True)
        assert done.stdout.decode().strip() == "bootstrap ['stop', 'a b']", done.stderr
    starter.launcher().write_text("somebody's own")
    assert "it is not ours" in next(install._write_launcher(["x", "y"], tmp_path, dry_run=False))
    assert starter.launcher().read_text() == "somebody's own"


def test_a_bad_setting_is_a_sentence_and_never_keeps_a_stop_from_working(state: Path) -> None:
    bad = {"CLAWSTOP_GRACE_MS": "soon"}
    assert clawstop(state, "stop", "dev1", **bad).returncode == 0
    problems = json.loads(clawstop(state, "status", "--json", **bad).stdout)["problems"]
    assert "CLAWSTOP_GRACE_MS: expected a whole number" in problems[0]


def test_uninstall_is_refused_to_a_process_of_an_agent(state: Path) -> None:
    cookie = cookies.format(Owner("0123456789abcdef", "agent:dev1:main", 1))
    done = clawstop(state, "uninstall", "--dry-run", **{cookies.VARIABLE: cookie})
    assert done.returncode == 5


def test_a_stop_that_takes_long_says_that_it_is_still_working(state: Path) -> None:
    paths = made(state)
    with subprocess.Popen(["sleep", "60"]) as gateway:
        ident = processes.ident_of(gateway.pid)
        assert ident
        file = paths.bridges / f"{gateway.pid}.json"
        write_private(file, json.dumps({"pid": ident.pid, "start": ident.start}))
        done = clawstop(state, "stop", "dev1")
        gateway.kill()
    assert done.returncode == 3
    assert f"gateway {gateway.pid} is not connected" in done.stdout
    assert "still working, 2 s ..." in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(state: Path, shell: str) -> None:
    done = clawstop(state, _CLAWSTOP_COMPLETE=f"{shell}_source")
    assert "_CLAWSTOP_COMPLETE" in done.stdout
    words = {"COMP_WORDS": "clawstop st", "COMP_CWORD": "1"}
    done = clawstop(state, _CLAWSTOP_COMPLETE="bash_complete", **words)
    assert "plain,stop" in done.stdout.splitlines()


def test_a_second_engine_says_that_there_is_one(state: Path) -> None:
    command = [sys.executable, "-X", "utf8", str(SKILL), "engine"]
    env = {**os.environ, "OPENCLAW_STATE_DIR": str(state)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        while "engine ready" not in first.stderr.readline():
            pass
        second = clawstop(state, "engine")
        assert second.returncode == 1
        assert "another engine serves" in second.stderr
        assert clawstop(state, "stop", "dev1").returncode == 0, "through the first"
        first.terminate()
        first.communicate(timeout=20)
        assert first.returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        "",
        "stop",
        "release",
        "status",
        "receipts",
        "install",
        "uninstall",
        "doctor",
        "demo",
        "bench",
    ],
)
def test_every_command_has_help_with_an_example(state: Path, command: str) -> None:
    done = clawstop(state, *filter(None, [command]), "--help")
    assert done.returncode == 0
    assert f"  clawstop {command}".rstrip() in done.stdout
