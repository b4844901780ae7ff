"""The table of releases in docs/hosts.md: every scenario that is not whole has its reason."""

from __future__ import annotations

import pytest
from hosts import table

CI = ("2026.9.6", "2026.7.35", "2026.4.9")


def test_it_shows_what_the_runs_came_to() -> None:
    text = table.DOCS.read_text(encoding="utf-8")
    assert table.placed(text, table.columns()) == text


def test_it_covers_what_ci_runs_and_releases_of_six_months() -> None:
    releases = [column["release"] for column in table.columns()]
    assert set(CI) <= set(releases)
    assert len(releases) >= 6
    assert len({release.split(".")[1] for release in releases}) >= 6


@pytest.mark.parametrize("column", table.columns(), ids=lambda one: one["release"])
def test_no_scenario_fails_and_none_is_limited_without_a_reason(column: table.Column) -> None:
    scenarios = column["scenarios"].items()
    for begin in (begin for begins in table.SCENARIOS.values() for begin in begins):
        assert [name for name, _ in scenarios if name.startswith(begin)], begin
    assert [name for name, one in scenarios if one["outcome"] == table.FAILED] == []
    limited = [(name, one["why"]) for name, one in scenarios if one["outcome"] == table.LIMITED]
    assert [name for name, why in limited if len(why.split()) < 4] == []


def test_a_failure_and_each_reason_are_shown_once() -> None:
    one = {"outcome": table.LIMITED, "why": "the host does not tell"}
    shell, fence = table.SCENARIOS["stop from a shell"][:2], table.SCENARIOS["fence"]
    failed = {"outcome": table.FAILED, "why": "it was late", "date": "2026-01-03"}
    alone = {**one, "date": "2026-01-05", "alone": True}
    scenarios = {shell[0]: {**one, "date": "2026-01-04"}, shell[1]: alone, fence[0]: failed}
    told = table.rendered([{"release": "2026.1.2", "scenarios": scenarios}])
    assert "| run on | 2026-01-03 |" in told, "of the oldest"
    assert "0 of 2 (1 only alone) [1] |" in told
    assert "0 of 1 **1 failed** [2] |" in told
    assert "- [2] it was late" in told
    assert told.count("the host does not tell") == 1
