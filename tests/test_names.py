"""Who is meant by a name: 370 cases, and what must hold for every roster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from clawstop import targets
from clawstop.agents import Agent
from clawstop.errors import Ambiguous, UsageError
from clawstop.names import LONGEST, Names
from clawstop.store import Store
from hypothesis import given
from hypothesis import strategies as st

TABLE: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("name_cases.yaml").read_text(encoding="utf-8")
)
NAMES = Names(Agent(*row) for row in TABLE["agents"])
CASES = [(group, *case) for group, cases in TABLE["cases"].items() for case in cases]


@pytest.mark.parametrize("group", TABLE["cases"])
def test_names(group: str) -> None:
    """In a command, and in a sentence."""
    wrong = []
    for said, sure, plain in TABLE["cases"][group]:
        letter, times, count = said.partition(" x ")
        typed = letter * int(count) if times else said
        found = (NAMES.find(typed), NAMES.find(typed, plain=True))
        if found != (sure, plain):
            wrong.append((said, found))
    assert wrong == []


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 300


@given(st.text(max_size=LONGEST * 2))
def test_whatever_is_said_a_sentence_names_no_more_than_a_command(said: str) -> None:
    plain = NAMES.find(said, plain=True)
    assert set(plain) <= set(NAMES.ids)
    assert not plain or NAMES.find(said) == plain
    assert len(NAMES.nearest(said)) <= 3


@given(st.lists(st.tuples(st.text(min_size=1, max_size=30), st.text(max_size=20)), max_size=8))
def test_an_agents_own_id_never_names_another_alone(rows: list[tuple[str, str]]) -> None:
    names = Names(Agent(id, name) for id, name in rows)
    for id, _ in rows:
        found = names.find(id)
        assert not found or id in found


@pytest.mark.parametrize("said", ["dev1", "ev1", "zero_dev1"])
def test_a_number_is_whole_or_not_meant(said: str) -> None:
    names = Names([Agent("main"), Agent("zero_dev10"), Agent("21st_dev")])
    assert names.find(said) == []
    assert names.find("dev10") == ["zero_dev10"]
    assert names.find("1st") == []


# -- who is meant, and nobody else

SENTENCES = {  # what an agent may be called, and what must not be taken for it
    ("zero_it", ""): ["it", "IT"],
    ("ops_up", ""): ["up"],
    ("news", "时事"): ["实施", "shishi"],
    ("moon", "嫦娥"): ["change"],
    ("star", "胡歌"): ["huge"],
    ("moon", "嫦娥", "月宫女主人"): ["change"],
    ("news", "时事", "新闻播报员"): ["实施", "shishi"],
    ("news", "时事 News Desk"): ["shishinewsdesk"],
}


@pytest.mark.parametrize("agent", SENTENCES)
def test_a_word_of_a_sentence_is_nobodys_name(agent: Any) -> None:
    names = Names([Agent(*agent)])
    for word in SENTENCES[agent]:
        assert names.find(word, plain=True) == [], word
        assert names.find(word) == [agent[0]], "in a command it is"


@pytest.mark.parametrize("said", ["ALL", "All ", "ａｌｌ", "EVERYTHING"])
def test_a_word_for_many_is_one_however_it_is_written(tmp_path: Path, said: str) -> None:
    store = Store.open(tmp_path / "state.sqlite")
    names = Names(map(Agent, ("main", "wallace", "dev1")))
    wanted = targets.resolve(said.strip().lower().replace("ａｌｌ", "all"), store, names)
    assert targets.resolve(said, store, names) == wanted
    assert len(wanted.scopes) == (1 if "e" in said.lower() else 2)
    store.close()


def test_an_agent_that_is_called_all_is_one_agent(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.sqlite")
    names = Names([Agent("all", "Alice"), Agent("everything", "Bob"), Agent("dev1")])
    assert targets.resolve("Alice", store, names).scopes == ["agent:all"]
    assert targets.resolve("Bob", store, names).scopes == ["agent:everything"]
    assert targets.exact(targets.full("all"), store, names.ids).scopes == ["agent:all"]
    store.close()


def test_who_has_only_left_something_comes_last(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.sqlite")
    names = Names([Agent("main"), Agent("zero_dev1")], [Agent("dev1"), Agent("old_helper")])
    assert targets.resolve("dev1", store, names).scopes == ["agent:zero_dev1"]
    assert targets.meant("dev1", names) == ["zero_dev1"]
    assert targets.resolve("helper", store, names).scopes == ["agent:old_helper"]
    store.close()


def test_all_is_main_too_when_no_other_is_an_agent(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.sqlite")
    store.bind("r", "agent:gone:main", "message", [], None)
    alone = Names([Agent("main")], [Agent("gone")])
    target = targets.resolve("all", store, alone)
    assert (target.scopes, target.spared) == (["agent:gone", "agent:main"], [])
    target = targets.resolve("all", store, Names([Agent("main"), Agent("dev1")], [Agent("gone")]))
    assert (target.scopes, target.spared) == (["agent:dev1", "agent:gone"], ["main"])
    store.close()


def test_what_is_chosen_from_a_list_is_an_agent(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.sqlite")
    names = Names([Agent("all", "Bob"), Agent("dev1", "Bob"), Agent("dev2")])
    with pytest.raises(Ambiguous) as several:
        targets.resolve("Bob", store, names)
    assert several.value.choices == ["agent:all", "agent:dev1"]
    assert targets.resolve(several.value.choices[0], store, names).scopes == ["agent:all"]
    store.close()


@pytest.mark.parametrize("said", ["全部", "所有", "所有智能体"])
def test_all_in_chinese(said: str) -> None:
    assert targets.meant(said, NAMES) == ["all"]


def test_as_we_show_it_is_a_name_too() -> None:
    assert NAMES.find("zero_pm (产品经理)", plain=True) == ["zero_pm"]


def test_five_thousand_agents_are_looked_through_in_no_time() -> None:
    """Counted, not timed: one search through one text, and no table is walked for each agent.
    `clawstop bench names` says how long it takes."""
    names = Names.ready(Agent(f"zero_dev{n}", f"开发工程师{n}") for n in range(5000))
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    for said in ("dev4999", "开发工程师77", "nobody at all", "kaifagongchengshi3"):
        calls = 0
        sys.setprofile(count)
        try:
            names.find(said)
        finally:
            sys.setprofile(None)
        assert calls < 1000, said


def test_without_the_libraries_ids_and_names_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rapidfuzz", "rapidfuzz.distance", "pypinyin"):
        monkeypatch.setitem(sys.modules, module, None)
    bare = Names([Agent("zero_dev1", "深海潜水员"), Agent("zero_pm")])  # not read aloud before
    assert bare.find("dev1") == ["zero_dev1"]
    assert bare.find("深海潜水员") == ["zero_dev1"]
    assert bare.find("潜水") == ["zero_dev1"]
    assert bare.find("shenhaiqianshuiyuan") == []
    assert bare.nearest("zero_dev3") == []


# -- what a command makes of it


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store.open(tmp_path / "state.sqlite")
    for key in ("agent:main:main", "agent:zero_pm:telegram:direct:42", "agent:main:webchat:42"):
        opened.bind("r", key, "message", [], None)
    return opened


LABELS = {"agent:zero_pm:telegram:direct:42": "Tax return", "agent:main:main": "dev1"}


@pytest.mark.parametrize(
    ("said", "scopes"),
    [
        ("产品经理", ["agent:zero_pm"]),
        ("agent:main:main", ["agent:main:main"]),
        ("telegram:direct:42", ["agent:zero_pm:telegram:direct:42"]),
        ("direct:42", ["agent:zero_pm:telegram:direct:42"]),
        ("tax RETURN", ["agent:zero_pm:telegram:direct:42"]),
        ("dev1", ["agent:zero_dev1"]),  # an agent goes before a label
    ],
)
def test_agents_and_sessions_by_what_they_are_called(
    store: Store, said: str, scopes: list[str]
) -> None:
    assert targets.resolve(said, store, NAMES, LABELS).scopes == scopes


def test_several_are_numbered_and_nobody_is_met_with_the_nearest(store: Store) -> None:
    with pytest.raises(Ambiguous) as several:
        targets.resolve("pm", store, NAMES)
    assert str(several.value).splitlines()[1:] == [
        "  1. one-pm (项目经理)",
        "  2. zero_pm (产品经理)",
    ]
    assert several.value.choices == ["agent:one-pm", "agent:zero_pm"]
    with pytest.raises(Ambiguous, match=r"webchat:42[\s\S]*direct:42"):
        targets.resolve("42", store, NAMES)
    with pytest.raises(UsageError, match=r"did you mean .*zero_dev1"):
        targets.resolve("zero_dev3", store, NAMES)
    with pytest.raises(UsageError, match=r"agents: bank, .* and \d+ more"):
        targets.resolve("../../etc/passwd", store, NAMES)


def test_many_of_one_name_are_shown_as_nine() -> None:
    names = Names(Agent(f"team_{number}", "Bob") for number in range(30))
    lines = targets.numbered(names.find("Bob"), names)
    assert len(lines) == 10
    assert lines[-1] == "... 21 more"
