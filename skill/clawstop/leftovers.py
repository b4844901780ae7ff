"""What earlier tools of this kind have left on a machine: agent-interrupt (on ClawHub it is called
claw-mission-killer), boot-resume and task-interrupt. Each is found by what only it writes. What is
taken away is moved into clawstop's own folder, and a person is asked first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import agentsmd, processes
from .agents import Agent
from .errors import ClawstopError
from .paths import Paths, private_folder, read_object, read_plain, write_private

LEFTOVERS = "leftovers"  # where they are put
ORIGIN = "origin"  # beside each: where it was
SECONDS = 20.0  # for crontab and systemctl
BLOCK = re.compile(
    rb"(\r?\n)?<!-- agent-interrupt:integrated -->(?:(?!<!-- agent-interrupt:integrated -->).)*?"
    rb"<!-- agent-interrupt:end -->(\r?\n)?(?=(.?))",
    re.S,
)
BY_HAND = re.compile(
    rb"agent-interrupt|(?:run|mark)\.py[\"']?\s+--agent\s|(?<!skill/compat/check)(?<!skill/compat/clear)"
    rb"(?<!skill/compat/create)-stop-flag\.sh"
)
WATCHER = re.compile(rb"(?:claw-mission-killer|agent-interrupt)[\\/]+scripts[\\/]+watch\.py")
RESUMER = "boot-resume-check.sh"
SKILLS = {
    "agent-interrupt": ("scripts/watch.py", "agent-interrupt:integrated"),
    "boot-resume": (f"scripts/{RESUMER}", "[boot-resume]"),
    "task-interrupt": ("scripts/create-stop-flag.sh", "/tmp/agent-stop-"),
}
REGISTERED = {"agent_id", "pid", "session_id", "registered_at"}
UNITS = Path(".config/systemd/user")


@dataclass(frozen=True)
class Leftover:
    tool: str
    what: str  # a sentence that names the place
    remove: Callable[[], None] | None  # None: it was made by hand, and is for a hand to take away


def find(paths: Paths, agents: Iterable[Agent], home: Path | None = None) -> list[Leftover]:
    """Schedules first: what they start would put the rest back."""
    everybody, base = list(agents), home or Path.home()
    aside = paths.root / agentsmd.BACKUPS / LEFTOVERS
    return [
        *_crontab(aside),
        *_units(base / UNITS, aside),
        *_jobs(paths),
        *_blocks(everybody, paths),
        *_scripts(paths, aside),
        *_skills(paths, everybody, aside),
        *_registered(paths, aside),
    ]


def _crontab(aside: Path) -> Iterator[Leftover]:
    if not WATCHER.search(_run("crontab", "-l") or b""):
        return

    def remove() -> None:
        listed = _run("crontab", "-l")  # as it is by now
        if listed is None or not WATCHER.search(listed):
            raise ClawstopError("crontab does not tell any more what is in it; nothing was changed")
        private_folder(aside)
        kept = aside / f"{_now()}-crontab"
        write_private(kept, listed)
        rest = [line for line in listed.splitlines(keepends=True) if not WATCHER.search(line)]
        if _run("crontab", "-", input=b"".join(rest)) is None:
            raise ClawstopError(f"crontab did not take the rest; it was {kept}")

    yield Leftover("agent-interrupt", "a line of your crontab starts its watch.py", remove)


def _units(folder: Path, aside: Path) -> Iterator[Leftover]:
    drop_ins = sorted(folder.glob("openclaw-gateway*.service.d/*.conf"))
    for file in (*drop_ins, folder / "boot-resume-wake.service"):
        if not _has(file, RESUMER):
            continue
        lines = [line for line in _text(file).splitlines() if line.strip()]
        whole = file.suffix == ".service" or all(
            line.strip() == "[Service]" or RESUMER in line for line in lines
        )

        def remove(file: Path = file) -> None:
            if file.suffix == ".service":
                _run("systemctl", "--user", "disable", file.name)
            _move(file, aside)
            _run("systemctl", "--user", "daemon-reload")

        more = "" if whole else " beside other settings: edit it yourself"
        yield Leftover("boot-resume", f"{file} starts it{more}", remove if whole else None)


def _jobs(paths: Paths) -> Iterator[Leftover]:
    """What boot-resume has scheduled and has not been run yet; in releases that keep jobs in a
    file."""
    jobs = (read_object(paths.openclaw / "cron" / "jobs.json") or {}).get("jobs")
    for job in jobs if isinstance(jobs, list) else ():
        name = str(job.get("name") or "") if isinstance(job, dict) else ""
        if name.startswith("boot-resume-"):
            told = f"the scheduled job {name}: run `openclaw cron rm {job.get('id')}`"
            yield Leftover("boot-resume", told, None)


def _blocks(agents: Iterable[Agent], paths: Paths) -> Iterator[Leftover]:
    seen = set()
    for agent in agents:
        file = Path(os.path.realpath(agent.workspace / agentsmd.NAME)) if agent.workspace else None
        if file is None or file in seen or not os.path.isfile(file):
            continue
        seen.add(file)
        try:
            data = read_plain(file, agentsmd.MOST)
        except OSError:  # doctor says so
            continue
        if BLOCK.search(data):
            yield Leftover(
                "agent-interrupt", f"its block in {file}", partial(_unblock, file, paths)
            )
        elif found := BY_HAND.search(data):
            line = data.count(b"\n", 0, found.start()) + 1
            told = f"{file}, line {line}, tells the agent to use it: edit it yourself"
            tool = "task-interrupt" if b"flag" in found[0] else "agent-interrupt"
            yield Leftover(tool, told, None)


def _unblock(file: Path, paths: Paths) -> None:
    data = file.read_bytes()
    agentsmd.back_up(paths.root / agentsmd.BACKUPS / LEFTOVERS, file, data)

    def between(found: re.Match[bytes]) -> bytes:
        """A line end stays where there is text on both sides."""
        both = found.start() > 0 and found[3]
        return (found[1] or found[2] or b"") if both else b""

    agentsmd.replace_file(file, data, BLOCK.sub(between, data))


def _scripts(paths: Paths, aside: Path) -> Iterator[Leftover]:
    file = paths.openclaw / "workspace" / "scripts" / RESUMER
    if _has(file, "[boot-resume]"):
        yield Leftover("boot-resume", f"its script {file}", partial(_move, file, aside))


def _skills(paths: Paths, agents: Iterable[Agent], aside: Path) -> Iterator[Leftover]:
    spaces = {agent.workspace for agent in agents if agent.workspace}
    folders = {paths.openclaw / "skills", *(space / "skills" for space in spaces)}
    for skill in sorted({one for folder in folders for one in _inside(folder)}):
        for tool, (name, mark) in SKILLS.items():
            if _has(skill / name, mark):
                yield Leftover(tool, f"the skill in {skill}", partial(_move, skill, aside))


def _registered(paths: Paths, aside: Path) -> Iterator[Leftover]:
    """The one process of each agent that agent-interrupt knew. It is never killed for that."""
    for file in sorted(paths.openclaw.glob("agents/*/running.json")):
        found = read_object(file) or {}
        if set(found) == REGISTERED and found["agent_id"] == file.parent.name:
            pid = found["pid"]
            alive = isinstance(pid, int) and processes.ident_of(pid) is not None
            told = f"{file} names a process" + (" that runs: look at it yourself" if alive else "")
            remove = None if alive else partial(_move, file, aside)
            yield Leftover("agent-interrupt", told, remove)


def _inside(folder: Path) -> list[Path]:
    try:
        return [one for one in folder.iterdir() if one.is_dir()]
    except OSError:  # it is not there, or not ours to look into
        return []


def _has(file: Path, mark: str) -> bool:
    return mark in _text(file)


def _text(file: Path) -> str:
    try:
        return read_plain(file, agentsmd.MOST).decode("utf-8", "replace")
    except OSError:
        return ""


def _move(what: Path, aside: Path) -> None:
    """Into a folder of its own, with a note where it came from."""
    private_folder(aside)
    folder = Path(tempfile.mkdtemp(prefix=f"{_now()}-{what.name}-", dir=aside))
    write_private(folder / ORIGIN, f"{what}\n")
    shutil.move(what, folder / what.name)


def _now() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def _run(*command: str, input: bytes | None = None) -> bytes | None:
    """What it prints, or None where there is no such command, or nothing to say."""
    try:
        done = subprocess.run(
            command,
            input=input,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
