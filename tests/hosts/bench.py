"""What only a real gateway can show: the rollback of a turn beside the host's own rewind, and a
takeover beside the host's own interrupt mode."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from clawstop.bench import Row
from product import Product

from .client import Client, RpcError
from .gateway import Gateway
from .install import host
from .model import Step
from .protected import protected
from .scenario import until

TURNS = 5
SAMPLES = 9
TAKEOVERS = 30
SETTLED = 0.2  # seconds: a run that has just begun to wait for the model
PATIENCE = 30.0  # seconds; the host sorts a history anew after each move


def rewind() -> list[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="clawstop-bench-") as folder,
        protected(Path(folder)) as (gateway, product),
        gateway.client() as client,
    ):
        ours, theirs = "agent:dev1:ours", "agent:dev1:theirs"
        gateway.model.scripts["turn"] = [Step("an answer " * 100)]
        for session in (ours, theirs):
            for _ in range(TURNS):
                client.wait_final(client.send("[[turn]] a question", session)["runId"])
        rolled, bare = [], []
        for _ in range(SAMPLES):
            rolled.append(_ours(gateway, product, ours))
            bare.append(_theirs(client, theirs))
    value, reference = statistics.median(rolled), statistics.median(bare)
    against = "the host's own sessions.rewind, asked over its socket"
    return [Row("rewind", value * 1000, "ms", reference * 1000, against, bar=2.0)]


def takeover() -> list[Row]:
    """From the end of the old run's request to the model to the new message's, in turn on two
    gateways: ours, and one without clawstop whose messages interrupt."""
    alone: dict[str, Any] = {"messages": {"queue": {"mode": "interrupt"}}}
    with (
        tempfile.TemporaryDirectory(prefix="clawstop-bench-") as folder,
        protected(Path(folder) / "ours") as (ours, _),
        Gateway(Path(folder) / "theirs", host(), agents=ours.agents, overrides=alone) as theirs,
        ours.client("agent:dev1:bench") as here,
        theirs.client("agent:dev1:bench") as there,
    ):
        taken, bare = [], []
        for number in range(TAKEOVERS + 1):
            times = _take(ours, here, number), _take(theirs, there, number)
            if number:  # the first turn of a gateway loads much
                taken.append(times[0])
                bare.append(times[1])
    against = "the host's own interrupt mode, without clawstop"
    return [
        Row(f"takeover {name}", share(taken) * 1000, "ms", share(bare) * 1000, against, bar=3.0)
        for name, share in (("p50", statistics.median), ("p99", max))
    ]


def _take(gateway: Gateway, client: Client, number: int) -> float:
    old, new = f"old{number}", f"new{number}"
    gateway.model.scripts |= {old: [Step(hang=True)], new: [Step("done")]}
    client.send(f"[[{old}]] go")
    (request,) = until(lambda: gateway.model.requests_since(0.0, old), PATIENCE, "the old run")
    time.sleep(SETTLED)
    client.wait_final(client.send(f"[[{new}]] rather this")["runId"])
    ended = until(lambda: request.ended, PATIENCE, "the end of the old run")
    (begun,) = gateway.model.requests_since(0.0, new)
    return begun.time - ended


def _ours(gateway: Gateway, product: Product, session: str) -> float:
    """The step of the stop, with its backup; then it is undone."""
    receipt = product.json(gateway.state_dir, "stop", session, "--turns", "1")
    assert receipt["memory"], receipt["left"]
    product.json(gateway.state_dir, "restore", receipt["id"])
    ms = receipt["ms"]
    return float(ms["rolled_back"] - ms["killed"]) / 1000


def _theirs(client: Client, session: str) -> float:
    rows = _patiently(client, "chat.history", session)["messages"]
    last = [row for row in rows if row["role"] == "user"][-1]["__openclaw"]["id"]
    begun = time.perf_counter()
    client.call("sessions.rewind", {"sessionKey": session, "entryId": last})
    took = time.perf_counter() - begun
    branches = _patiently(client, "sessions.branches.list", session)["branches"]
    (other,) = [row["leafEntryId"] for row in branches if not row["active"]]
    _patiently(client, "sessions.branches.switch", session, leafEntryId=other)
    return took


def _patiently(client: Client, method: str, session: str, **params: Any) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return client.call(method, {"sessionKey": session, **params})
        except RpcError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
