"""The demo on a real gateway: the same story, on an OpenClaw of its own with a scripted model."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from clawstop.demo import Line, Story
from clawstop.words import say
from product import Product

from .gateway import Gateway
from .install import host
from .model import Step, execute
from .scenario import alive, until

SESSION = "agent:dev1:main"
BACK = "for i in $(seq 300); do date >> daemon.log; sleep 0.2; done"
FRONT = "sleep 60"
WATCH_SECONDS = 8.0  # a background process that was killed wakes the agent after 0.2-6 s


def tell() -> Story:
    """Start a gateway, let an agent run, stop it, watch. Everything is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="clawstop-demo-") as folder:
        product = Product(Path(folder) / "clawstop")
        gateway = Gateway(
            Path(folder) / "gateway", host(), plugin=product.plugin, agents=("main", "dev1")
        )
        product.wire(gateway.state_dir)
        with gateway:
            return _play(gateway, product)


def _written(gateway: Gateway) -> int:
    """Lines that the agent's daemon has written so far."""
    return len((gateway.workspace("dev1") / "daemon.log").read_bytes().splitlines())


def _said(frame: dict[str, Any]) -> bool:
    return frame.get("event") == "chat" and frame["payload"].get("state") in ("delta", "final")


def _starts_a_tool(frame: dict[str, Any]) -> bool:
    payload = frame.get("payload") or {}
    return payload.get("stream") == "tool" and payload["data"].get("phase") == "start"


def _play(gateway: Gateway, product: Product) -> Story:
    story = Story()
    tools = [("exec", {"command": BACK, "background": True}), execute(FRONT)]
    gateway.model.scripts["go"] = [Step("On it!", tools=tools), Step("all done")]
    with gateway.client(SESSION) as client:
        sent = time.time()
        client.send("[[go]] through my contacts")
        until(lambda: alive(gateway, "daemon.log") and alive(gateway, FRONT), 60, "both tools run")
        begun = time.time()
        story.receipt = json.loads(product.run(gateway.state_dir, "stop", "dev1", "--json").stdout)
        acknowledged = time.time()
        written, seen = _written(gateway), client.mark()
        time.sleep(WATCH_SECONDS)
        later = [frame for _, frame in client.events[seen:]]
        story.after = {
            "said": sum(_said(frame) for frame in later),
            "tools": sum(_starts_a_tool(frame) for frame in later),
            "files": _written(gateway) - written,
            "alive": len(alive(gateway, "daemon.log") + alive(gateway, FRONT)),
        }
    if any(story.after.values()) or not story.receipt["converged"]:
        story.failures.append(f"after the stop: {story.after}, left: {story.receipt['left']}")
    ms = story.receipt["ms"]
    asked = round((acknowledged - begun) * 1000 - max(ms.values()))  # the command itself starting
    story.lines = [
        Line(round((sent - begun) * 1000), say("demo_person"), "go through my contacts"),
        Line(-1, say("demo_agent"), say("demo_starts", text=BACK[:60])),
        Line(-1, say("demo_agent"), say("demo_starts", text=FRONT)),
        Line(0, say("demo_person"), "clawstop stop dev1"),
        Line(round(asked + ms["latched"]), say("demo_clawstop"), say("demo_latched")),
        Line(
            round(asked + ms["ended"]),
            say("demo_clawstop"),
            say("demo_ended", count=len(story.receipt["runs"])),
        ),
        *(
            Line(
                round(asked + ms["ended"] + process["ms"]),
                say("demo_clawstop"),
                say("demo_killed", command=process["command"][:50], signal=process["signal"]),
            )
            for process in story.receipt["processes"]
        ),
        Line(
            round(asked + max(ms.values()) + WATCH_SECONDS * 1000),
            say("demo_clawstop"),
            say("demo_watched", seconds=WATCH_SECONDS, **story.after),
        ),
    ]
    return story
