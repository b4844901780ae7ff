"""Owns the table of releases in docs/hosts.md: what each scenario came to on each release.

`python3 skill test --host RELEASE --table` runs the scenarios on a release and writes its column:
the outcomes into `releases/RELEASE.json`, and from all of those the table. A scenario passes, or is
limited: then the release truly cannot, the reason stands below the table, and what can be had was
asserted all the same (`limit` in conftest.py), or there is nothing to assert (`since`). What fails
is shown as failed, with what it said.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Column = dict[str, Any]  # {"release", "scenarios": {test: {"outcome", "why", "date", "alone"?}}}

RELEASES = Path(__file__).parent / "releases"
DOCS = Path(__file__).parents[2] / "docs" / "hosts.md"
BEGIN, END = "<!-- table: written by the test run -->", "<!-- end of the table -->"
SCENARIOS = {  # what is shown -> the tests that show it, by the beginning of their names
    "stop on a page": (
        r"test_triggers::test_a_word_typed_on_a_page[/stop]",
        r"test_triggers::test_a_word_typed_on_a_page[\u4e2d\u65ad]",
        r"test_triggers::test_an_operators_call",
        r"test_triggers::test_who_may_not_read",
        r"test_triggers::test_a_session_without_a_run_but_with_a_process[/stop]",
        r"test_triggers::test_a_conversation_begun_anew[/new]",
        r"test_triggers::test_a_conversation_begun_anew[sessions.reset]",
    ),
    "stop on a channel": (
        r"test_triggers::test_a_word_on_telegram[/stop]",
        r"test_triggers::test_a_word_on_telegram[\u505c\u6b62]",
        r"test_triggers::test_a_word_on_telegram[\u4e2d\u65ad]",
        r"test_triggers::test_a_conversation_begun_anew_on_telegram[/new]",
        r"test_triggers::test_an_idle_chat_with_a_process[/stop]",
        r"test_triggers::test_a_word_in_a_group[stop",
        r"test_triggers::test_a_stranger_in_a_group_stops_nothing",
        r"test_claims::test_halt_from_the_menu",
    ),
    "stop from a shell": (
        r"test_triggers::test_the_command_line[dev1]",
        r"test_triggers::test_a_stop_flag",
        r"test_stop::test_an_agents_own_process",
    ),
    "orders for others": (
        r"test_claims::test_killing_another_agent_on_a_page_harms_nothing_here[kill dev1]",
        r"test_claims::test_a_stranger_in_an_open_chat",
    ),
    "gate, end, kill, receipt": (
        r"test_stop::test_clawstop_stop_ends",
        r"test_stop::test_a_typed_stop_ends",
        r"test_stop::test_a_message_releases",
        r"test_stop::test_a_resubmitted_message",
        r"test_stop::test_a_stop_on_a_channel",
        r"test_stop::test_an_engine_killed_comes_back",
        r"test_stop::test_a_stop_typed_while_the_engine_is_down",
    ),
    "processes that hide": (
        r"test_processes::test_nobody_of_the_zoo",
        r"test_processes::test_the_environment",
    ),
    "nothing comes back": (
        r"test_interlock::test_neither_a_process",
        r"test_interlock::test_a_wake_and_a_job",
    ),
    "fence": (r"test_fence::test_after_a_stop[strict]",),
    "a new message takes over": (
        r"test_takeover::test_on_a_page",
        r"test_takeover::test_on_a_channel",
        r"test_races::test_two_messages_at_once",
        r"test_races::test_a_message_right_after_a_stop",
        r"test_races::test_in_a_group",
    ),
    "rollback and restore": (
        r"test_memory::test_after_a_stop",
        r"test_memory::test_on_a_channel",
        r"test_memory::test_text_that_was_on_its_way",
        r"test_memory::test_a_subagents_session",
        r"test_memory::test_what_was_begun_anew",
    ),
    "after a crash": (r"test_recovery::test_each_goes_on_once",),
    "install and uninstall": (
        r"test_install::test_install_protects",
        r"test_install::test_settings_that_were_there",
    ),
}
# Only for the table: what takes minutes, and more of the same. Every test run has the rest.
SLOW = (
    "test_recovery::",
    "test_install::",
    "test_interlock::test_neither",
    "test_takeover::test_on_a_page[model",
    "test_takeover::test_on_a_page[streaming",
    "test_takeover::test_on_a_page[in a batch",
    "test_takeover::test_on_a_page[between",
    "test_takeover::test_on_a_page[with",
    "test_takeover::test_on_a_channel[model",
    "test_takeover::test_on_a_channel[streaming",
    "test_takeover::test_on_a_channel[in a batch",
    "test_takeover::test_on_a_channel[between",
    "test_takeover::test_on_a_channel[with",
    "test_races::test_two_messages_at_once_are_both_read_and_the_last_is_answered[1",
    "test_races::test_two_messages_at_once_are_both_read_and_the_last_is_answered[2",
    "test_races::test_a_message_right_after_a_stop_is_answered_once[1",
    "test_triggers::test_a_stranger_in_a_group_stops_nothing[@",
    "test_triggers::test_a_stranger_in_a_group_stops_nothing[/new",
)
FILES = sorted(
    {
        f"tests/hosts/{begin.partition('::')[0]}.py"
        for begins in SCENARIOS.values()
        for begin in begins
    }
)
ALL = tuple(begin for begins in SCENARIOS.values() for begin in begins)
RECORD, ALONE = "CLAWSTOP_TEST_TABLE", "alone"
LONGEST = 200  # characters of what a failure said
PASSED, LIMITED, FAILED = "passed", "limited", "failed"


class Recorder:
    """A pytest plugin: takes the outcomes, and writes them and the table when the run is over."""

    def __init__(self, release: str, alone: bool) -> None:
        self._release = release
        self._again = {"alone": True} if alone else {}  # it had failed beside others
        self._found: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped:
            self._note(report, LIMITED, str(report.longrepr[2]).removeprefix("Skipped: "))
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = (crash.message if crash else str(report.longrepr)).splitlines()
            self._note(report, FAILED, said[0][:LONGEST] if said else "")
        elif report.when == "call":
            whys = [str(why) for key, why in report.user_properties if key == "limit"]
            self._note(report, LIMITED if whys else PASSED, "; ".join(dict.fromkeys(whys)))

    def _note(self, report: Any, outcome: str, why: str) -> None:
        about = {"outcome": outcome, "why": why, "date": time.strftime("%Y-%m-%d"), **self._again}
        self._found[name_of(report.nodeid)] = about

    def pytest_sessionfinish(self) -> None:
        """What was run again takes the place of what was there."""
        before = [one for one in columns() if one["release"] == self._release]
        found = {**(before[0]["scenarios"] if before else {}), **self._found}
        wanted = {name: found[name] for name in sorted(found) if name.startswith(ALL)}
        write({"release": self._release, "scenarios": wanted})


def name_of(nodeid: str) -> str:
    module, _, test = nodeid.partition("::")
    return f"{Path(module).stem}::{test}"


# With `-p hosts.table` only the scenarios run, the slow ones only where all are written down.


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    left_out = () if RECORD in os.environ else SLOW
    names = {item: name_of(item.nodeid) for item in items}
    others = [
        item
        for item, name in names.items()
        if not name.startswith(ALL) or name.startswith(left_out)
    ]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


def pytest_configure(config: Any) -> None:
    """A worker of pytest-xdist tells its controller, which writes."""
    if RECORD in os.environ and not hasattr(config, "workerinput"):
        alone = os.environ[RECORD] == ALONE
        config.pluginmanager.register(Recorder(os.environ["CLAWSTOP_TEST_HOST"], alone))


def write(column: Column) -> None:
    RELEASES.mkdir(exist_ok=True)
    file = RELEASES / f"{column['release']}.json"
    file.write_text(json.dumps(column, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    DOCS.write_text(placed(DOCS.read_text(encoding="utf-8"), columns()), encoding="utf-8")


def columns() -> list[Column]:
    """The newest release first."""
    found = [json.loads(file.read_text(encoding="utf-8")) for file in RELEASES.glob("*.json")]
    return sorted(found, key=lambda one: _order(one["release"]), reverse=True)


def _order(release: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", release)]


def placed(text: str, found: Iterable[Column]) -> str:
    """The document with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{rendered(list(found))}\n{END}{after}"


def rendered(found: list[Column]) -> str:
    reasons = Reasons()
    rows = [
        ["", *(column["release"] for column in found)],
        ["---"] * (len(found) + 1),
        ["run on", *(_date(column) for column in found)],
        *(
            [told, *(_cell(begins, column, reasons) for column in found)]
            for told, begins in SCENARIOS.items()
        ),
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{table}\n\n{reasons}".rstrip()


def _date(column: Column) -> str:
    """When: of some that were run again, that of the oldest."""
    return min(str(one["date"]) for one in column["scenarios"].values())


def _cell(begins: tuple[str, ...], column: Column, reasons: Reasons) -> str:
    mine = {name: one for name, one in column["scenarios"].items() if name.startswith(begins)}
    if not mine:
        return "not run"
    passed = sum(one["outcome"] == PASSED for one in mine.values())
    failed = [one["why"] for one in mine.values() if one["outcome"] == FAILED]
    limits = [one["why"] for one in mine.values() if one["outcome"] == LIMITED]
    alone = sum(one["outcome"] != FAILED and one.get("alone", False) for one in mine.values())
    told = [f" **{len(failed)} failed**"] if failed else []
    told += [f" ({alone} only alone)"] if alone else []
    for why in dict.fromkeys([*limits, *failed]):
        told += [f" [{reasons.number(why)}]"] if why else []
    return f"{passed} of {len(mine)}{''.join(told)}"


class Reasons:
    """The reasons below the table, each once."""

    def __init__(self) -> None:
        self._all: dict[str, int] = {}

    def number(self, why: str) -> int:
        return self._all.setdefault(why, len(self._all) + 1)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for why, number in self._all.items():
            yield f"- [{number}] {why}"
