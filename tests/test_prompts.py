"""The journal of what people asked: nothing is lost without a word, and nobody is told twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from clawstop.paths import Paths
from clawstop.prompts import Prompt
from clawstop.store import Store
from wire import bridge, engine

S, T = "agent:main:main", "agent:dev1:main"
ROUTE = {"channel": "telegram", "to": "telegram:42"}


@pytest.fixture
def place(tmp_path: Path) -> Paths:
    paths = Paths(tmp_path / "openclaw")
    paths.prepare()
    return paths


def noted(store: Store, *ids: str, session: str = S, came: float = 100.0) -> None:
    for id in ids:
        store.prompts.note(Prompt(session, id, "42", f"words of {id}", ROUTE, came))


def unread(store: Store) -> list[str]:
    return [prompt.id for prompt in store.prompts.unread("another gateway")]


def test_a_message_is_there_until_a_run_has_it(place: Paths) -> None:
    store = Store.open(place.database)
    noted(store, "m1", "m2", "m3")
    store.prompts.read(S, ["m1"])
    store.close()
    store = Store.open(place.database)  # as after a crash
    assert unread(store) == ["m2", "m3"]
    store.prompts.read(S, ["m2", "m3"])
    assert unread(store) == []


def test_words_are_not_kept_for_long(place: Paths) -> None:
    store = Store.open(place.database)
    noted(store, "old", came=100.0)
    noted(store, "new", came=200.0)
    store.prompts.prune(150.0)
    assert unread(store) == ["new"]


def test_a_stop_discards_what_came_before_it_in_its_scope(place: Paths) -> None:
    store = Store.open(place.database)
    noted(store, "mine")
    noted(store, "later", came=300.0)
    noted(store, "other", session=T)
    store.begin_stop("s1", {}, [S], [S], at=200.0)
    assert sorted(unread(store)) == ["later", "other"]
    store.begin_stop("s2", {}, [], [T], at=400.0)
    assert "other" in unread(store), "begun anew is not stopped"


def test_a_message_is_on_disk_before_the_bridge_hears_of_it(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running, bridge(place) as one:
            message: dict[str, Any] = {"id": "m1", "sender": "42", "authorised": True}
            await one.result("message", session=S, text="hello", route=ROUTE, **message)
            assert unread(running.engine.store) == ["m1"]
            await one.result("run_start", run="r1", session=S, cause="message", message="m1")
            prompts = running.engine.store.prompts
            assert unread(running.engine.store) == []
            mine = prompts.of_run(S, "r1")
            assert mine is not None, "its words are there while its run lives"
            assert mine.text == "hello"
            await one.result("run_end", run="r1", session=S)
            assert prompts.of_run(S, "r1") is None

    asyncio.run(scenario())


def test_what_has_no_words_for_the_agent_is_not_kept(place: Paths) -> None:
    async def scenario() -> None:
        async with engine(place) as running, bridge(place) as one:
            await one.result("message", session=S, id="m1", sender="42", authorised=True)
            assert unread(running.engine.store) == []

    asyncio.run(scenario())
