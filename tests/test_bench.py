"""Benchmarks compare honestly, show what they found, and leave nothing behind. Nothing is timed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from clawstop import bench, bench_memory, bench_processes, bench_recovery, bench_tasks
from clawstop.bench import Row
from clawstop.errors import ClawstopError, UsageError
from clawstop.paths import Paths

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"

GOOD = Row("gate", 0.15, "ms", 0.1, "an echo", 2.0)
BAD = Row("latch", 1.25, "ms", 0.25, "a commit", 3.0)
SERVER = "clawstop.bench"  # on the command line of every server that a benchmark starts


def servers(folder: Path) -> list[psutil.Process]:
    """Every process, whoever its parent is, that serves a benchmark in `folder`."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if SERVER in words and any(word.startswith(str(folder)) for word in words):
                found.append(process)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that must be empty, with no process that works in it, when the test is over."""
    inside = tmp_path / "bench"
    inside.mkdir()
    yield inside
    assert servers(inside) == []
    assert list(inside.iterdir()) == []


def test_a_row_says_how_it_compares() -> None:
    assert GOOD.ratio == pytest.approx(1.5)
    assert GOOD.ok
    assert GOOD.as_dict() == {
        "name": "gate",
        "value": 0.15,
        "unit": "ms",
        "reference": 0.1,
        "against": "an echo",
        "ratio": pytest.approx(1.5),
        "bar": 2.0,
        "ok": True,
    }
    json.dumps(GOOD.as_dict())


def test_a_ratio_over_the_bar_is_missed_and_one_on_it_is_not() -> None:
    assert BAD.ratio == 5.0
    assert not BAD.ok
    assert not BAD.as_dict()["ok"]
    assert Row("x", 3.0, "ms", 1.0, "y", 3.0).ok


def test_a_table_is_in_columns_and_shouts_what_was_missed() -> None:
    head, good, bad = bench.table([GOOD, BAD]).splitlines()
    assert good.split() == ["gate", "0.150", "ms", "0.100", "ms", "1.50x", "2x", "ok", "an", "echo"]
    assert "5.00x   3x  MISSED  a commit" in bad
    assert head.index("what the reference is") == good.index("an echo") == bad.index("a commit")


def test_markdown_has_a_line_a_row() -> None:
    lines = bench.markdown([GOOD, BAD]).splitlines()
    assert {line.count("|") for line in lines} == {8}
    assert lines[2] == "| gate | 0.150 ms | 0.100 ms | 1.50x | 2x | ok | an echo |"
    assert "| MISSED |" in lines[3]


def test_no_rows_are_still_a_table() -> None:
    assert bench.table([]).startswith("name")
    assert len(bench.markdown([]).splitlines()) == 2


def test_the_docs_change_only_between_the_markers(tmp_path: Path) -> None:
    file = tmp_path / "bench.md"
    before, after = "# 标题\n\ntext\n\n", "\n\nthe end, without a line's end"
    file.write_text(f"{before}{BEGIN}\nold\n{END}{after}", encoding="utf-8")
    bench.write_docs(file, [GOOD])
    once = file.read_text(encoding="utf-8")
    assert once.startswith(f"{before}{BEGIN}\n")
    assert once.endswith(f"\n{END}{after}")
    assert bench.markdown([GOOD]) in once
    assert "old" not in once
    bench.write_docs(file, iter([GOOD]))
    assert file.read_text(encoding="utf-8") == once


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}"])
def test_docs_without_a_place_for_the_table_are_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bench.md"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="no place for the table"):
        bench.write_docs(file, [GOOD])
    assert file.read_text(encoding="utf-8") == text


def test_the_projects_own_docs_have_a_place_for_the_table() -> None:
    text = (Path(__file__).parent.parent / "docs" / "bench.md").read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    assert text.index(BEGIN) < text.index(END)


def test_all_benchmarks_run_and_leave_nothing_behind(folder: Path) -> None:
    rows = list(bench.run(folder=folder, batches=1))
    known = [*bench.BENCHMARKS, *bench_memory.MEMORY, *bench_tasks.TASKS]
    known += bench_recovery.RECOVERY
    known += bench_processes.PROCESSES
    assert [row.name for row in rows] == [benchmark.__name__ for benchmark in known]
    for row in rows:
        assert row.value > 0
        assert row.reference > 0
        assert row.against


def test_one_benchmark_can_be_chosen(folder: Path) -> None:
    assert [row.name for row in bench.run(["latch"], folder=folder, batches=1)] == ["latch"]


@pytest.mark.skipif(sys.platform != "linux", reason="sched_setaffinity")
def test_a_benchmark_gives_its_cpus_back(folder: Path) -> None:
    before = os.sched_getaffinity(0)
    list(bench.run(["gate"], folder=folder, batches=1))
    assert os.sched_getaffinity(0) == before


def test_an_unknown_benchmark_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="no benchmark 'speed'; there are: gate, latch"):
        bench.run(["gate", "speed"])


class Tap:
    """Lines as they came."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self.seen: list[bytes] = []

    def readline(self) -> bytes:
        self.seen.append(self._lines.readline())
        return self.seen[-1]


def test_both_servers_answer_the_same_bytes(tmp_path: Path) -> None:
    answers = []
    for kind in ("engine", "echo"):
        with bench._server(kind, Paths(tmp_path / kind)) as bridge:
            tap: Any = Tap(bridge._lines)
            bridge._lines = tap
            bridge.verdict()
        answers.append(tap.seen)
    assert answers[0] == answers[1] == [b'{"id":3,"result":{"refusal":null}}\n']


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ClawstopError, match=r"(?s)did not start.*KeyError: 'nonsense'"),
        bench._server("nonsense", Paths(tmp_path)),
    ):
        pytest.fail("it started")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_servers_end_with_the_one_who_started_them(tmp_path: Path, number: signal.Signals) -> None:
    """After Ctrl-C the folder is gone too; nobody can tidy up after a SIGKILL."""
    script = (
        "import sys, pathlib; from clawstop import bench\n"
        "bench.SECONDS = 60\n"
        "list(bench.run(['gate'], folder=pathlib.Path(sys.argv[1]), batches=10**9))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=environ, stderr=subprocess.DEVNULL
    ) as process:
        try:
            _wait_for_two_servers(tmp_path, process)
            process.send_signal(number)
            process.wait(30)
        finally:
            process.kill()
    deadline = time.monotonic() + 30
    while (left := servers(tmp_path)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.05)
    assert left == []
    if number == signal.SIGINT:
        assert list(tmp_path.iterdir()) == []


def _wait_for_two_servers(folder: Path, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        if len(servers(folder)) == 2:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError("the benchmark ended before it was interrupted")
