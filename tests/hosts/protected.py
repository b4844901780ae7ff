"""Owns a gateway with clawstop in it, a run worth stopping, and what is asked afterwards."""

from __future__ import annotations

import itertools
import json
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from clawstop import receipts
from clawstop.errors import Held
from clawstop.limits import HOLDS, Limit
from clawstop.paths import Paths
from product import Patch, Product

from . import config
from .gateway import Gateway
from .install import host
from .model import Step, execute
from .scenario import alive, until
from .telegram import GROUP, PERSON, Telegram

TURN = 120.0  # seconds; the first turn of a fresh gateway takes about 10, of an old one 25
COLD, WARM = "2026.8.1", 240.0  # seconds; 25 on 2026.4.9, alone
LOG = 20_000  # characters of each log beside a failure
RETURNED = 2.0  # seconds; a call that leaves a process behind takes some milliseconds
GONE = 20.0  # seconds; a stop takes one, a busy machine more
HELD = 100.0  # seconds; such a host holds a transcript for 60
met: list[Limit] = []  # limits that a test has met on its way


STUBBORN = Path(__file__).parent / "stubborn"
FRIEND = 43  # may command in groups too
MENTIONED = GROUP - 1  # the group in which the bot answers only when it is mentioned


@contextmanager
def protected(
    root: Path,
    *patches: Patch,
    telegram: Telegram | None = None,
    beside: Path | None = None,
    **options: Any,
) -> Iterator[tuple[Gateway, Product]]:
    """A gateway with clawstop in it, with some of its mechanisms taken out; `beside` is somebody
    else's plugin."""
    product = Product(root / "clawstop", *patches)
    options.setdefault("agents", ("main", "dev1"))
    options["env"] = {"OPENCLAW_SKIP_CRON": None, **options.get("env", {})}
    people: dict[str, Any] = {
        "groupAllowFrom": [str(PERSON), str(FRIEND)],
        "groups": {"*": {"requireMention": False}, str(MENTIONED): {"requireMention": True}},
    }
    channels: dict[str, Any] = {"channels": {"telegram": people}} if telegram else {}
    overrides = config.merge(channels, options.pop("overrides", {}))
    if beside:
        folders = [str(product.plugin), str(beside)]
        allowed = ["memory-core", "clawstop", beside.name, *(["telegram"] if telegram else [])]
        entry = {beside.name: {"enabled": True, "hooks": {"allowConversationAccess": True}}}
        more = {"allow": allowed, "load": {"paths": folders}, "entries": entry}
        overrides = config.merge(overrides, {"plugins": more})
    options["overrides"] = overrides
    release = options.pop("host", None) or host()
    gateway = Gateway(
        root / "gateway", release, plugin=product.plugin, telegram=telegram, **options
    )
    product.wire(gateway.state_dir)
    with gateway:
        try:
            if gateway.host.before(COLD):  # its very first turn takes long, with or without us
                for agent in options["agents"][:2]:
                    with gateway.client(f"agent:{agent}:warm") as client:
                        client.wait_final(client.send("good morning")["runId"], WARM)
            yield gateway, product
        except BaseException:
            print(logs(gateway))
            raise


def logs(gateway: Gateway) -> str:
    """What gateway and engine logged last: for a test that failed, as they are gone after it."""
    engine = gateway.state_dir / "clawstop/engine.log"
    told = engine.read_text(errors="replace") if engine.is_file() else ""
    return f"--- gateway\n{gateway.log_text()[-LOG:]}\n--- engine\n{told[-LOG:]}"


class Work:
    """A run with one exec in the foreground, one in the background, and more to do."""

    numbers = itertools.count(48400)  # a sleep of its own for each, so that each can be told

    def __init__(self, gateway: Gateway, name: str, say: Callable[[str], Any]) -> None:
        """`say` tells the agent to go."""
        self.gateway, self.name = gateway, name
        self.front, self.back = f"sleep {next(self.numbers)}", f"sleep {next(self.numbers)}"
        gateway.model.scripts[name] = [
            Step(
                "On it.",
                tools=[
                    ("exec", {"command": self.back, "background": True}),
                    execute(self.front),
                ],
            ),
            Step(tools=[execute(f"touch {name}-effect")]),
            Step("all done"),
        ]
        before = _behind(gateway)
        self.said = say(f"[[{name}]] go")
        until(lambda: alive(gateway, self.back), TURN, "the background exec runs")
        until(lambda: alive(gateway, self.front), TURN, "the foreground exec runs")
        # Until then the host itself would end it with its run. Where no engine is, nobody knows.
        with suppress(TimeoutError):
            until(lambda: _behind(gateway) > before, RETURNED, "its call has returned")

    @property
    def alive(self) -> list[str]:
        """Which of its two processes live."""
        return [command for command in (self.front, self.back) if alive(self.gateway, command)]

    def later(self, since: float) -> list[str]:
        """What it still did after `since`."""
        asked = self.gateway.model.requests_since(since, self.name)
        files = [*self.gateway.root.glob(f"workspaces/*/{self.name}-effect")]
        return [f"model request {request.step}" for request in asked] + [str(f) for f in files]


def _behind(gateway: Gateway) -> int:
    """How many processes runs have left behind so far, as far as the engine was told."""
    return _count(gateway, "execs")


def noted(gateway: Gateway, session: str) -> int:
    """How many messages of a session are in the engine's journal."""
    return _count(gateway, "prompts WHERE session = ?", session)


def _count(gateway: Gateway, what: str, *values: str) -> int:
    database = Paths(gateway.state_dir).database
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as db:
            return int(db.execute(f"SELECT COUNT(*) FROM {what}", values).fetchone()[0])
    except sqlite3.OperationalError:  # it is being made
        return 0


def receipt_since(gateway: Gateway, session: str, since: float) -> dict[str, Any]:
    """The receipt of the first stop of this session since then, once it is there. Where the host
    holds a transcript, the one that tells how that ended."""

    def look(id: str = "", attempt: int = 0) -> dict[str, Any] | None:
        for receipt in receipts.read(gateway.state_dir / "clawstop/receipts.jsonl"):
            ours = receipt["at"] > since and session in receipt["sessions"]
            if ours and receipt["id"].startswith(id) and receipt.get("attempt", 1) > attempt:
                return receipt
        return None

    first = until(look, GONE, f"a receipt of {session}")
    if not (Held.later in str(first["left"]) and HOLDS.holds(gateway.host.version)):
        return first
    met.append(HOLDS)
    return until(lambda: look(first["id"], first["attempt"]), HELD, f"the rollback of {session}")


def is_stopped(gateway: Gateway, done: subprocess.CompletedProcess[str]) -> None:
    """A command has stopped what it should; where the host holds a transcript it says so."""
    held = Held.later in done.stdout and HOLDS.holds(gateway.host.version)
    assert done.returncode == (3 if held else 0), done.stdout + done.stderr


def patience(gateway: Gateway) -> float:
    """How long the answer to a message may take that comes in while a run is ended."""
    if not HOLDS.holds(gateway.host.version):
        return GONE
    met.append(HOLDS)
    return HELD


def invoke(gateway: Gateway, session: str) -> tuple[int, str]:
    """Ask the gateway for a tool in this session, past any model: what the gate says."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{gateway.port}/tools/invoke",
        data=json.dumps({"tool": "agents_list", "args": {}, "sessionKey": session}).encode(),
        headers={"authorization": f"Bearer {gateway.token}", "content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def last_receipt(gateway: Gateway) -> dict[str, Any] | None:
    return next(reversed(list(receipts.read(gateway.state_dir / "clawstop/receipts.jsonl"))), None)


def engine_process(gateway: Gateway) -> psutil.Process:
    """The engine that the gateway keeps; a gateway that is just up has none for a moment."""
    endpoint = gateway.state_dir / "clawstop/endpoint.json"
    until(lambda: endpoint.exists(), TURN, "an engine")
    return psutil.Process(json.loads(endpoint.read_text())["pid"])
