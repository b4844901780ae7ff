"""Generations only grow, latches hold until released, and nothing is forgotten by a crash."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clawstop import scopes
from clawstop.errors import StoreError
from clawstop.schema import MIGRATIONS
from clawstop.store import Store
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

MAIN = "agent:main:main"
DEV = "agent:dev1:main"
CHILD = "agent:dev1:subagent:1"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    one = Store.open(file)
    yield one
    one.close()


def stop(store: Store, id: str, latch: list[str], bump: list[str]) -> dict[str, int]:
    return store.begin_stop(id, {"trigger": "test"}, latch, bump)


def test_a_run_is_dead_once_its_session_is_bumped(store: Store) -> None:
    assert store.bind("r1", MAIN, "message").refusal is None
    stop(store, "s1", [], [MAIN])
    assert store.standing(MAIN, "r1").dead
    assert store.bind("r2", MAIN, "message").refusal is None


def test_a_run_is_bound_once_and_for_ever(store: Store) -> None:
    store.bind("r1", MAIN, "message")
    stop(store, "s1", [], [MAIN])
    assert store.bind("r1", MAIN, "message").dead


def test_a_run_that_binds_after_the_stop_is_refused_while_the_latch_holds(store: Store) -> None:
    stop(store, "s1", [MAIN], [MAIN])
    assert store.bind("r1", MAIN, "message").refusal


def test_a_run_without_a_named_cause_belongs_to_the_oldest_open_generation(store: Store) -> None:
    store.bind("old", MAIN, "message")
    stop(store, "s1", [MAIN], [MAIN])
    store.admit("m1", MAIN)
    assert store.bind("wake", MAIN, "heartbeat").dead, "the stopped run has not ended yet"
    store.end_run("old", MAIN)
    store.end_run("wake", MAIN)
    assert not store.bind("later", MAIN, "heartbeat").dead


def test_an_announce_belongs_to_the_generation_that_spawned_the_child(store: Store) -> None:
    store.bind("parent", MAIN, "message")
    store.adopt(CHILD, MAIN)
    stop(store, "s1", [MAIN, CHILD], [MAIN, CHILD])
    store.end_run("parent", MAIN)
    store.admit("m1", MAIN)
    assert store.bind("announce", MAIN, "announce", [CHILD]).dead


def test_a_child_of_a_stopped_run_is_latched_with_it(store: Store) -> None:
    store.bind("parent", MAIN, "message")
    stop(store, "s1", [MAIN], [MAIN])
    store.adopt(CHILD, MAIN)
    assert store.standing(CHILD).refusal


def test_a_run_that_binds_while_latched_stays_dead_after_the_release(store: Store) -> None:
    stop(store, "s1", [MAIN], [MAIN])
    store.bind("late", MAIN, "message")
    assert store.admit("m1", MAIN)
    assert store.standing(MAIN, "late").dead
    assert not store.bind("new", MAIN, "message").dead


def test_a_child_is_born_once(store: Store) -> None:
    store.adopt(CHILD, MAIN)
    stop(store, "s1", [MAIN, CHILD], [MAIN, CHILD])
    store.admit("m1", MAIN)
    store.adopt(CHILD, MAIN)  # told again after a reconnect
    assert store.bind("announce", MAIN, "announce", [CHILD]).dead


def test_descendants_come_before_their_parents(store: Store) -> None:
    store.adopt("agent:main:subagent:a", MAIN)
    store.adopt("agent:main:subagent:b", "agent:main:subagent:a")
    assert store.descendants(MAIN) == ["agent:main:subagent:b", "agent:main:subagent:a"]


def test_sessions_that_spawn_each_other_do_not_hang(store: Store) -> None:
    store.adopt("agent:main:a", "agent:main:b")
    store.adopt("agent:main:b", "agent:main:a")
    assert store.descendants("agent:main:a") == ["agent:main:b"]


def test_an_agents_latch_covers_sessions_that_do_not_exist_yet(store: Store) -> None:
    stop(store, "s1", ["agent:dev1"], [])
    assert store.standing("agent:dev1:tomorrow").refusal
    assert not store.standing("agent:dev10:main").refusal


def test_a_message_releases_one_session_under_an_agents_latch(store: Store) -> None:
    stop(store, "s1", ["agent:dev1"], [])
    assert store.admit("m1", DEV)
    assert not store.standing(DEV).refusal
    assert store.standing("agent:dev1:other").refusal


def test_a_message_id_seen_before_the_stop_releases_nothing(store: Store) -> None:
    assert not store.admit("m1", MAIN), "nothing was stopped"
    stop(store, "s1", [MAIN], [MAIN])
    assert not store.admit("m1", MAIN)
    assert store.standing(MAIN).refusal


def test_a_new_stop_holds_after_an_earlier_release(store: Store) -> None:
    stop(store, "s1", ["agent:dev1"], [DEV])
    store.admit("m1", DEV)
    stop(store, "s2", ["agent:dev1"], [DEV])
    assert store.standing(DEV).refusal


def test_the_same_stop_twice_bumps_once(store: Store) -> None:
    assert stop(store, "s1", [MAIN], [MAIN]) == stop(store, "s1", [MAIN], [MAIN]) == {MAIN: 2}


def test_release_of_a_session_under_its_agents_latch_leaves_the_agent_stopped(
    store: Store,
) -> None:
    stop(store, "s1", ["agent:dev1"], [])
    assert store.release(DEV) == [DEV]
    assert not store.standing(DEV).refusal
    assert store.standing("agent:dev1:other").refusal
    assert store.release(DEV) == []


def test_everything_survives_a_reopen(file: Path) -> None:
    first = Store.open(file)
    first.bind("r1", MAIN, "message")
    stop(first, "s1", [MAIN], [MAIN])
    second = Store.open(file)  # the first was never closed, as after a SIGKILL
    assert second.standing(MAIN, "r1").dead
    assert second.standing(MAIN).refusal
    assert [stop for stop, _, _ in second.unfinished_stops()] == ["s1"]
    first.close()
    second.close()


def test_a_corrupt_database_is_kept_and_everything_stays_closed(file: Path) -> None:
    good = Store.open(file)
    reached = stop(good, "s1", [MAIN], [MAIN])[MAIN]
    good.close()
    file.write_bytes(b"this is not a database" * 400)
    store = Store.open(file)
    assert store.standing(MAIN).refusal
    assert store.standing("agent:any:thing").refusal
    assert store.generation(MAIN) > reached, "generations only grow"
    assert [p.read_bytes()[:4] for p in file.parent.glob("*.corrupt-*")] == [b"this"]
    store.close()


def test_a_crash_while_a_corrupt_database_is_replaced_opens_nothing(file: Path) -> None:
    """Marked as lost, moved aside, and then the power went."""
    file.with_name(f"{file.name}.lost").write_text("1700000000")
    store = Store.open(file)
    assert store.standing(MAIN).refusal
    assert store.generation(MAIN) == 1700000000
    assert not list(file.parent.glob("*.lost"))
    store.close()


def test_old_runs_and_stops_are_forgotten_and_message_ids_are_not(file: Path) -> None:
    now = [1e9]
    store = Store.open(file, clock=lambda: now[0])
    store.bind("r1", MAIN, "message")
    store.end_run("r1", MAIN)
    store.admit("m1", MAIN)
    stop(store, "s1", [MAIN], [MAIN])
    store.finish_stop("s1")
    now[0] += 40 * 86400
    store.prune()
    assert store.standing(MAIN, "r1").bound is None
    assert not store.admit("m1", MAIN)
    assert store.standing(MAIN).refusal, "a latch does not age"
    store.close()


def test_a_database_from_the_future_is_refused_untouched(file: Path) -> None:
    Store.open(file).close()
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
        db.execute("UPDATE meta SET value = 99 WHERE key = 'oldest_reader'")
    db.close()
    with pytest.raises(StoreError, match="update clawstop"):
        Store.open(file)
    assert not list(file.parent.glob("*.corrupt-*"))


def test_an_upgrade_and_a_downgrade_lose_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Store.open(file)
    old.bind("r1", MAIN, "message")
    stop(old, "s1", [MAIN], [MAIN])
    old.close()
    with monkeypatch.context() as newer:
        more = "ALTER TABLE runs ADD COLUMN note TEXT;\nCREATE TABLE extra (x)"
        newer.setattr("clawstop.schema.MIGRATIONS", (*MIGRATIONS, more))
        new = Store.open(file)
        assert new.standing(MAIN, "r1").dead
        new._db.execute("UPDATE runs SET note = 'kept'")
        stop(new, "s2", [DEV], [DEV])
        new.close()
    down = Store.open(file)
    assert down.standing(DEV).refusal
    down.bind("r2", DEV, "message")
    stop(down, "s3", [DEV], [DEV])
    assert down._db.execute("SELECT note FROM runs WHERE id = 'r1'").fetchone() == ("kept",)
    assert down.generation(DEV) == 3
    down.close()


def test_a_full_disk_is_an_error_and_changes_nothing(store: Store) -> None:
    store.bind("r1", MAIN, "message")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk is full"

    def fill() -> None:
        for number in range(10_000):
            done.append(f"agent:a{number}:b")
            stop(store, f"s{number}", done[-1:], done[-1:])

    done: list[str] = []
    with pytest.raises(StoreError, match="full"):
        fill()
    store._db.execute("PRAGMA max_page_count = 1000000")
    last = done[-1]
    assert not store.standing(last).refusal
    assert stop(store, "again", [last], [last]) == {last: 2}


# -- a state machine against a plain model

SESSIONS = ["agent:a:1", "agent:a:2", "agent:b:1"]
SCOPES = ["*", "agent:a", "agent:b", *SESSIONS]


class Latches(RuleBasedStateMachine):
    """The model: a list of latches, each with the set of sessions released since."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "state.sqlite"
        self.store = Store.open(self.file)
        self.generation = dict.fromkeys(SESSIONS, 1)
        self.latches: dict[str, set[str]] = {}
        self.runs: dict[str, tuple[str, int]] = {}
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"id{self.count}"

    def held(self, session: str) -> bool:
        return any(
            scopes.covers(scope, session) and session not in released
            for scope, released in self.latches.items()
        )

    @rule(latch=st.sets(st.sampled_from(SCOPES)), bump=st.sets(st.sampled_from(SESSIONS)))
    def stop(self, latch: set[str], bump: set[str]) -> None:
        stop(self.store, self.fresh(), sorted(latch), sorted(bump))
        for session in bump:
            self.generation[session] += 1
        self.latches.update({scope: set() for scope in latch})

    @rule(session=st.sampled_from(SESSIONS))
    def message(self, session: str) -> None:
        self.store.admit(self.fresh(), session)
        for released in self.latches.values():
            released.add(session)

    @rule(scope=st.sampled_from(SCOPES))
    def release(self, scope: str) -> None:
        self.store.release(scope)
        for held in list(self.latches):
            if held == scope or scopes.covers(scope, held):
                del self.latches[held]
        if scopes.is_session(scope):
            for held, released in self.latches.items():
                if scopes.covers(held, scope):
                    released.add(scope)

    @rule(session=st.sampled_from(SESSIONS))
    def person_starts_a_run(self, session: str) -> None:
        run = self.fresh()
        self.store.bind(run, session, "message")
        late = self.held(session)
        self.runs[run] = (session, self.generation[session] - late)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def run_ends(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(sorted(self.runs)))
        self.store.end_run(run, self.runs[run][0])

    @rule()
    def crash_and_reopen(self) -> None:
        old, self.store = self.store, Store.open(self.file)
        old.close()

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        for session in SESSIONS:
            standing = self.store.standing(session)
            assert standing.generation == self.generation[session]
            assert (standing.latched_since is not None) == self.held(session)
        for run, (session, bound) in self.runs.items():
            assert self.store.standing(session, run).dead == (bound < self.generation[session])

    @invariant()
    def the_mirror_says_the_same(self) -> None:
        mirror: dict[str, Any] = self.store.mirror()
        for session in SESSIONS:
            held = self.store.standing(session).latched_since is not None
            assert scopes.latched(mirror, session) == held

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


TestLatches = Latches.TestCase
TestLatches.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_a_process_id_that_the_host_draws_again_is_the_new_process(store: Store) -> None:
    store.bind("r1", MAIN, "message")
    store.started_exec(MAIN, "r1", "amber-reef")
    store.end_run("r1", MAIN)
    store.begin_stop("s1", {}, [], [MAIN])
    assert store.dead_execs([MAIN]) == ["amber-reef"]
    assert store.bind("wake", MAIN, "heartbeat", ["exec:amber-reef"]).dead
    store.bind("r2", MAIN, "message")
    store.started_exec(MAIN, "r2", "amber-reef")
    store.started_exec(MAIN, "r1", "amber-reef")  # told again: it lowers nothing
    assert store.dead_execs([MAIN]) == []
    assert not store.bind("wake2", MAIN, "heartbeat", ["exec:amber-reef"]).dead


def test_a_job_of_a_dead_run_starts_only_dead_runs_wherever_it_runs(store: Store) -> None:
    cron = "agent:main:cron:j1:run:x"
    store.bind("r1", MAIN, "message")
    store.made_job(MAIN, "r1", "j1", "nag")
    assert not store.bind("c1", cron, "cron", ["job:j1"]).dead
    store.begin_stop("s1", {}, [], [MAIN])
    assert store.bind("c2", cron, "cron", ["job:j1"]).dead
    assert [id for id, _, _ in store.dead_jobs([MAIN])] == ["j1"]
    store.jobs_off("s1", ["j1"])
    assert store.dead_jobs([MAIN]) == []
    assert [job["id"] for job in store.jobs_of("s1")] == ["j1"]
    store.jobs_on(["j1"])
    assert not store.bind("c3", cron, "cron", ["job:j1"]).dead


def test_a_child_of_a_released_session_may_run_under_its_agents_latch(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "state.sqlite")
    parent, child = "agent:dev1:main", "agent:dev1:subagent:1"
    store.begin_stop("s1", {}, ["agent:dev1"], [parent])
    assert store.admit("m1", parent)
    store.bind("r1", parent, "message")
    store.adopt(child, parent)
    assert store.standing(child).refusal is None
    store.begin_stop("s2", {}, ["agent:dev1"], [parent])
    assert store.standing(child).refusal, "a later stop is for it too"
