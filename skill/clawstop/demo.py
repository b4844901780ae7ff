"""The demo: a runaway agent on the embedded host, stopped, and the receipt as a timeline.

Everything in it is real: the engine is a process of its own, the agent's tools are processes, the
stop is the one that `clawstop stop` makes. It checks its own claims and fails when one is not true.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import client, ownership, processes
from .embedded import EmbeddedHost, Event, Exec, Say, Script
from .errors import EngineUnreachable
from .paths import Paths
from .starter import engine_command, environment
from .words import say

SESSION = "agent:dev1:main"
START_SECONDS = 15.0  # the engine is up in half a second; a busy machine takes longer
RUN_SECONDS = 2.0  # how long the agent may run wild
WATCH_SECONDS = 3.0  # how long we look for anything that still happens
LIFE_SECONDS = 60  # everything the agent starts ends by itself after this, whatever happens


@dataclass
class Line:
    ms: int  # since the stop was asked for
    who: str
    text: str


@dataclass
class Story:
    """What happened, what was proven, and what was not."""

    lines: list[Line] = field(default_factory=list)
    receipt: dict[str, Any] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": not self.failures,
            "failures": self.failures,
            "after_the_stop": self.after,
            "timeline": [asdict(line) for line in self.lines],
            "receipt": self.receipt,
        }


def runaway() -> Script:
    """Daemons that hide, and messages that nobody asked for."""
    loop = f"for i in $(seq {LIFE_SECONDS * 5}); do date >> daemon.log; sleep 0.2; done"
    mails = [
        step
        for number in range(1, 200)
        for step in (Exec(f"sleep 0.2; echo {number} >> outbox"), Say(f"mail {number} sent"))
    ]
    return [
        Say("On it! I will mail everybody."),
        Exec(f"setsid sh -c '{loop}'", background=True),
        Exec(f"(trap '' TERM; sleep {LIFE_SECONDS}) & (sleep {LIFE_SECONDS} &)"),
        *mails,
    ]


@asynccontextmanager
async def engine(paths: Paths) -> AsyncIterator[None]:
    """The engine as a process of its own, gone when this ends."""
    paths.prepare()
    with paths.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *engine_command(),
            env=environment(paths),
            stdout=log,
            stderr=log,
        )
    try:
        async with asyncio.timeout(START_SECONDS):
            while not paths.endpoint.exists():
                if process.returncode is not None:
                    raise EngineUnreachable(paths.log.read_text(errors="replace")[-800:])
                await asyncio.sleep(0.02)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def tell(progress: Callable[[str], None]) -> Story:
    """Run the demo in a folder of its own that is gone afterwards."""
    progress("demo_step_engine")
    root = Path(tempfile.mkdtemp(prefix="clawstop-demo-"))
    story = Story()
    try:
        paths = Paths(root / "openclaw")
        host = EmbeddedHost(paths, {"go": runaway(), "hello": [Say("Ready when you are.")]})
        async with engine(paths):
            await host.start()
            try:
                await _play(story, host, progress)
            finally:
                await host.stop()
        left = ownership.find(lambda owner: owner.state == paths.state_id)
        if left:
            story.failures.append(f"processes are left: {[o.command for o in left]}")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return story


async def _play(story: Story, host: EmbeddedHost, progress: Callable[[str], None]) -> None:
    paths, workspace = host.paths, host.workspace(SESSION)
    progress("demo_step_wild")
    await host.send(SESSION, "go through my contacts")
    await asyncio.sleep(RUN_SECONDS)
    owned = ownership.find(lambda owner: owner.session == SESSION and owner.state == paths.state_id)
    if len(owned) < 3:
        story.failures.append(f"the agent should have started daemons, found {len(owned)}")
    begun = host.clock()
    story.receipt = await client.call(
        paths, "stop", {"target": "dev1", "id": secrets.token_hex(8), "who": "demo"}
    )
    acknowledged = host.clock()
    progress("demo_step_stop")
    written = _written(workspace)
    await asyncio.sleep(WATCH_SECONDS)
    later = [event for event in host.events if event.at > acknowledged]
    story.after = {
        "said": sum(event.kind == "said" for event in later),
        "tools": sum(event.kind == "tool" for event in later),
        "files": _written(workspace) - written,
        "alive": sum(not processes.gone(one.ident) for one in owned),
    }
    if any(story.after.values()):
        story.failures.append(f"something happened after the stop: {story.after}")
    if host.transcript(SESSION):
        story.failures.append("the task is still in the agent's memory")
    if not story.receipt["converged"]:
        story.failures.append(f"the stop did not converge: {story.receipt['left']}")
    await host.send(SESSION, "hello again")
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while not any(event.text == "Ready when you are." for event in host.events):
                await asyncio.sleep(0.02)
    answered = [event for event in host.events if event.text == "Ready when you are."]
    if not answered:
        story.failures.append("the next message was not answered")
    _narrate(story, host.events, begun)


def _written(workspace: Path) -> int:
    """Lines that the agent's processes have written so far."""
    files = [workspace / "daemon.log", workspace / "outbox"]
    return sum(len(file.read_bytes().splitlines()) for file in files if file.exists())


def _narrate(story: Story, events: list[Event], begun: float) -> None:
    def line(at: float, who: str, key: str, **values: object) -> None:
        story.lines.append(Line(round((at - begun) * 1000), say(who), say(key, **values)))

    def quote(event: Event, who: str) -> None:
        story.lines.append(Line(round((event.at - begun) * 1000), say(who), event.text))

    before = [event for event in events if event.at <= begun]
    quote(before[0], "demo_person")
    said = [event for event in before if event.kind == "said"]
    for event in [event for event in before if event.kind == "tool"][:2]:
        line(event.at, "demo_agent", "demo_starts", text=event.text[:60])
    for event in said[:3]:
        quote(event, "demo_agent")
    if said:
        line(said[-1].at, "demo_agent", "demo_mails", count=len(said))
    story.lines.append(Line(0, say("demo_person"), "clawstop stop dev1"))
    ms = story.receipt["ms"]
    line(begun + ms["latched"] / 1000, "demo_clawstop", "demo_latched")
    count = len(story.receipt["runs"])
    line(begun + ms["ended"] / 1000, "demo_clawstop", "demo_ended", count=count)
    for process in story.receipt["processes"]:
        at = begun + (ms["ended"] + process["ms"]) / 1000
        told = {"command": process["command"][:50], "signal": process["signal"]}
        if process["result"] == "dead":
            line(at, "demo_clawstop", "demo_killed", **told)
    count = sum(move.get("entries", 0) for move in story.receipt["memory"])
    line(begun + ms["rolled_back"] / 1000, "demo_clawstop", "demo_forgotten", count=count)
    for event in events:
        if event.kind == "woken" and event.at > begun:
            line(event.at, "demo_clawstop", "demo_woken")
    watched = {"seconds": WATCH_SECONDS, **story.after}
    at = begun + max(ms.values()) / 1000 + WATCH_SECONDS
    line(at, "demo_clawstop", "demo_watched", **watched)
    for event in events:
        if event.at > begun and event.kind == "message":
            quote(event, "demo_person")
        if event.text == "Ready when you are.":
            line(event.at, "demo_agent", "demo_back", text=event.text)
    story.lines.sort(key=lambda entry: entry.ms)
