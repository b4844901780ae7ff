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
