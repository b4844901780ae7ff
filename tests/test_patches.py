"""What tests take out of the product is there: else a gateway says so, half an hour later."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from product import Patch, Product, crash_at

TESTS = Path(__file__).parent
CALLS = [
    (getattr(node.func, "id", ""), [ast.literal_eval(given) for given in node.args])
    for file in sorted(TESTS.rglob("*.py"))
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    if isinstance(node, ast.Call) and all(isinstance(given, ast.Constant) for given in node.args)
]
PATCHES = [Patch(*given) for name, given in CALLS if name == "Patch" and len(given) == 3]
PATCHES += [patch for name, given in CALLS if name == "crash_at" for patch in crash_at(*given)]


def test_there_are_patches() -> None:
    assert len(PATCHES) > 30


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: f"{patch.file}: {patch.old[:30]}")
def test_every_patch_applies(tmp_path: Path, patch: Patch) -> None:
    Product(tmp_path / "clawstop", patch)
