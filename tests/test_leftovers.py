"""What earlier tools left is found by what only they write, and taken away into our own folder."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from clawstop import agentsmd, leftovers
from clawstop.agents import Agent
from clawstop.errors import ClawstopError
from clawstop.leftovers import Leftover
from clawstop.paths import Paths

BLOCK = b"""
<!-- agent-interrupt:integrated -->
## Long Task Protocol (agent-interrupt)

python -X utf8 "/skills/agent-interrupt/scripts/run.py" --agent dev1 -- python your_script.py
<!-- agent-interrupt:end -->
"""
CRON = "0 3 * * * backup\n*/5 * * * * python3 /w/skills/agent-interrupt/scripts/watch.py\n"
START = (
    """ExecStartPost=/bin/bash -c '"$HOME/.openclaw/workspace/scripts/boot-resume-check.sh" &'\n"""
)


class Machine:
    """A home, a state folder with one agent, and a crontab command that keeps its table there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.paths = Paths(home / ".openclaw")
        self.agent = Agent("dev1", workspace=self.paths.openclaw / "workspace")
        self.table = home / "table"

    def write(self, name: str, content: str | bytes) -> Path:
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def find(self) -> list[Leftover]:
        return leftovers.find(self.paths, [self.agent])

    def take_away(self) -> None:
        for one in self.find():
            if one.remove:
                one.remove()

    @property
    def aside(self) -> list[str]:
        folder = self.paths.root / agentsmd.BACKUPS / "leftovers"
        return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    crontab = found.write(
        "bin/crontab",
        f'#!/bin/sh\nif [ "$1" = -l ]; then exec cat {found.table}; fi\ncat > {found.table}\n',
    )
    crontab.chmod(0o755)
    systemctl = found.write("bin/systemctl", f'#!/bin/sh\necho "$@" >> {tmp_path}/systemctl\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{crontab.parent}{os.pathsep}{os.environ['PATH']}")
    found.paths.openclaw.mkdir()
    return found


LATIN = b"0 4 * * * /opt/caf\xe9/run\n"  # a table is bytes, in whatever encoding


def test_nothing_is_found_where_nothing_is(machine: Machine) -> None:
    machine.write("table", "0 3 * * * python3 watch.py\n")
    machine.write(".openclaw/workspace/AGENTS.md", "# Rules\nrun watch.py --agent\n")
    machine.write(".openclaw/workspace/skills/agent-interrupt/agent-interrupt.sh", "another one")
    machine.write(".openclaw/workspace/state/restart-resume.json", '{"pending": true}')
    machine.write(".openclaw/agents/dev1/running.json", '{"pid": 1}')
    machine.write(
        ".config/systemd/user/openclaw-gateway.service.d/mine.conf", "[Service]\nNice=5\n"
    )
    assert machine.find() == []


def test_agent_interrupt_is_replaced(machine: Machine) -> None:
    machine.table.write_bytes(CRON.encode() + LATIN)
    told = machine.write(".openclaw/workspace/AGENTS.md", b"# Rules\r\nno end" + BLOCK + b"mine\n")
    skill = machine.write(
        ".openclaw/workspace/skills/claw-mission-killer/scripts/watch.py",
        'MARKER = "<!-- agent-interrupt:integrated -->"\n',
    ).parent.parent
    dead = subprocess.Popen(["true"])
    dead.wait()
    row = {"agent_id": "dev1", "pid": dead.pid, "session_id": "", "registered_at": "then"}
    file = machine.write(".openclaw/agents/dev1/running.json", json.dumps(row))
    backup = machine.write(
        ".openclaw/agents/dev1/interrupt-logs/rollback-20260101-120000.jsonl", ""
    )
    assert [one.tool for one in machine.find()] == ["agent-interrupt"] * 4
    machine.take_away()
    assert machine.find() == []
    assert machine.table.read_bytes() == b"0 3 * * * backup\n" + LATIN
    assert told.read_bytes() == b"# Rules\r\nno end\nmine\n"
    assert not skill.exists()
    assert not file.exists()
    assert backup.exists(), "what brings a memory back stays"
    kept = ["AGENTS.md", "crontab", "running.json", "watch.py"]
    assert sorted(name.rsplit("-", 1)[-1] for name in machine.aside) == sorted(
        [*kept, "origin", "origin"]
    )


@pytest.mark.parametrize("then", ["exit 1", "echo '0 3 * * * backup'"])
def test_a_crontab_that_cannot_be_told_is_left_alone(machine: Machine, then: str) -> None:
    machine.table.write_text(CRON)
    (one,) = machine.find()
    assert one.remove
    crontab = machine.home / "bin" / "crontab"
    listed = f'#!/bin/sh\nif [ "$1" = -l ]; then {then}; exit; fi\ncat > {machine.table}\n'
    crontab.write_text(listed)
    with pytest.raises(ClawstopError, match="nothing was changed"):
        one.remove()
    assert machine.table.read_text() == CRON


def test_what_has_one_name_in_two_places_is_kept_twice(machine: Machine) -> None:
    agents = [Agent(id, workspace=machine.home / id / "workspace") for id in ("dev1", "dev2")]
    mark = 'MARKER = "<!-- agent-interrupt:integrated -->"\n'
    for agent in agents:
        machine.write(f"{agent.id}/workspace/skills/agent-interrupt/scripts/watch.py", mark)
    found = leftovers.find(machine.paths, agents)
    for one in found:
        assert one.remove
        one.remove()
    aside = machine.paths.root / agentsmd.BACKUPS / "leftovers"
    assert len(list(aside.glob("*/agent-interrupt/scripts/watch.py"))) == 2
    assert sorted(file.read_text().strip() for file in aside.glob("*/origin")) == [
        str(agent.workspace / "skills" / "agent-interrupt") for agent in agents if agent.workspace
    ]


def test_a_process_that_runs_is_for_the_person_to_look_at(machine: Machine) -> None:
    alive = subprocess.Popen(["sleep", "60"])
    try:
        row = {"agent_id": "dev1", "pid": alive.pid, "session_id": "", "registered_at": "then"}
        file = machine.write(".openclaw/agents/dev1/running.json", json.dumps(row))
        (one,) = machine.find()
        assert one.remove is None
        assert "look at it yourself" in one.what
        assert file.exists()
        assert alive.poll() is None
    finally:
        alive.kill()
        alive.wait()


def test_boot_resume_is_replaced(machine: Machine) -> None:
    units = ".config/systemd/user"
    drop_in = machine.write(
        f"{units}/openclaw-gateway.service.d/boot-resume.conf", f"[Service]\n{START}"
    )
    mixed = machine.write(
        f"{units}/openclaw-gateway.service.d/mixed.conf", f"[Service]\nNice=5\n{START}"
    )
    wake = machine.write(f"{units}/boot-resume-wake.service", f"[Service]\n{START}")
    script = machine.write(
        ".openclaw/workspace/scripts/boot-resume-check.sh", 'LOG_TAG="[boot-resume]"\n'
    )
    machine.take_away()
    assert not [file for file in (drop_in, wake, script) if file.exists()]
    (left,) = machine.find()
    assert left.remove is None
    assert str(mixed) in left.what
    said = (machine.home / "systemctl").read_text().splitlines()
    assert said.count("--user daemon-reload") == 2
    assert "--user disable boot-resume-wake.service" in said
    assert [name for name in machine.aside if name != "origin"] == [
        "boot-resume-check.sh",
        "boot-resume-wake.service",
        "boot-resume.conf",
    ]


def test_task_interrupt_is_replaced_and_what_was_pasted_by_hand_is_said(machine: Machine) -> None:
    skill = machine.write(
        ".openclaw/skills/task-interrupt/scripts/create-stop-flag.sh",
        'FLAG="/tmp/agent-stop-${SESSION_ID}.flag"\n',
    )
    machine.write(
        ".openclaw/workspace/AGENTS.md", "# 规则\n\n运行 scripts/check-stop-flag.sh 检查\n"
    )
    machine.take_away()
    assert not skill.exists()
    (left,) = machine.find()
    assert left.remove is None
    assert "line 3" in left.what


def test_our_own_scripts_are_nothing_that_was_left(machine: Machine) -> None:
    machine.write(".openclaw/workspace/AGENTS.md", "sh /x/skill/compat/check-stop-flag.sh me\n")
    assert [*leftovers.find(machine.paths, [machine.agent])] == []
    machine.write(".openclaw/workspace/AGENTS.md", "sh /x/scripts/check-stop-flag.sh me\n")
    (left,) = leftovers.find(machine.paths, [machine.agent])
    assert left.tool == "task-interrupt"


def test_a_mark_without_its_end_takes_nothing_of_the_persons_along() -> None:
    quoted = b"never remove <!-- agent-interrupt:integrated -->\nMY RULE\n"
    assert leftovers.BLOCK.sub(b"", quoted + BLOCK + b"mine\n") == quoted + b"mine\n"
