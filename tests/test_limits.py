"""What is said of a release: what it cannot do, and what its settings take away."""

from __future__ import annotations

import pytest
from clawstop import limits
from clawstop.limits import KNOWN, LACKS, REDUCED
from hosts import table


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2026.9.6", set()),
        ("2026.9.1-beta.1", {limits.QUEUES}),
        ("2026.8.2", {limits.QUEUES, limits.ANYBODY}),
        ("2026.9.3", {limits.WRONG}),
        ("2026.5.28", set(KNOWN) - {limits.NOTICE, limits.REWRITES, limits.WRONG}),
        ("2026.4.9", set(KNOWN) - {limits.DROPS, limits.STUCK, limits.HOLDS, limits.WRONG}),
        ("unknown", set()),
        ("", set()),
    ],
)
def test_what_only_running_a_release_shows_is_known_by_its_number(
    version: str, said: set[limits.Limit]
) -> None:
    assert limits.limits({}, version) == [one.why for one in KNOWN if one in said]


@pytest.mark.parametrize("ability", REDUCED)
def test_every_ability_that_is_missing_is_said(ability: str) -> None:
    assert limits.reduced({ability: False}) == [REDUCED[ability]]
    assert limits.reduced({ability: True}) == limits.reduced({}) == []


def test_what_nothing_gives_back_is_a_limit() -> None:
    assert limits.limits(dict.fromkeys(LACKS, False), "2026.9.6") == list(LACKS.values())


@pytest.mark.parametrize("column", table.columns(), ids=lambda one: one["release"])
def test_what_the_table_shows_of_a_release_its_doctor_says(column: table.Column) -> None:
    said = limits.limits({}, column["release"])
    for name, one in column["scenarios"].items():
        why = one["why"] if one["outcome"] == table.LIMITED else ""
        for limit in said:
            why = why.replace(limit, "")
        assert not why.strip("; ") or why.startswith("before "), name
