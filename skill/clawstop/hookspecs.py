"""The map of the product: every hook, in the order of a run's life.

A plugin is a module (or object) with functions marked `@clawstop.hookimpl`, named in the
entry-point group `clawstop`. Three rules hold for all hooks:

- A plugin can only tighten. Where a hook may refuse, it returns a reason (a string) or None; the
  core's own refusal (a stopped session, a dead run) stands whatever plugins say.
- A hook that raises, takes longer than `plugins.DEADLINE`, or returns something else, is a refusal
  where it could have refused. Everywhere else it is logged with the plugin's name, and the rest
  go on.
- Every call runs in a thread of its own, one plugin after the other, last registered first. A
  plugin that has not come back from a call is not called again, and counts as failed, until it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .events import EngineInfo, Message, Output, Receipt, Roll, Run, Stop, ToolCall
    from .reaping import Reaped
    from .transcripts import Move

hookspec = pluggy.HookspecMarker("clawstop")


# -- the engine


@hookspec
def clawstop_startup(engine: EngineInfo) -> None:
    """The engine is up: state is open, unfinished stops are known, no bridge is connected yet."""


@hookspec
def clawstop_agents(roll: Roll) -> None:
    """These are the agents: told when a gateway connects, and again whenever the config or an
    agent's AGENTS.md has changed."""


# -- a run


@hookspec
def clawstop_message(message: Message) -> str | None:
    """A person's message came in, before it releases anything.

    A reason keeps its session stopped; the message itself still reaches the host.
    """


@hookspec
def clawstop_run_started(run: Run) -> None:
    """A run was bound to its generation; `run.standing.refusal` is set when it came too late."""


@hookspec
def clawstop_pre_tool(call: ToolCall) -> str | None:
    """A tool is due. A reason blocks it, and the model is shown the reason."""


@hookspec
def clawstop_emit(output: Output) -> str | None:
    """Something is about to be shown to a person. A reason keeps it back.

    Asked only while a plugin implements it: the bridge's mirror decides on dead runs by itself.
    """


@hookspec
def clawstop_run_ended(run: Run) -> None:
    """A run ended in the host, whatever the reason."""


# -- a stop


@hookspec
def clawstop_stop_started(stop: Stop) -> None:
    """Step 1 is done: latched and bumped. Runs and processes still exist."""


@hookspec
def clawstop_reap(stop: Stop) -> Sequence[Reaped]:
    """Kill what the stopped sessions own, verify it, and say what was found.

    Called after the host ended the runs. A plugin that raises leaves the stop not converged.
    """
    raise NotImplementedError  # a specification: pluggy never calls it


@hookspec
def clawstop_memory_moved(move: Move) -> None:
    """A conversation was rolled back (`move["did"]` is "remove") or restored ("restore").

    For whoever keeps something about it elsewhere. The backup's path is in `move["backup"]`.
    """


@hookspec
def clawstop_stop_finished(receipt: Receipt) -> None:
    """The stop is over: this receipt is on disk, and says whether anything is left."""
