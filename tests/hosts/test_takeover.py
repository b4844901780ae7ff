"""A new message takes over from the run at work, in each of its phases, on a page and a channel."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from clawstop.limits import DROPS, PREVIEWS, WAITS
from product import Product

from .conftest import Limited
from .gateway import Gateway
from .model import Step, execute
from .protected import GONE, TURN, patience, receipt_since
from .scenario import alive, until
from .telegram import PERSON, Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]
numbers = itertools.count(58200)  # a sleep of its own for each, so that each can be told
SETTLED = 0.3  # seconds in which what was on its way still arrives
QUIET = 2.5  # seconds without a word: it is done with what it has said
LATE = 4  # edits of a preview that were on their way; 0 to 2 were seen
DM = "agent:main:main"


class Old:
    """A run in some phase, and what is seen of it."""

    def __init__(self, gateway: Gateway, name: str, steps: Sequence[Step]) -> None:
        self.gateway, self.name = gateway, name
        gateway.model.scripts[name] = steps

    def asked(self, since: float = 0.0) -> list[Any]:
        return self.gateway.model.requests_since(since, self.name)

    def effects(self) -> list[Any]:
        return list(self.gateway.root.glob(f"workspaces/*/{self.name}-effect"))


@dataclass(frozen=True)
class Phase:
    steps: Callable[[str, str], Sequence[Step]]  # name, command -> script
    there: Callable[[Old, str], object]  # whether the run is in it


def effect(name: str) -> Step:
    return Step(tools=[execute(f"touch {name}-effect")])


PHASES = {
    "preflight": Phase(
        lambda name, _: [Step("wait", delay=1), effect(name), Step("stale")], lambda old, _: True
    ),
    "model hanging": Phase(
        lambda name, _: [Step(hang=True), effect(name)], lambda old, _: old.asked()
    ),
    "streaming": Phase(
        lambda name, _: [Step("stale " * 200, chunk_delay=0.05)], lambda old, _: old.asked()
    ),
    "in a tool": Phase(
        lambda name, command: [Step("on it", tools=[execute(command)]), effect(name)],
        lambda old, command: alive(old.gateway, command),
    ),
    "in a batch": Phase(
        lambda name, command: [
            # The host starts them all at once.
            Step(tools=[execute("true"), execute(f"{command}; touch {name}-effect")] * 2),
            Step("stale"),
        ],
        lambda old, command: alive(old.gateway, command),
    ),
    "between turns": Phase(
        lambda name, _: [Step(tools=[execute("true")]), Step("stale", delay=20)],
        lambda old, _: len(old.asked()) == 2,
    ),
    "with a background process": Phase(
        lambda name, command: [
            Step(tools=[("exec", {"command": command, "background": True})]),
            Step(hang=True),
        ],
        lambda old, command: alive(old.gateway, command) and len(old.asked()) == 2,
    ),
}


@pytest.mark.parametrize("phase", PHASES)
def test_on_a_page(running: Running, phase: str) -> None:
    gateway, _ = running
    name = f"page-{phase.replace(' ', '-')}"
    session, command = f"agent:dev1:{name}", f"sleep {next(numbers)}"
    old = Old(gateway, name, PHASES[phase].steps(name, command))
    gateway.model.scripts[f"{name}-next"] = [Step(f"answer to {name}")]
    with gateway.client(session) as client:
        client.send(f"[[{name}]] go")
        until(lambda: PHASES[phase].there(old, command), TURN, f"it is {phase}")
        said = time.time()
        run = client.send(f"[[{name}-next]] no, this")["runId"]
        _, frame = client.wait_final(run, 2 * patience(gateway))
        assert f"answer to {name}" in str(frame["payload"].get("message"))
        is_taken(old, session, command, said)
        shown = [f["payload"] for t, f in client.events if t > said and f.get("event") == "chat"]
        finals = [str(p.get("message")) for p in shown if p.get("state") in ("final", "error")]
        assert [text for text in finals if f"answer to {name}" not in text] == [], "nothing else"


@pytest.mark.parametrize("phase", PHASES)
def test_on_a_channel(running: Running, telegram: Telegram, limit: Limited, phase: str) -> None:
    gateway, _ = running
    name = f"dm-{phase.replace(' ', '-')}"
    command = f"sleep {next(numbers)}"
    old = Old(gateway, name, PHASES[phase].steps(name, command))
    gateway.model.scripts[f"{name}-next"] = [Step(f"answer to {name}")]
    if phase == "preflight":  # what a cold or busy gateway fetches at once is one message to it
        gateway.model.scripts["warm"] = [Step("good morning to you")]
        telegram.say("[[warm]] good morning")
        until(lambda: "good morning to you" in telegram.shown(), TURN, "it is awake")
        until(lambda: not telegram.outbound(time.time() - QUIET, PERSON), TURN, "it is done")
    telegram.say(f"[[{name}]] go")
    if phase == "preflight":
        time.sleep(0.5)  # closer together the channel makes one message of two
    until(lambda: PHASES[phase].there(old, command), TURN, f"it is {phase}")
    said = time.time()
    telegram.say(f"[[{name}-next]] no, this")
    if limit(WAITS):  # then their stop lets the message through
        telegram.say("/stop")
        if limit(DROPS):
            receipt_since(gateway, DM, said)
            telegram.say(f"[[{name}-next]] no, this")
    last = None if limit(WAITS) or limit(PREVIEWS) else -1  # else there is nothing behind it
    until(lambda: f"answer to {name}" in telegram.shown()[last:], patience(gateway), "the answer")
    is_taken(old, DM, command, said, "/stop" if limit(WAITS) else "new message")
    texts = [call.text for call in telegram.outbound(said + SETTLED, PERSON) if call.text]
    ours = [text for text in texts if not text.startswith(("Stopped", "⚙️ Agent was aborted"))]
    shown = ours if limit(WAITS) else texts
    if limit(PREVIEWS):  # an edit or two were on their way; a preview stays for 4 s or more
        late = {text for text in shown if text != f"answer to {name}"}
        assert len(late) <= LATE
        until(lambda: not late & set(telegram.shown()), GONE, "the preview is gone")
        shown = [text for text in shown if text not in late]
    assert shown == [f"answer to {name}"], "nothing of the old run, no notice of the host's"


def is_taken(
    old: Old, session: str, command: str, said: float, trigger: str = "new message"
) -> None:
    """The old run is over, with all that it had; the new message was answered once."""
    gateway = old.gateway
    receipt = receipt_since(gateway, session, said)
    assert receipt["trigger"] == trigger
    assert receipt["converged"], receipt["left"]
    assert len(receipt["runs"]) == 1
    assert not alive(gateway, command)
    assert not old.effects()
    assert not [one for one in old.asked(said + SETTLED) if one.step], "the old run goes on"
    assert len(gateway.model.requests_since(said, f"{old.name}-next")) == 1
