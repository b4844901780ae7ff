"""The typed manager around pluggy: every hook call of the engine goes through here.

Each plugin is called on its own, so that one that raises, hangs or wraps cannot keep the others
from being asked, and is named when it fails. The invariant (a dead run may not act) is not in here:
the core's refusal is passed in and stands whatever the plugins say.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pluggy

from . import hookspecs
from .events import EngineInfo, Message, Output, Receipt, Roll, Run, Stop, ToolCall
from .reaping import Reaped
from .transcripts import Move

log = logging.getLogger("clawstop.plugins")

BUILTINS = ("clawstop_hooks.reaper", "clawstop_hooks.protocol")
DEADLINE = 1.0  # half of what a bridge waits for a verdict (2 s), so that a refusal still arrives
REAP_DEADLINE = 15.0  # a little more than our own reaper gives itself
OUR_DEADLINE = 30.0  # our reaper has its own of 10 s; past this the kernel does not let it look
NAMES = tuple(name for name in vars(hookspecs) if name.startswith("clawstop_"))


class Plugins:
    def __init__(self) -> None:
        self._manager = pluggy.PluginManager("clawstop")
        self._manager.add_hookspecs(hookspecs)
        self.problems: list[str] = []  # shown by status and doctor
        self._stuck: set[str] = set()  # plugins that have not come back from a call

    @classmethod
    def load(cls, *, third_party: bool = True) -> Plugins:
        """The built-in plugins, then everything in the entry-point group `clawstop`."""
        plugins = cls()
        for name in BUILTINS:
            plugins.register(importlib.import_module(name), name)
        if third_party:
            for point in entry_points(group="clawstop"):
                try:
                    plugins.register(point.load(), point.name)
                except Exception as error:
                    plugins._report(f"plugin {point.name} was not loaded: {error!r}")
        return plugins

    def register(self, plugin: ModuleType | object, name: str) -> None:
        self._manager.register(plugin, name)
        for hook in dir(plugin):
            if hook not in NAMES and self._manager.parse_hookimpl_opts(plugin, hook) is not None:
                self._report(f"plugin {name}: there is no hook {hook}")

    def _report(self, problem: str) -> None:
        log.error("%s", problem)
        self.problems.append(problem)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._manager.list_name_plugin()]

    def implements(self, hook: str) -> bool:
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    # -- calling

    def _callers(self, hook: str) -> list[tuple[str, Callable[..., Any]]]:
        """One caller a plugin, in pluggy's order (last registered first)."""
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        names = list(dict.fromkeys(impl.plugin_name for impl in reversed(impls)))
        everyone = [plugin for _, plugin in self._manager.list_name_plugin()]
        return [
            (
                name,
                self._manager.subset_hook_caller(
                    hook, [p for p in everyone if p is not self._manager.get_plugin(name)]
                ),
            )
            for name in names
        ]

    async def _call(self, name: str, call: Callable[[], Any], deadline: float) -> Any:
        """Call one plugin in a thread of its own, so that one that hangs holds up nobody else.

        A plugin that has not come back from an earlier call is not called again until it has.
        """
        if name in self._stuck:
            raise TimeoutError("it has not come back from an earlier call")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def deliver(result: Any, error: BaseException | None) -> None:
            self._stuck.discard(name)
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def work() -> None:
            result, failure = None, None
            try:
                result = call()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the engine has left meanwhile
                loop.call_soon_threadsafe(deliver, result, failure)

        threading.Thread(target=work, name=f"plugin {name}", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, deadline)
        except TimeoutError:
            if name not in BUILTINS:  # ours are needed by the next stop, whatever became of this
                self._stuck.add(name)
            raise TimeoutError(f"no answer within {deadline:g} s") from None

    async def _refusal(self, hook: str, **arguments: Any) -> str | None:
        """The first reason a plugin gives; a plugin that fails is a reason."""
        for name, call in self._callers(hook):
            try:
                answers = await self._call(name, partial(call, **arguments), DEADLINE)
            except Exception as error:
                log.exception("plugin %s failed in %s", name, hook)
                return f"plugin {name} failed: {type(error).__name__} {error}".rstrip()
            for answer in answers:
                if isinstance(answer, str) and answer:
                    return answer
                return f"plugin {name} answered {answer!r} where a reason or None was expected"
        return None

    async def _tell(self, hook: str, **arguments: Any) -> None:
        for name, call in self._callers(hook):
            try:
                deadline = OUR_DEADLINE if name in BUILTINS else DEADLINE
                await self._call(name, partial(call, **arguments), deadline)
            except Exception:
                log.exception("plugin %s failed in %s", name, hook)

    # -- the hooks, typed

    async def startup(self, engine: EngineInfo) -> None:
        await self._tell("clawstop_startup", engine=engine)

    async def agents(self, roll: Roll) -> None:
        await self._tell("clawstop_agents", roll=roll)

    async def message(self, message: Message) -> str | None:
        return await self._refusal("clawstop_message", message=message)

    async def gate(self, call: ToolCall) -> str | None:
        return call.standing.refusal or await self._refusal("clawstop_pre_tool", call=call)

    async def emit(self, output: Output) -> str | None:
        return output.standing.refusal or await self._refusal("clawstop_emit", output=output)

    async def run_started(self, run: Run) -> None:
        await self._tell("clawstop_run_started", run=run)

    async def run_ended(self, run: Run) -> None:
        await self._tell("clawstop_run_ended", run=run)

    async def stop_started(self, stop: Stop) -> None:
        await self._tell("clawstop_stop_started", stop=stop)

    async def reap(self, stop: Stop) -> tuple[list[Reaped], list[str]]:
        """What every reaper found and did, and what went wrong. Ours go first and have deadlines
        of their own; a third party's may take `REAP_DEADLINE`."""
        found: list[Reaped] = []
        failures: list[str] = []
        callers = self._callers("clawstop_reap")
        for name, call in sorted(callers, key=lambda caller: caller[0] not in BUILTINS):
            deadline = OUR_DEADLINE if name in BUILTINS else REAP_DEADLINE
            try:
                for results in await self._call(name, partial(call, stop=stop), deadline):
                    found.extend(results)
            except Exception as error:
                log.exception("plugin %s failed in clawstop_reap", name)
                failures.append(f"plugin {name} could not reap: {error!r}")
        return found, failures

    async def memory_moved(self, move: Move) -> None:
        await self._tell("clawstop_memory_moved", move=move)

    async def stop_finished(self, receipt: Receipt) -> None:
        await self._tell("clawstop_stop_finished", receipt=receipt)
