"""The chain of receipts shows any change in the middle, and a torn line costs only itself."""

from __future__ import annotations

import stat
from pathlib import Path

from clawstop import receipts


def three(file: Path) -> None:
    for number in range(3):
        receipts.append(file, {"id": f"s{number}", "who": "王"})


def test_a_chain_holds_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    three(file)
    assert receipts.verify(file) == []
    assert [receipt["id"] for receipt in receipts.read(file)] == ["s0", "s1", "s2"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_changed_receipt_is_found(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    three(file)
    file.write_text(file.read_text().replace('"id":"s1"', '"id":"sX"'))
    assert receipts.verify(file) == ["receipt 2 (sX) was changed after it was written"]


def test_a_removed_receipt_is_found(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    three(file)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0] + lines[2])
    assert receipts.verify(file) == ["receipt 2 (s2) does not follow the one before"]


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    three(file)
    file.write_bytes(file.read_bytes()[:-20])
    receipts.append(file, {"id": "s3"})
    assert [receipt["id"] for receipt in receipts.read(file)] == ["s0", "s1", "s3"]
    assert receipts.verify(file) == []


def test_no_file_is_no_receipts(tmp_path: Path) -> None:
    assert receipts.verify(tmp_path / "none") == []
    assert receipts.find(tmp_path / "none", "s1") is None


def test_old_receipts_go_by_count_and_the_chain_still_holds(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    for number in range(25):
        receipts.append(file, {"id": f"s{number}", "at": float(number)})
    assert receipts.prune(file, 23, 0.0) == 0, "a little more than allowed is left for later"
    assert receipts.prune(file, 20, 0.0) == 5
    assert [r["id"] for r in receipts.read(file)] == [f"s{number}" for number in range(5, 25)]
    assert receipts.verify(file) == []
    receipts.append(file, {"id": "next", "at": 30.0})
    assert receipts.verify(file) == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0] + "".join(lines[2:]))
    assert receipts.verify(file) == ["receipt 1 (s6) does not follow the one before"]


def test_old_receipts_go_by_age_but_never_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    for number in range(3):
        receipts.append(file, {"id": f"s{number}", "at": float(number)})
    assert receipts.prune(file, 100, 1.5) == 2
    assert receipts.prune(file, 100, 99.0) == 0
    assert [r["id"] for r in receipts.latest(file)] == ["s2"]
    receipts.append(file, {"id": "s3", "at": 3.0})
    assert receipts.verify(file) == []


def test_a_receipt_is_found_by_its_id_and_not_by_a_mention(tmp_path: Path) -> None:
    file = tmp_path / "receipts.jsonl"
    receipts.append(file, {"id": "aa", "attempt": 1})
    receipts.append(file, {"id": "aa", "attempt": 2})
    receipts.append(file, {"id": "bb", "left": ["see aa"]})
    found = receipts.find(file, "aa")
    assert found is not None
    assert found["attempt"] == 2
    assert receipts.find(file, "a") is None
    file.write_bytes(file.read_bytes() + b"[" * 100_000 + b'"cc"')
    assert receipts.find(file, "cc") is None
