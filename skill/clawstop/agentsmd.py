"""Our block in every agent's AGENTS.md: put there, kept up to date, and taken out again.

A file is never made: where one exists already the host would not write its own. Agents that share a
file share a block.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count, takewhile
from pathlib import Path

import filelock
import yaml

from . import blocks
from .agents import Agent
from .errors import ClawstopError, UsageError
from .paths import private_folder, read_object, read_plain, sync_folder, write_private
from .settings import resource
from .starter import package_folder, short_command

NAME = "AGENTS.md"
LEFT = "uninstalled"  # see Paths.left
WRITTEN = "blocks.json"
LOCK_SECONDS = 30.0  # for all files of all agents; on a slow disk
MOST = 2 * 1024 * 1024  # bytes of a file that an agent is told to read; more is something else
HAN, KANA = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3040-\u30ff\uac00-\ud7af]")
WORD = re.compile("[A-Za-z]{2,}")
CHANGED = ("added", "updated", "removed")
OWN = "templates"  # a person's own, in clawstop's folder
BACKUPS = "before"  # what files of theirs were before we changed them
Change = Callable[[bytes, tuple[str, ...]], bytes]


@dataclass(frozen=True)
class Template:
    version: int
    text: str
    own: bool = False  # the person's: it wins over whatever is there

    def filled(self, agents: Iterable[str], command: list[str]) -> str:
        """`{agent}` is everybody who reads it, `{id}` the one, where there is only one."""
        ids = sorted(agents)
        told = {"{agent}": "` / `".join(ids), "{id}": ids[0] if len(ids) == 1 else "YOUR_ID"}
        told["{command}"] = shlex.join(command)
        told["{skill}"] = shlex.quote(str(package_folder()))
        text = self.text
        for name, value in told.items():
            text = text.replace(name, value)
        return text


@dataclass(frozen=True)
class Report:
    """What became of one file. `did` is one of CHANGED, or `same`, `none` (there is no file, or no
    block to take out), `kept` (it is not ours to change, `why`) or `failed`."""

    file: Path
    agents: tuple[str, ...]
    did: str
    why: str = ""

    @property
    def ok(self) -> bool:
        return self.did not in ("kept", "failed")

    def as_dict(self) -> dict[str, object]:
        return {**vars(self), "file": str(self.file)}


def templates(own: Path) -> dict[str, Template]:
    """By language; a person's own, in the folder `own`, win."""
    found = {}
    for language in ("en", "zh"):
        file = own / f"{language}.md"
        if file.is_file():
            found[language] = replace(read_template(file), own=True)
        else:
            found[language] = read_template(resource("agents_md_templates", f"{language}.md"))
    return found


def read_template(file: Path) -> Template:
    """YAML between two `---`, then the text. UsageError names what is wrong."""
    try:
        whole = read_plain(file, MOST).decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    _, mark, rest = whole.partition("---\n")
    front, end, text = rest.partition("\n---\n")
    try:
        version = yaml.safe_load(front)["version"]
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(f"{file}: no `version` between `---` lines at its top") from error
    if not (mark and end and text.strip() and type(version) is int and 0 < version < 10**6):
        raise UsageError(f"{file}: expected `---`, `version: 1`, `---` and then the text")
    if b"clawstop:begin" in text.encode() or b"clawstop:end" in text.encode():
        raise UsageError(f"{file}: the marks of the block are ours to write")
    return Template(version, text.strip())


def sync(
    agents: Iterable[Agent],
    protocol: str,
    root: Path,
    *,
    dry_run: bool = False,
    again: bool = False,
) -> list[Report]:
    """See that every AGENTS.md has the block as it should be: with the setting `file` it is there,
    else it is not; without a setting nothing is changed. `root` is clawstop's folder: own
    templates, what files were before, and which files have a block; whoever left, or after
    `uninstall`, has none, until an `install` begins `again`."""
    if not protocol:
        return []
    command, choose = short_command(), templates(root / OWN)

    def put(data: bytes, ids: tuple[str, ...]) -> bytes:
        template = choose[language_of(blocks.take(data))]
        there = blocks.find(data)
        if there and there.version > template.version and not template.own:
            raise Kept(f"its block is of a newer version, {there.version}")
        return blocks.put(data, template.filled(ids, command), template.version)

    def take(data: bytes, _: tuple[str, ...]) -> bytes:
        return blocks.take(data)

    left = (root / LEFT).exists() and not again
    change = put if protocol == "file" and not left else take
    with contextlib.ExitStack() as stack:
        if not dry_run:  # two at a time would meet in one file
            private_folder(root)
            stack.enter_context(_alone(root))
        files, ours = _files(agents), _written(root)
        if change is take:
            files = {**dict.fromkeys(ours, ()), **files}
        reports = [
            _change(file, ids, change, root / BACKUPS, ours=file in ours, dry_run=dry_run)
            for file, ids in files.items()
        ]
        if not dry_run:
            _note(root, reports)
        return reports


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    try:
        with filelock.FileLock(root / "blocks.lock", LOCK_SECONDS):
            yield
    except filelock.Timeout:
        raise ClawstopError(
            f"another clawstop has been changing AGENTS.md files for {LOCK_SECONDS:g} s; look "
            "whether it hangs, and try again"
        ) from None


def _written(root: Path) -> list[Path]:
    """Every file that has a block, also of agents that are gone."""
    listed = (read_object(root / WRITTEN) or {}).get("files")
    named = listed if isinstance(listed, list) else []
    return [Path(one) for one in named if isinstance(one, str)]


def _note(root: Path, reports: Iterable[Report]) -> None:
    before = _written(root)
    known = dict.fromkeys(before)
    for report in reports:
        if report.did in ("removed", "none"):
            known.pop(report.file, None)
        elif report.did in ("added", "updated", "same"):
            known.setdefault(report.file)
    if list(known) != before:
        write_private(root / WRITTEN, json.dumps({"files": [*map(str, known)]}))


def spoken(agent: Agent, protocol: str, root: Path) -> str:
    """The block for this turn of an agent whose file has none."""
    data = b""
    if agent.workspace:
        with contextlib.suppress(OSError, Kept):
            data = _read(Path(os.path.realpath(agent.workspace / NAME))) or b""
    told = protocol == "file" and blocks.BEGIN in data
    if protocol in ("off", "") or told or (root / LEFT).exists():
        return ""
    return templates(root / OWN)[language_of(data)].filled([agent.id], short_command())


def language_of(data: bytes) -> str:
    """What a file is written in: Chinese, or else English."""
    text = data.decode("utf-8", "replace")
    han = len(HAN.findall(text))
    return "zh" if han * 2 > len(WORD.findall(text)) and not KANA.search(text) else "en"


class Kept(ClawstopError):
    """The file is not ours to change; why."""


def _files(agents: Iterable[Agent]) -> dict[Path, tuple[str, ...]]:
    """Whose file each is; through links, as two names may lead to one."""
    found: dict[Path, list[str]] = {}
    for agent in agents:
        if agent.workspace:
            found.setdefault(Path(os.path.realpath(agent.workspace / NAME)), []).append(agent.id)
    return {file: tuple(sorted(ids)) for file, ids in sorted(found.items())}


def _change(
    file: Path, ids: tuple[str, ...], change: Change, backups: Path, *, ours: bool, dry_run: bool
) -> Report:
    try:
        if file.name != NAME:
            raise Kept("it is a link to something else")
        before = _read(file)
        if before is None:
            return Report(file, ids, "none")
        there = blocks.find(before)
        if there and there.edited:
            raise Kept("somebody has edited the block")
        after = change(before, ids)
        if after == before:
            return Report(file, ids, "same" if there else "none")
        new = blocks.find(after)
        did = "added" if not there else "removed" if new is None else "updated"
        if there and new and there.version == new.version and not ours:
            raise Kept("another OpenClaw keeps its own block there")  # and would do so for ever
        about = file.stat()
        if not about.st_mode & 0o222:
            raise Kept("it is read-only")
        if about.st_nlink > 1:
            raise Kept("it has another name, as a hard link")
        if not dry_run:
            if did == "added":
                back_up(backups, file, before)
            replace_file(file, before, after)
            if did == "removed":
                drop_copy(backups, file, after)
        return Report(file, ids, did)
    except (Kept, blocks.Damaged) as error:
        return Report(file, ids, "kept", str(error))
    except OSError as error:
        return Report(file, ids, "failed", f"{error.strerror or error}")


def _read(file: Path) -> bytes | None:
    try:
        about = file.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST:
            raise Kept("it is not a file for an agent to read")
        data = read_plain(file, MOST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if b"\0" in data:
        raise Kept("it is not plain text")
    return data


def replace_file(file: Path, before: bytes, after: bytes) -> None:
    """In one step; whoever wrote to it meanwhile goes before us."""
    about = file.stat()
    if not about.st_mode & 0o222:
        raise Kept("it is read-only")
    for old in file.parent.glob(f".{NAME}.clawstop-*"):  # of a crash
        old.unlink(missing_ok=True)
    beside = file.with_name(f".{NAME}.clawstop-{os.getpid()}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(after)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(beside, stat.S_IMODE(about.st_mode))
        if sys.platform != "win32" and (about.st_uid, about.st_gid) != _owner(beside):
            os.chown(beside, about.st_uid, about.st_gid)
        if file.read_bytes() != before:
            raise Kept("it is being written just now")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(file.parent)


def _owner(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_uid, about.st_gid


def copies(backups: Path, file: Path) -> list[Path]:
    """Of what a file of the person's was before we changed it, the newest last."""
    return list(takewhile(Path.is_file, _places(backups, file)))


def _places(backups: Path, file: Path) -> Iterator[Path]:
    """Where its copies go, one after the other."""
    name = f"{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}-{file.name}"
    return (backups / (f"{name}.{number}" if number > 1 else name) for number in count(1))


def drop_copy(backups: Path, file: Path, content: bytes) -> None:
    """The newest, once the file is again what it was."""
    there = copies(backups, file)
    if there and there[-1].read_bytes() == content:
        there[-1].unlink()


def back_up(backups: Path, file: Path, content: bytes) -> Path:
    """The copy. An earlier one stays: what a person wrote may be nowhere else."""
    private_folder(backups)
    there = copies(backups, file)
    if there and there[-1].read_bytes() == content:
        return there[-1]
    kept = next(place for place in _places(backups, file) if not place.exists())
    write_private(kept, content)
    return kept
