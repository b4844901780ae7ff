"""Plugins can only tighten, a failing one is named, and no hook is without a test or a text."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from clawstop import hookimpl, hookspecs, plugins
from clawstop.agents import Agent
from clawstop.events import EngineInfo, Message, Output, Roll, Run, Stop, ToolCall
from clawstop.plugins import NAMES, Plugins
from clawstop.reaping import Reaped
from clawstop.store import Standing

FREE = Standing("agent:main:main", 1, 1)
STOPPED = Standing("agent:main:main", 2, 1, latched_since=0.0)
CALL = ToolCall("c1", "r1", "exec", FREE)
STOP = Stop("s1", "test", "me", "main", ["agent:main"], {}, 1, "state")


def one(plugin: object, name: str = "mine") -> Plugins:
    manager = Plugins()
    manager.register(plugin, name)
    return manager


class Recorder:
    """Implements every hook and writes down each call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @hookimpl
    def clawstop_startup(self, engine: EngineInfo) -> None:
        self.calls.append(f"startup {engine.version}")

    @hookimpl
    def clawstop_agents(self, roll: Roll) -> None:
        self.calls.append(f"agents {len(roll.agents)}")

    @hookimpl
    def clawstop_message(self, message: Message) -> None:
        self.calls.append(f"message {message.id}")

    @hookimpl
    def clawstop_run_started(self, run: Run) -> None:
        self.calls.append(f"run_started {run.id}")

    @hookimpl
    def clawstop_pre_tool(self, call: ToolCall) -> None:
        self.calls.append(f"pre_tool {call.tool}")

    @hookimpl
    def clawstop_emit(self, output: Output) -> None:
        self.calls.append(f"emit {output.kind}")

    @hookimpl
    def clawstop_run_ended(self, run: Run) -> None:
        self.calls.append(f"run_ended {run.id}")

    @hookimpl
    def clawstop_stop_started(self, stop: Stop) -> None:
        self.calls.append(f"stop_started {stop.id}")

    @hookimpl
    def clawstop_reap(self, stop: Stop) -> list[Reaped]:
        self.calls.append(f"reap {stop.id}")
        return [Reaped()]

    @hookimpl
    def clawstop_memory_moved(self, move: dict[str, Any]) -> None:
        self.calls.append(f"memory_moved {move['did']}")

    @hookimpl
    def clawstop_stop_finished(self, receipt: dict[str, Any]) -> None:
        self.calls.append(f"stop_finished {receipt['id']}")


def test_every_hook_is_called_in_the_order_of_a_runs_life() -> None:
    recorder = Recorder()
    manager = one(recorder)

    async def life() -> None:
        await manager.startup(EngineInfo("1", Path(), []))
        await manager.agents(Roll([Agent("dev1")], "off", Path()))
        await manager.message(Message("m1", "agent:main:main", "me", True))
        await manager.run_started(Run("r1", "message", FREE))
        await manager.gate(CALL)
        await manager.emit(Output("r1", "final", FREE))
        await manager.stop_started(STOP)
        await manager.reap(STOP)
        await manager.run_ended(Run("r1", "", FREE))
        await manager.memory_moved({"did": "remove"})
        await manager.stop_finished({"id": "s1"})

    asyncio.run(life())
    assert recorder.calls == [
        "startup 1",
        "agents 1",
        "message m1",
        "run_started r1",
        "pre_tool exec",
        "emit final",
        "stop_started s1",
        "reap s1",
        "run_ended r1",
        "memory_moved remove",
        "stop_finished s1",
    ]
    assert {name.removeprefix("clawstop_") for name in NAMES} == {
        call.split()[0] for call in recorder.calls
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_hook_says_when_it_fires(name: str) -> None:
    assert len(getattr(hookspecs, name).__doc__) > 40


@pytest.mark.parametrize("name", NAMES)
def test_every_hook_is_in_the_docs(name: str) -> None:
    docs = Path(__file__).parent.parent / "docs" / "architecture.md"
    assert f"`{name}`" in docs.read_text(encoding="utf-8")


def test_the_builtins_are_registered_as_anybodys_plugin_would_be() -> None:
    assert Plugins.load(third_party=False).names == list(plugins.BUILTINS)


def test_a_reason_blocks_and_the_strictest_wins() -> None:
    class Strict:
        @hookimpl
        def clawstop_pre_tool(self, call: ToolCall) -> str:
            return f"no {call.tool} today"

    class Lax:
        @hookimpl
        def clawstop_pre_tool(self, call: ToolCall) -> None:
            return None

    manager = one(Lax(), "lax")
    manager.register(Strict(), "strict")
    manager.register(Lax(), "laxer")
    assert asyncio.run(manager.gate(CALL)) == "no exec today"


def test_a_plugin_cannot_allow_what_the_core_refuses() -> None:
    class Yes:
        @hookimpl(wrapper=True)
        def clawstop_pre_tool(self, call: ToolCall) -> Any:
            yield
            return []

    stopped = ToolCall("c1", "r1", "exec", STOPPED)
    assert "is stopped since" in str(asyncio.run(one(Yes()).gate(stopped)))


def test_a_wrapper_cannot_take_away_another_plugins_refusal() -> None:
    class Yes:
        @hookimpl(wrapper=True)
        def clawstop_pre_tool(self, call: ToolCall) -> Any:
            yield
            return []

    class No:
        @hookimpl
        def clawstop_pre_tool(self, call: ToolCall) -> str:
            return "no"

    manager = one(No(), "no")
    manager.register(Yes(), "yes")
    assert asyncio.run(manager.gate(CALL)) == "no"


def test_a_gate_that_raises_is_a_block_that_names_it() -> None:
    class Broken:
        @hookimpl
        def clawstop_pre_tool(self, call: ToolCall) -> None:
            raise ZeroDivisionError("oops")

    assert asyncio.run(one(Broken(), "third").gate(CALL)) == (
        "plugin third failed: ZeroDivisionError oops"
    )


def test_a_gate_that_hangs_is_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        @hookimpl
        def clawstop_pre_tool(self, call: ToolCall) -> None:
            time.sleep(0.5)

    monkeypatch.setattr(plugins, "DEADLINE", 0.05)
    assert "plugin third failed" in str(asyncio.run(one(Slow(), "third").gate(CALL)))


@pytest.mark.parametrize("answer", [True, 0, ["x"], ""])
def test_an_answer_that_is_no_reason_is_a_block(answer: object) -> None:
    class Odd:
        @hookimpl
        def clawstop_pre_tool(self, call: ToolCall) -> object:
            return answer

    assert "a reason or None was expected" in str(asyncio.run(one(Odd()).gate(CALL)))


def test_an_observer_that_raises_is_logged_by_name_and_the_rest_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        @hookimpl
        def clawstop_run_started(self, run: Run) -> None:
            raise ValueError("observer")

    recorder = Recorder()
    manager = one(recorder, "good")
    manager.register(Broken(), "bad")
    with caplog.at_level(logging.ERROR):
        asyncio.run(manager.run_started(Run("r1", "message", FREE)))
    assert recorder.calls == ["run_started r1"]
    assert "plugin bad failed in clawstop_run_started" in caplog.text


def test_a_reaper_that_raises_is_reported_and_the_others_still_reap() -> None:
    class Broken:
        @hookimpl
        def clawstop_reap(self, stop: Stop) -> list[Reaped]:
            raise OSError("no /proc")

    manager = one(Recorder(), "good")
    manager.register(Broken(), "bad")
    found, failures = asyncio.run(manager.reap(STOP))
    assert len(found) == 1
    assert failures == ["plugin bad could not reap: OSError('no /proc')"]


def test_an_unknown_hook_name_is_reported_by_name() -> None:
    class Typo:
        @hookimpl
        def clawstop_pretool(self, call: ToolCall) -> None: ...

    assert one(Typo(), "third").problems == ["plugin third: there is no hook clawstop_pretool"]
