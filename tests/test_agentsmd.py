"""The block in every AGENTS.md: there, up to date, gone without a trace, and never in the way."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest
from clawstop import agentsmd, blocks
from clawstop.agents import Agent
from clawstop.agentsmd import Report
from clawstop.errors import ClawstopError, UsageError
from clawstop.paths import Paths
from hypothesis import example, given, settings
from hypothesis import strategies as st

PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        [b"\r\n", b"\n", b"\r", b"\xef\xbb\xbf", b"# A\n", b"\n\n", b" ", "中".encode()]
    ),
)
BYTES = st.lists(PIECES, max_size=10).map(b"".join)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1).filter(
    lambda text: text.strip() != "" and "clawstop:" not in text
)


@settings(max_examples=400)
@given(before=BYTES, one=TEXTS, two=TEXTS)
@example(before=b"\r", one="x", two="y")
@example(before=b"\xef\xbb\xbf", one="x", two="y")
def test_nothing_outside_the_marks_changes_and_taking_it_out_is_exact(
    before: bytes, one: str, two: str
) -> None:
    there = blocks.put(before, one, 1)
    assert there.startswith(before)
    assert blocks.put(there, one, 1) == there
    assert blocks.take(there) == before
    newer = blocks.put(there, two, 2)
    assert blocks.take(newer) == before
    found = blocks.find(newer)
    assert found is not None
    assert (found.version, found.edited) == (2, False)


@settings(max_examples=400)
@given(before=BYTES, above=BYTES, below=BYTES)
def test_what_a_person_writes_around_it_stays(before: bytes, above: bytes, below: bytes) -> None:
    above = above + b"\n" if above else b""
    written = above + blocks.put(before, "x", 1) + below
    newer = blocks.put(written, "y", 2)
    found = blocks.find(newer)
    assert found is not None
    old = blocks.find(written)
    assert old is not None
    assert newer[: found.start] == written[: old.start]
    assert newer[found.end :] == written[old.end :] == below
    left = blocks.take(newer)
    assert left in (above + before + below, *(above + before + e + below for e in (b"\n", b"\r\n")))


@settings(max_examples=300)
@given(data=st.data(), before=BYTES)
def test_no_edit_of_the_file_makes_us_touch_what_is_not_ours(
    data: st.DataObject, before: bytes
) -> None:
    """Whatever is cut out or put in: it is whole and ours, or somebody else's, or damaged."""
    written = blocks.put(before, "one\n\ntwo", 1)
    at = data.draw(st.integers(0, len(written)))
    to = data.draw(st.integers(at, min(len(written), at + 30)))
    edited = written[:at] + data.draw(BYTES) + written[to:]
    try:
        found = blocks.find(edited)
    except blocks.Damaged:
        return
    if found is None:
        assert blocks.BEGIN not in edited or blocks.END not in edited
    elif not found.edited:
        inside = edited[found.start : found.end].replace(b"\r\n", b"\n")
        assert inside.split(b"\n", 1)[1].strip().startswith(b"one\n\ntwo")
        newer = blocks.put(edited, "three", 2)
        assert newer.startswith(edited[: found.start])
        assert newer.endswith(edited[found.end :])
        left, below = blocks.take(edited), edited[found.end :]
        assert left in [edited[: found.begin] + end + below for end in (b"", b"\n", b"\r\n")]


@settings(max_examples=60, deadline=None)
@given(before=BYTES, above=BYTES, below=BYTES, inside=st.booleans())
@example(before=b"# A\n", above=b"", below=b"", inside=False)
def test_files_keep_what_is_not_ours_from_install_to_uninstall(
    before: bytes, above: bytes, below: bytes, inside: bool
) -> None:
    """Put in, edited around or inside by a person, renewed, and taken out again."""
    with tempfile.TemporaryDirectory() as folder:
        root, file = Path(folder) / "root", Path(folder) / "AGENTS.md"
        everybody = [Agent("dev1", workspace=Path(folder))]
        own = root / agentsmd.OWN
        own.mkdir(mode=0o700, parents=True)
        file.write_bytes(before)
        (report,) = agentsmd.sync(everybody, "file", root)
        if not report.ok:  # it is no text
            assert file.read_bytes() == before
            return
        written = file.read_bytes()
        assert written.startswith(before)
        above = above + b"\n" if above else b""
        edited = above + written + below
        edited = edited.replace(b"`dev1`", b"`dev9`") if inside else edited
        file.write_bytes(edited)
        for language in ("en", "zh"):
            (own / f"{language}.md").write_text("---\nversion: 9\n---\nObey\n")
        (report,) = agentsmd.sync(everybody, "file", root)
        newer = file.read_bytes()
        assert newer.startswith(above + before)
        assert newer.endswith(below)
        (root / agentsmd.LEFT).touch()
        agentsmd.sync(everybody, "off", root)
        left = file.read_bytes()
        if inside or not report.ok:
            assert left == edited
        else:
            ends = (b"", b"\n", b"\r\n") if below else (b"",)
            assert left in [above + before + end + below for end in ends]


# -- files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "root").mkdir(mode=0o700)
    return tmp_path / "root"


def agent(tmp_path: Path, id: str, content: bytes | None = b"# Hello\n") -> Agent:
    folder = tmp_path / f"space-{id}"
    folder.mkdir(exist_ok=True)
    if content is not None:
        (folder / "AGENTS.md").write_bytes(content)
    return Agent(id, workspace=folder)


def text_of(agent: Agent) -> str:
    assert agent.workspace
    return (agent.workspace / "AGENTS.md").read_text(encoding="utf-8")


def did(reports: list[Report]) -> list[str]:
    return [report.did for report in reports]


def test_each_agent_is_told_its_own_id_in_the_language_of_its_file(
    root: Path, tmp_path: Path
) -> None:
    one = agent(tmp_path, "dev1")
    two = agent(tmp_path, "dev2", "# 工作区\n\n这是你的家。请先阅读 SOUL.md。\n".encode())
    assert did(agentsmd.sync([one, two], "file", root)) == ["added", "added"]
    assert "You are the agent `dev1`" in text_of(one)
    assert "你是智能体 `dev2`" in text_of(two)
    assert did(agentsmd.sync([one, two], "file", root)) == ["same", "same"]
    assert did(agentsmd.sync([one, two], "bootstrap", root)) == ["removed", "removed"]
    assert text_of(one) == "# Hello\n"
    assert did(agentsmd.sync([one, two], "off", root)) == ["none", "none"]


def test_the_command_in_it_runs_as_written_from_that_workspace(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1")
    agentsmd.sync([one], "file", root)
    found = re.search(r"`(.*) -- your command`", text_of(one))
    assert found
    paths = Paths(Path(os.environ["HOME"]) / ".openclaw")
    paths.prepare()
    assert paths.state_id
    done = subprocess.run(
        f"{found[1]} -- echo it runs",
        shell=True,
        cwd=one.workspace,
        env={"PATH": os.defpath, "HOME": os.environ["HOME"]},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "it runs\n", done.stderr


def test_a_file_is_never_made(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1", None)
    gone = Agent("gone", workspace=tmp_path / "nowhere")
    none = Agent("none")
    assert did(agentsmd.sync([one, gone, none], "file", root)) == ["none", "none"]
    assert list(tmp_path.glob("**/AGENTS.md")) == []
    assert "You are the agent `dev1`" in agentsmd.spoken(one, "file", root)
    assert agentsmd.spoken(one, "off", root) == ""


def test_who_has_the_block_in_the_file_is_not_told_twice(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1")
    agentsmd.sync([one], "file", root)
    assert agentsmd.spoken(one, "file", root) == ""
    assert agentsmd.spoken(one, "bootstrap", root) != ""


def test_what_somebody_has_edited_is_theirs(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1")
    agentsmd.sync([one], "file", root)
    assert one.workspace
    file = one.workspace / "AGENTS.md"
    file.write_text(text_of(one).replace("End your turn.", "Say sorry."), encoding="utf-8")
    for protocol in ("file", "off"):
        (report,) = agentsmd.sync([one], protocol, root)
        assert (report.did, report.why) == ("kept", "somebody has edited the block")
    assert "Say sorry." in text_of(one)


def test_an_update_takes_the_place_of_the_old_block(root: Path, tmp_path: Path) -> None:
    old = blocks.put(b"# Hello\n", "what we said once", 1) + b"\nmy own rules\n"
    one = agent(tmp_path, "dev1", old)
    assert did(agentsmd.sync([one], "file", root)) == ["updated"]
    text = text_of(one)
    assert "what we said once" not in text
    assert text.startswith("# Hello\n\n<!-- clawstop:begin version=4")
    assert text.endswith("<!-- clawstop:end -->\n\nmy own rules\n")
    newer = blocks.put(b"# Hello\n", "what we shall say", 99)
    two = agent(tmp_path, "dev2", newer)
    assert did(agentsmd.sync([two], "file", root)) == ["kept"]
    assert did(agentsmd.sync([two], "off", root)) == ["removed", "removed"], "also of who is gone"
    assert text_of(one) == "# Hello\n\nmy own rules\n"


def test_a_line_end_above_it_that_is_the_persons_stays() -> None:
    there = blocks.put(b"abc\n", "x", 1).replace(b"abc\n\n", b"abc\n")
    assert blocks.take(there) == b"abc\n"


def test_the_language_is_the_files_own_and_not_our_blocks(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1", "你好，世界。这是规则。\n".encode())
    agentsmd.sync([one], "file", root)
    assert "你是智能体" in text_of(one)
    assert one.workspace is not None
    file = one.workspace / "AGENTS.md"
    english = b"These are the rules of this agent, in five words.\n"
    file.write_bytes(file.read_bytes().replace("你好，世界。这是规则。\n".encode(), english))
    agentsmd.sync([one], "file", root)
    assert "You are the agent" in text_of(one)


def test_after_an_uninstall_nobody_puts_it_back(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1", b"# Hello\n")
    agentsmd.sync([one], "file", root)
    (root / agentsmd.LEFT).touch()
    assert did(agentsmd.sync([one], "file", root)) == ["removed"], "as a running engine would"
    assert text_of(one) == "# Hello\n"


def test_an_install_tells_everybody_again(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1")
    (root / agentsmd.LEFT).touch()
    assert did(agentsmd.sync([one], "file", root, dry_run=True)) == ["none"]
    assert did(agentsmd.sync([one], "file", root, dry_run=True, again=True)) == ["added"]
    assert agentsmd.spoken(one, "bootstrap", root) == "", "nobody is told after an uninstall"


def test_without_a_setting_that_makes_sense_files_are_left_alone(
    root: Path, tmp_path: Path
) -> None:
    one = agent(tmp_path, "dev1")
    agentsmd.sync([one], "file", root)
    before = text_of(one)
    assert agentsmd.sync([one], "", root) == []
    assert text_of(one) == before
    assert agentsmd.spoken(one, "", root) == ""


def test_who_reads_it_through_a_link_is_told_once(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1", "# 工作区\n\n这是你的家。请先阅读 SOUL.md。\n".encode())
    two = agent(tmp_path, "dev2", None)
    assert one.workspace
    assert two.workspace
    (two.workspace / "AGENTS.md").symlink_to(one.workspace / "AGENTS.md")
    assert "你是智能体" in agentsmd.spoken(two, "bootstrap", root)
    agentsmd.sync([one, two], "file", root)
    assert agentsmd.spoken(two, "file", root) == ""


def test_no_copy_takes_the_place_of_another(root: Path, tmp_path: Path) -> None:
    one, backups = agent(tmp_path, "dev1", b"first"), root / agentsmd.BACKUPS
    assert one.workspace
    file = one.workspace / "AGENTS.md"
    for content in (b"first", b"second", b"second", b"third"):
        agentsmd.back_up(backups, file, content)
    kept = [copy.read_bytes() for copy in agentsmd.copies(backups, file)]
    assert kept == [b"first", b"second", b"third"]


@pytest.mark.parametrize("listed", [7, {"a": 1}, "x", None, [7, None]])
def test_no_record_makes_it_fail(root: Path, tmp_path: Path, listed: object) -> None:
    (root / agentsmd.WRITTEN).write_text(json.dumps({"files": listed}))
    assert did(agentsmd.sync([agent(tmp_path, "dev1")], "file", root)) == ["added"]


def test_one_that_hangs_is_a_sentence(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agentsmd, "LOCK_SECONDS", 0.1)
    with filelock.FileLock(root / "blocks.lock"), pytest.raises(ClawstopError, match="try again"):
        agentsmd.sync([agent(tmp_path, "dev1")], "file", root)


def test_one_at_a_time(root: Path, tmp_path: Path) -> None:
    """Two that write at once: the file is whole, and nothing is left beside it."""
    one = agent(tmp_path, "dev1", b"# Hello\n" * 2000)
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(agentsmd.sync, [one], how, root) for how in ("file", "off") * 20]
    assert all(report.ok for each in made for report in each.result())
    assert blocks.take(text_of(one).encode()) == b"# Hello\n" * 2000
    assert one.workspace is not None
    assert [file.name for file in one.workspace.iterdir()] == ["AGENTS.md"]


def test_a_look_says_what_would_be_refused(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1", b"# Hello\n")
    assert one.workspace is not None
    (one.workspace / "AGENTS.md").chmod(0o444)
    assert did(agentsmd.sync([one], "file", root, dry_run=True)) == ["kept"]


def test_a_persons_own_template_wins(root: Path, tmp_path: Path) -> None:
    own = root / agentsmd.OWN
    own.mkdir()
    (own / "en.md").write_text("---\nversion: 7\n---\nObey `{agent}`: `{command} stop`\n")
    one = agent(tmp_path, "dev1")
    agentsmd.sync([one], "file", root)
    assert "Obey `dev1`" in text_of(one)
    assert "version=7" in text_of(one)
    (own / "en.md").write_text("---\nversion: 1\n---\nObey once more, `{agent}`\n")
    agentsmd.sync([one], "file", root)
    assert "Obey once more, `dev1`" in text_of(one), "whatever its number"
    for bad in (
        "---\nversion: true\n---\ntext",
        "no front",
        "---\nversion: x\n---\ntext",
        "---\nversion: 1\n---\n",
        "---\n: [\n---\nx",
    ):
        (own / "en.md").write_text(bad)
        with pytest.raises(UsageError, match=r"en\.md"):
            agentsmd.sync([one], "file", root)


def test_line_ends_marks_and_rights_are_kept(root: Path, tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf# Hi\r\n\r\nno end"
    one = agent(tmp_path, "dev1", content)
    assert one.workspace
    file = one.workspace / "AGENTS.md"
    file.chmod(0o640)
    agentsmd.sync([one], "file", root)
    data = file.read_bytes()
    assert data.startswith(content)
    assert data.count(b"\n") == data.count(b"\r\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    (kept,) = agentsmd.copies(root / agentsmd.BACKUPS, file)
    assert kept.read_bytes() == content
    agentsmd.sync([one], "off", root)
    assert file.read_bytes() == content
    assert not kept.exists(), "the file is what it was"
    assert list(one.workspace.iterdir()) == [file]


def test_what_may_not_be_changed_is_said(root: Path, tmp_path: Path) -> None:
    """Read-only, not text, damaged, a link to something else: each is left as it is."""
    one = agent(tmp_path, "read-only")
    assert one.workspace
    (one.workspace / "AGENTS.md").chmod(0o444)
    two = agent(tmp_path, "binary", b"\xff\xfe#\0 \0")
    three = agent(tmp_path, "damaged", b"<!-- clawstop:begin version=1 -->\nx\n")
    four = agent(tmp_path, "link", None)
    assert four.workspace
    other = tmp_path / "profile"
    other.write_text("export A=1\n")
    (four.workspace / "AGENTS.md").symlink_to(other)
    everybody = [one, two, three, four]
    before = [(a.workspace / "AGENTS.md").read_bytes() for a in everybody if a.workspace]
    reports = {r.agents[0]: (r.did, r.why) for r in agentsmd.sync(everybody, "file", root)}
    assert reports == {
        "read-only": ("kept", "it is read-only"),
        "binary": ("kept", "it is not plain text"),
        "damaged": ("kept", "its marks are not one pair, each on a line of its own"),
        "link": ("kept", "it is a link to something else"),
    }
    assert before == [(a.workspace / "AGENTS.md").read_bytes() for a in everybody if a.workspace]


def test_agents_that_share_a_workspace_share_a_block(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1")
    assert one.workspace
    (tmp_path / "link").symlink_to(one.workspace)
    two = Agent("dev2", workspace=tmp_path / "link")
    reports = agentsmd.sync([one, two], "file", root)
    assert [(r.did, r.agents) for r in reports] == [("added", ("dev1", "dev2"))]
    assert "`dev1` / `dev2`" in text_of(one)


def test_two_openclaws_do_not_write_over_each_other(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "space" / agentsmd.NAME
    file.parent.mkdir()
    file.write_text("# Hello\n")
    mine, theirs = Agent("main", workspace=file.parent), Agent("dev", workspace=file.parent)
    agentsmd.sync([mine], "file", root)
    before = file.read_bytes()
    (report,) = agentsmd.sync([theirs], "file", tmp_path / "other")
    assert (report.did, file.read_bytes()) == ("kept", before)
    (report,) = agentsmd.sync([mine, theirs], "file", root)
    assert report.did == "updated", "what we wrote is ours to change"


def test_a_file_with_two_names_keeps_both(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "space" / agentsmd.NAME
    file.parent.mkdir()
    file.write_text("# Hello\n")
    os.link(file, file.with_name("CLAUDE.md"))
    (report,) = agentsmd.sync([Agent("main", workspace=file.parent)], "file", root)
    assert (report.did, file.read_text()) == ("kept", "# Hello\n")


def test_who_writes_at_the_same_moment_goes_before_us(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent(tmp_path, "dev1")
    assert one.workspace
    file = one.workspace / "AGENTS.md"
    fsync = os.fsync

    def slow(handle: int) -> None:
        file.write_text("# The agent wrote this\n")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    (report,) = agentsmd.sync([one], "file", root)
    assert (report.did, report.why) == ("kept", "it is being written just now")
    assert text_of(one) == "# The agent wrote this\n"


def test_a_dry_run_changes_nothing(root: Path, tmp_path: Path) -> None:
    one = agent(tmp_path, "dev1")
    assert did(agentsmd.sync([one], "file", root, dry_run=True)) == ["added"]
    assert text_of(one) == "# Hello\n"
    assert list(root.iterdir()) == []
