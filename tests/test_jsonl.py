"""Transcripts in files: kept part and backup are the original, and nothing is ever lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import Any

import psutil
import pytest
from clawstop import backups, jsonl, locks, tail, turns
from clawstop.backups import Backup
from clawstop.errors import GoneOn, TranscriptError
from clawstop.processes import Ident, ident_of
from clawstop.turns import Cut
from hypothesis import given, settings
from hypothesis import strategies as st
from transcripts import BEGIN, SESSION, Tree, talked, working

LAST = Cut(turns=1)
PACKAGE = Path(jsonl.__file__).parents[1]
ABOUT = {"session": SESSION, "generation": 1, "receipt": "r1"}


def roll_back(file: Path, cut: Cut = LAST, **about: Any) -> Backup | None:
    return jsonl.remove(file, cut, file.parent / "interrupt-logs", {**ABOUT, **about})


def removed(backup: Backup) -> bytes:
    return b"".join(backup.chunks())


def restore(file: Path, backup: Backup, *, force: bool = False) -> int:
    base = jsonl.place(file, backup, force=force)
    jsonl.put_back(file, backup, base)
    return base


def first_removed(file: Path, cut: Cut) -> str | None:
    part = jsonl.find(file, cut)
    return part.first.id if part else None


# -- where a task begins


def test_a_turn_begins_with_a_persons_message_and_what_was_steered_in_belongs_to_it(
    tmp_path: Path,
) -> None:
    tree = talked()
    task = tree.user("the task")
    tree.calls()
    tree.result()
    tree.user("steered in")
    tree.calls()
    file = tree.write(tmp_path / "t.jsonl")
    assert first_removed(file, LAST) == task
    assert first_removed(file, Cut(unfinished=True)) == task
    assert first_removed(file, Cut(turns=2)) == "e1"
    assert first_removed(file, Cut(turns=3)) is None


def test_a_finished_turn_is_not_cut_off(tmp_path: Path) -> None:
    tree = talked()
    tree.injected()  # the host's own line is nobody's last word
    tree.entry("custom", customType="x")
    assert first_removed(tree.write(tmp_path / "t.jsonl"), Cut(unfinished=True)) is None


@pytest.mark.parametrize("how", ["user", "calls", "result", "aborted", "error"])
def test_an_unfinished_turn_is_cut_off(tmp_path: Path, how: str) -> None:
    tree = talked()
    task = tree.user("the task")
    if how == "result":
        tree.calls()
    if how in ("calls", "result"):
        getattr(tree, how)()
    if how in ("aborted", "error"):
        tree.says("half a", stop=how)
    tree.entry("custom", customType="x")
    tree.injected()
    assert first_removed(tree.write(tmp_path / "t.jsonl"), Cut(unfinished=True)) == task


def test_by_time_an_older_turn_is_never_touched_however_it_ended(tmp_path: Path) -> None:
    """The older one was stopped and kept: by its shape alone the new one would belong to it."""
    tree = working()
    tree.result()
    task = tree.user("the next task")
    file = tree.write(tmp_path / "t.jsonl")
    assert first_removed(file, LAST) == "e3"
    assert first_removed(file, Cut(since=BEGIN + 5.5)) == task
    assert first_removed(file, Cut(since=BEGIN + 6.5)) is None


def test_of_a_run_that_nobody_asked_for_everything_it_said_goes(tmp_path: Path) -> None:
    tree = talked()
    woken = tree.calls()
    tree.result()
    assert first_removed(tree.write(tmp_path / "t.jsonl"), Cut(since=BEGIN + 2.5)) == woken


def test_the_active_branch_counts_and_no_other(tmp_path: Path) -> None:
    tree = talked()
    tree.user("left behind")
    tree.says("forgotten")
    here = tree.user("the task", parent="e2")
    file = tree.write(tmp_path / "t.jsonl")
    assert first_removed(file, LAST) == here
    assert first_removed(file, Cut(turns=2)) == "e1"


def test_compaction_custom_and_label_entries_are_passed_over(tmp_path: Path) -> None:
    tree = talked()
    task = tree.user("the task")
    tree.entry("model_change", provider="p", modelId="m")
    tree.calls()
    tree.entry("compaction", summary="s", firstKeptEntryId="e1", tokensBefore=9)
    tree.result()
    tree.entry("branch_summary", fromId="e1", summary="s")
    tree.entry("label", targetId="e1", label="l")
    tree.entry("custom_message", customType="x", content="y")
    assert first_removed(tree.write(tmp_path / "t.jsonl"), LAST) == task


def test_an_old_transcript_without_parents_is_one_line_of_talk(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"type": "session"}]
    for role in ("user", "assistant", "user", "assistant"):
        rows.append({"type": "message", "message": {"role": role, "content": role}})
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    backup = roll_back(file)
    assert backup is not None
    assert removed(backup).count(b"\n") == 2


# -- kept + backup = original; restore = original

WORDS = st.text(max_size=20)
KINDS = st.sampled_from(
    ["user", "says", "calls", "result", "injected", "custom", "compaction", "label"]
) | st.sampled_from(["garbage", "branch", "header", "empty"])


@st.composite
def trees(draw: st.DrawFn) -> tuple[bytes, list[str]]:
    tree = Tree(header=draw(st.booleans()))
    ids: list[str] = []
    for kind in draw(st.lists(KINDS, max_size=25)):
        if kind == "garbage":
            tree.raw(draw(st.binary(max_size=40)).replace(b"\n", b""))
        elif kind == "branch":
            ids.append(tree.user(parent=draw(st.sampled_from([*ids, "nowhere"]))))
        elif kind == "header":
            tree.raw({"type": "session", "id": "again"}, end=b"\r\n")
            tree.raw({"type": "message", "message": {"role": "user"}})  # and no id
        elif kind == "empty":
            tree.raw(b"")
        elif kind in ("custom", "compaction", "label"):
            ids.append(tree.entry(kind, note=draw(WORDS)))
        elif kind in ("user", "says"):
            ids.append(getattr(tree, kind)(draw(WORDS)))
        else:
            ids.append(getattr(tree, kind)())
    data = tree.data
    if draw(st.booleans()):
        data = data[: -draw(st.integers(1, 9))]  # torn
    return data, ids


CUTS = st.one_of(
    st.builds(Cut, turns=st.integers(1, 4)),
    st.builds(Cut, since=st.integers(0, 30).map(lambda n: BEGIN + n)),
    st.just(Cut(unfinished=True)),
    st.builds(Cut, entry=st.integers(1, 30).map("e{}".format)),
)


@settings(max_examples=300, deadline=None)
@given(trees(), CUTS)
def test_kept_and_backup_are_the_original_and_a_restore_is_the_original(
    drawn: tuple[bytes, list[str]], cut: Cut
) -> None:
    data, _ = drawn
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "t.jsonl")
        file.write_bytes(data)
        part = jsonl.find(file, cut)
        backup = roll_back(file, cut)
        kept = file.read_bytes()
        if backup is None:
            assert part is None
            assert kept == data
            return
        assert kept + removed(backup) == data
        assert kept == b"" or kept.endswith(b"\n")
        assert part is not None
        entry = turns.parse(removed(backup).split(b"\n")[0])
        assert entry is not None
        assert entry.id == part.first.id
        by_hand = subprocess.run(["tail", "-n", "+2", backup.file], capture_output=True, check=True)
        assert kept + by_hand.stdout == data
        assert roll_back(file, cut) == backup, "the same receipt again changes nothing"
        assert file.read_bytes() == kept
        base = restore(file, backup)
        assert file.read_bytes() == data
        assert restore(file, backup) == base, "twice is once"
        assert file.read_bytes() == data
        jsonl.take_again(file, backup, base)
        assert file.read_bytes() == kept, "a restore can be undone"
        restore(file, backup)
        assert file.read_bytes() == data


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=20))
def test_lines_from_the_end_are_the_lines(rows: list[bytes]) -> None:
    data = b"\n".join(rows)
    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "BLOCK", 3)
        file.write(data)
        file.flush()
        found = list(tail.lines(file.fileno()))
    whole = re.findall(rb"[^\n]*\n|[^\n]+", data)
    assert [line for _, line in reversed(found)] == whole
    assert all(data[at:].startswith(line) for at, line in found)


def test_rolled_back_twice_and_restored_twice_is_exact(tmp_path: Path) -> None:
    tree = talked()
    tree.user("second")
    tree.says("done")
    file = tree.write(tmp_path / "t.jsonl")
    states = [file.read_bytes()]
    made = []
    for receipt in ("r1", "r2"):
        backup = roll_back(file, receipt=receipt)
        assert backup is not None
        made.append(backup)
        states.append(file.read_bytes())
    for backup, state in zip(reversed(made), reversed(states[:-1]), strict=True):
        restore(file, backup)
        assert file.read_bytes() == state


def test_two_backups_of_one_second_are_two(tmp_path: Path) -> None:
    where = tmp_path / "logs"
    made = [
        backups.write(where, {"receipt": name}, lambda: iter([b"x\n"]), lambda: BEGIN)
        for name in "abc"
    ]
    assert len({one.file for one in made}) == 3
    assert all(backups.NAME.fullmatch(one.file.name) for one in made)
    assert all(one.file.stat().st_mode & 0o777 == 0o600 for one in made)
    assert where.stat().st_mode & 0o777 == 0o700


def test_old_backups_go_by_count_and_age_and_nobody_elses(tmp_path: Path) -> None:
    where = tmp_path / "logs"
    for day in range(14):
        at = BEGIN + day * 86400
        backups.write(where, {"receipt": str(day)}, lambda: iter([b"x\n"]), repeat(at).__next__)
    other = where / "rollback-20200101-000000.jsonl"
    other.write_text('{"type":"message","id":"a"}\n')
    assert backups.prune(where, 12, BEGIN) == 2
    assert backups.prune(where, 12, BEGIN + 2.5 * 86400) == 1
    assert [one.header["receipt"] for one in backups.newest(where)][-1] == "3"
    assert backups.prune(where, 12, BEGIN + 99 * 86400) == 1, "the last ten are never too old"
    assert other.exists()


# -- a conversation that has gone on, and backups of others


def test_a_restore_into_a_conversation_that_has_gone_on_is_refused_unless_forced(
    tmp_path: Path,
) -> None:
    tree = working()
    file = tree.write(tmp_path / "t.jsonl")
    backup = roll_back(file)
    assert backup is not None
    later = talked()
    later.user("something new")
    with file.open("ab") as out:
        out.write(later.lines[-1])
    went_on = file.read_bytes()
    with pytest.raises(GoneOn, match="has gone on"):
        restore(file, backup)
    assert file.read_bytes() == went_on
    base = restore(file, backup, force=True)
    assert file.read_bytes() == went_on + removed(backup), "nothing is lost"
    newest = jsonl.last(file)
    assert newest is not None
    assert newest.id == "e4", "and the talk goes on where it was"
    jsonl.put_back(file, backup, base)
    jsonl.take_again(file, backup, base)
    assert file.read_bytes() == went_on


def test_a_kept_part_that_was_changed_is_noticed(tmp_path: Path) -> None:
    file = working().write(tmp_path / "t.jsonl")
    backup = roll_back(file)
    assert backup is not None
    file.write_bytes(file.read_bytes().replace(b"hello", b"jello"))
    with pytest.raises(GoneOn, match="not what it was"):
        restore(file, backup)


def test_an_edited_backup_is_refused(tmp_path: Path) -> None:
    file = working().write(tmp_path / "t.jsonl")
    backup = roll_back(file)
    assert backup is not None
    backup.file.write_bytes(backup.file.read_bytes().replace(b"the task", b"THE TASK"))
    kept = file.read_bytes()
    with pytest.raises(TranscriptError, match="was changed after it was written"):
        restore(file, backups.read(backup.file))
    assert file.read_bytes() == kept


@pytest.mark.parametrize("header", [True, False], ids=["the first tool's", "without a header"])
def test_backups_of_others_are_restored(tmp_path: Path, header: bool) -> None:
    tree = working()
    file = tree.write(tmp_path / "t.jsonl")
    backup = roll_back(file)
    assert backup is not None
    told: dict[str, Any] = {"rollback_time": "20260101-000000", "transcript": str(file)}
    told |= {"removed_from_idx": 3, "removed_count": 2}
    first = json.dumps(told).encode() + b"\n" if header else b""
    theirs = tmp_path / "theirs.jsonl"
    theirs.write_bytes(first + removed(backup))
    restore(file, backups.read(theirs))
    assert file.read_bytes() == tree.data
    restore(file, backups.read(theirs))
    assert file.read_bytes() == tree.data, "twice is once"
    restore(file, backups.read(theirs), force=True)
    assert file.read_bytes() == tree.data, "also by force"


def test_what_is_no_backup_is_said_to_be_none(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("hello\n")
    with pytest.raises(TranscriptError, match="is not a backup"):
        backups.read(file)
    with pytest.raises(TranscriptError, match="cannot read"):
        backups.read(tmp_path / "none")


# -- bad input


@pytest.mark.parametrize(
    "data",
    [b"", b"\n\n", b"garbage", b'{"type":"session"}\n', b"\xff\xfe\x00\n", b"[1]\nnull\n7\n"],
)
def test_nothing_to_cut_changes_nothing(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(data)
    assert roll_back(file) is None
    assert file.read_bytes() == data
    assert not list(tmp_path.glob("interrupt-logs/*"))


def test_bytes_that_are_no_text_are_kept_and_hide_nothing(tmp_path: Path) -> None:
    tree = talked()
    line = tree.user("the task \x00 here")
    tree.lines[-1] = tree.lines[-1].replace(b"task", b"t\xff\xc3sk")
    tree.raw(b"\x80\x81")
    file = tree.write(tmp_path / "t.jsonl")
    assert first_removed(file, LAST) == line
    backup = roll_back(file)
    assert backup is not None
    restore(file, backup)
    assert file.read_bytes() == tree.data


def test_a_line_of_fifty_megabytes(tmp_path: Path) -> None:
    tree = talked()
    tree.user("x" * 50_000_000)
    tree.calls()
    file = tree.write(tmp_path / "t.jsonl")
    begun = time.monotonic()
    backup = roll_back(file)
    assert backup is not None
    assert removed(backup) == b"".join(tree.lines[3:])
    restore(file, backup)
    assert file.stat().st_size == len(tree.data)
    assert time.monotonic() - begun < 20


def test_a_link_is_left_alone(tmp_path: Path) -> None:
    real = working().write(tmp_path / "elsewhere.jsonl")
    file = tmp_path / "t.jsonl"
    file.symlink_to(real)
    with pytest.raises(TranscriptError, match="cannot open"):
        roll_back(file)
    assert real.read_bytes() == working().data


def test_a_folder_or_a_pipe_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError):
        roll_back(tmp_path)
    with pytest.raises(TranscriptError, match="cannot open"):
        roll_back(tmp_path / "none.jsonl")


def test_a_file_that_was_replaced_while_open_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = working().write(tmp_path / "t.jsonl")
    write = backups.write

    def replaced(*args: Any) -> Backup:
        made = write(*args)
        shutil.copy(file, tmp_path / "new")
        os.replace(tmp_path / "new", file)
        return made

    monkeypatch.setattr(backups, "write", replaced)
    with pytest.raises(TranscriptError, match="was replaced meanwhile"):
        roll_back(file)
    assert file.read_bytes() == working().data


def test_what_came_in_after_the_look_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = working().write(tmp_path / "t.jsonl")
    write = backups.write

    def late(*args: Any) -> Backup:
        with file.open("ab") as out:
            out.write(b"late\n")
        return write(*args)

    monkeypatch.setattr(backups, "write", late)
    with pytest.raises(TranscriptError, match="was written to meanwhile"):
        roll_back(file)
    assert file.read_bytes() == working().data + b"late\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes somebody who may not write: needs root")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    file = working().write(tmp_path / "inside" / "t.jsonl")
    shutil.chown(file, 65534)
    code = (
        "import os, sys; os.setuid(65534); from pathlib import Path; from clawstop import jsonl\n"
        "from clawstop.turns import Cut; from clawstop.errors import TranscriptError\n"
        "file = Path(sys.argv[1])\n"
        "try: jsonl.remove(file, Cut(turns=1), file.parent / 'logs', "
        "{'session': 's', 'receipt': 'r'})\n"
        "except TranscriptError as error: print(error)\n"
    )
    # The interpreter may be where only root can read: everything is imported before.
    imports = "import clawstop.jsonl, clawstop.locks, psutil\n"
    done = subprocess.run(
        [sys.executable, "-c", imports + code, file],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "cannot lock" in done.stdout, done.stderr
    assert file.read_bytes() == working().data


# -- the host's lock


def lock_of(file: Path) -> Path:
    return file.with_name(file.name + ".lock")


def held_by(file: Path, pid: int, start: int | float | None = None) -> None:
    about: dict[str, Any] = {"pid": pid, "createdAt": "2026-01-01T00:00:00.000Z"}
    lock_of(file).write_text(json.dumps(about | ({"starttime": start} if start else {})))


def test_a_lock_of_somebody_who_lives_is_waited_for_and_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.3)
    file = working().write(tmp_path / "t.jsonl")
    ident = ident_of(os.getpid())
    assert ident is not None
    held_by(file, ident.pid, ident.start)
    with pytest.raises(TranscriptError, match=f"process {os.getpid()} still holds"):
        roll_back(file)
    assert file.read_bytes() == working().data
    assert lock_of(file).exists(), "it is theirs"


@pytest.mark.parametrize("start", [True, False])
def test_a_lock_of_the_dead_holds_nothing(tmp_path: Path, start: bool) -> None:
    file = working().write(tmp_path / "t.jsonl")
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    held_by(file, process.pid, 5 if start else None)
    assert roll_back(file) is not None
    assert not lock_of(file).exists()


def test_a_lock_whose_pid_was_recycled_holds_nothing(tmp_path: Path) -> None:
    file = working().write(tmp_path / "t.jsonl")
    ident = ident_of(os.getpid())
    assert isinstance(ident, Ident)
    held_by(file, ident.pid, int(ident.start) - 1)
    assert roll_back(file) is not None


def test_a_lock_that_cannot_be_read_is_somebodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.2)
    file = working().write(tmp_path / "t.jsonl")
    lock_of(file).write_text("{")
    with pytest.raises(TranscriptError, match="somebody still holds"):
        roll_back(file)
    old = time.time() - 31
    os.utime(lock_of(file), (old, old))
    assert roll_back(file) is not None, "but not for ever"


def test_the_time_of_the_file_stays_what_it_was(tmp_path: Path) -> None:
    """A host of 2026.7 would begin the conversation anew."""
    file = working().write(tmp_path / "t.jsonl")
    os.utime(file, (BEGIN, BEGIN))
    backup = roll_back(file)
    assert backup is not None
    assert file.stat().st_mtime == BEGIN
    restore(file, backup)
    assert file.stat().st_mtime == BEGIN


def test_our_lock_says_who_we_are_as_the_hosts_does(tmp_path: Path) -> None:
    file = working().write(tmp_path / "t.jsonl")
    with locks.held(file):
        told = json.loads(lock_of(file).read_text())
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    assert told["pid"] == os.getpid()
    assert told["starttime"] == int(stat.rpartition(")")[2].split()[19])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told["createdAt"])
    assert not lock_of(file).exists()


# -- a crash at every system call that changes a file

CHANGES = "write,pwrite64,sendfile,ftruncate,rename,link,linkat,unlink,fsync,mkdir,chmod"
DRIVER = """
import sys
from pathlib import Path
from clawstop import backups, jsonl
from clawstop.turns import Cut
file, what = Path(sys.argv[1]), sys.argv[2]
logs = file.parent / "interrupt-logs"
about = {"session": "agent:dev1:main", "generation": 1, "receipt": "r1"}
if what == "remove":
    jsonl.remove(file, Cut(turns=1), logs, about)
else:
    backup = next(backups.newest(logs))
    base = jsonl.place(file, backup)
    (jsonl.put_back if what == "restore" else jsonl.take_again)(file, backup, base)
"""


def traced(file: Path, what: str, *inject: str) -> subprocess.CompletedProcess[str]:
    options = [word for one in inject for word in ("-e", f"inject={one}")]
    log = file.with_name("strace.log")
    trace = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={CHANGES}", *options]
    return subprocess.run(
        [*trace, sys.executable, "-B", "-c", DRIVER, file, what],
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def changes(file: Path, what: str) -> list[tuple[str, int]]:
    """(system call, its number) of all that change a file. What an open makes is there at the next
    of them; to count opens would count Python's own, which vary."""
    counts: dict[str, int] = {}
    found = []
    done = traced(file, what)
    assert done.returncode == 0, done.stderr
    for line in file.with_name("strace.log").read_text().splitlines():
        call = re.match(r"\d+\s+(\w+)\(", line)
        if not call:
            continue
        name = call[1]
        counts[name] = counts.get(name, 0) + 1
        found.append((name, counts[name]))
    return found


def prepared(folder: Path, what: str) -> tuple[Path, bytes, bytes]:
    """A file before `what`, and how it is before and after."""
    tree = working()
    tree.user("x" * 3_000_000)  # in several writes
    tree.calls()
    file = tree.write(folder / "t.jsonl")
    kept = b"".join(tree.lines[:5])
    if what == "remove":
        return file, tree.data, kept
    backup = roll_back(file)
    assert backup is not None
    if what == "restore":
        return file, kept, tree.data
    restore(file, backup)
    return file, tree.data, kept


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("what", ["remove", "restore", "undo"])
def test_a_crash_at_any_change_loses_nothing_and_doing_it_again_finishes_it(
    tmp_path: Path, what: str
) -> None:
    file, before, after = prepared(tmp_path / "dry", what)
    calls = changes(file, what)
    assert file.read_bytes() == after
    assert len(calls) >= {"remove": 12, "restore": 6, "undo": 4}[what], calls
    for name, number in calls:
        folder = tmp_path / f"{name}-{number}"
        file, before, after = prepared(folder, what)
        done = traced(file, what, f"{name}:signal=KILL:when={number}")
        assert done.returncode == -signal.SIGKILL, (name, number, done.stderr)
        now = file.read_bytes()
        if what == "restore":  # it grows in several writes: done again, it goes on
            assert after.startswith(now), (name, number)
            assert now.startswith(before), (name, number)
        else:
            assert now in (before, after), (name, number)
        if what == "remove" and now == after:
            backup = backups.of(folder / "interrupt-logs", "r1", SESSION)
            assert backup is not None
            assert now + removed(backup) == before
        again = traced(file, what)
        assert again.returncode == 0, (name, number, again.stderr)
        assert file.read_bytes() == after, (name, number)
        made = list((folder / "interrupt-logs").glob("rollback-*"))
        assert len(made) == 1, "one rollback, one backup"
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
@pytest.mark.parametrize("what", ["remove", "restore"])
def test_a_full_disk_changes_nothing(tmp_path: Path, what: str) -> None:
    file, _, _ = prepared(tmp_path / "dry", what)
    filling = ("write", "sendfile")
    writes = [(name, number) for name, number in changes(file, what) if name in filling]
    assert len(writes) >= 3
    for name, number in writes:
        folder = tmp_path / f"{name}-{number}"
        file, before, after = prepared(folder, what)
        done = traced(file, what, f"{name}:error=ENOSPC:when={number}")
        assert done.returncode == 1, done.stderr
        assert "Error" in done.stderr
        assert file.read_bytes() == before, number
        assert not list(folder.glob("interrupt-logs/.rollback-*")), "nothing is left behind"
        assert traced(file, what).returncode == 0
        assert file.read_bytes() == after
        shutil.rmtree(folder)


def test_psutil_agrees_with_the_hosts_ticks() -> None:
    """The lock's start time is a count of ticks since boot."""
    ident = ident_of(os.getpid())
    assert ident is not None
    seconds = float(ident.start) / os.sysconf("SC_CLK_TCK")
    assert abs(psutil.boot_time() + seconds - psutil.Process().create_time()) < 2


def test_by_time_nothing_without_a_time_and_no_older_turn_goes(tmp_path: Path) -> None:
    tree = Tree()
    tree.user("old")
    tree.says("answered")
    task = tree.user("the task")
    tree.calls()
    file = tree.write(tmp_path / "t.jsonl")
    assert first_removed(file, Cut(since=BEGIN - 100)) == task, "the clock was set back"
    bare = re.sub(rb', "timestamp": "[^"]*"', b"", tree.data)
    file.write_bytes(bare)
    assert first_removed(file, Cut(since=BEGIN)) is None


def test_a_leaf_line_says_where_the_conversation_is(tmp_path: Path) -> None:
    tree = talked()
    tree.user("left behind")
    tree.says("forgotten")
    tree.raw({"type": "leaf", "id": "l1", "parentId": "e4", "targetId": "e2"})
    file = tree.write(tmp_path / "t.jsonl")
    assert first_removed(file, LAST) == "e1"
    tree.leaf = "e2"
    task = tree.user("the task")
    assert first_removed(tree.write(file), LAST) == task
    tree.raw({"type": "leaf", "id": "l2", "parentId": task, "targetId": None})
    assert first_removed(tree.write(file), LAST) is None


def test_what_comes_in_during_the_look_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = working().write(tmp_path / "t.jsonl")
    lines = tail.lines

    def late(fd: int, end: int | None = None) -> Any:
        yield from lines(fd, end)

    def appended(fd: int, end: int | None = None) -> Any:
        with file.open("ab") as out:
            out.write(b"late\n")
        monkeypatch.setattr(tail, "lines", late)
        yield from lines(fd, end)

    monkeypatch.setattr(tail, "lines", appended)
    with pytest.raises(TranscriptError, match="was written to meanwhile"):
        roll_back(file)
    assert file.read_bytes() == working().data + b"late\n"


def test_lines_that_were_put_back_by_hand_are_not_taken_away(tmp_path: Path) -> None:
    file = working().write(tmp_path / "t.jsonl")
    backup = roll_back(file)
    assert backup is not None
    backup.file.write_bytes(backup.file.read_bytes().replace(b"the task", b"THE TASK"))
    edited = backups.read(backup.file)
    with file.open("ab") as out:
        out.write(removed(edited))
    by_hand = file.read_bytes()
    with pytest.raises(TranscriptError):
        restore(file, edited)
    assert file.read_bytes() == by_hand


def test_a_lock_that_was_taken_from_us_is_not_removed(tmp_path: Path) -> None:
    file = working().write(tmp_path / "t.jsonl")
    with locks.held(file):
        lock_of(file).unlink()
        held_by(file, 1)
    assert lock_of(file).exists()


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: Any) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    file = working().write(tmp_path / "t.jsonl")
    backup = roll_back(file)
    assert backup is not None
    restore(file, backup)
    assert file.read_bytes() == working().data


def test_a_rollback_that_was_cut_off_before_the_cut_and_a_talk_that_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = working().write(tmp_path / "t.jsonl")

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", crash)
        with pytest.raises(KeyboardInterrupt):
            roll_back(file)
    with file.open("ab") as out:
        out.write(b"more\n")
    with pytest.raises(GoneOn):
        roll_back(file)
    assert file.read_bytes() == working().data + b"more\n"
