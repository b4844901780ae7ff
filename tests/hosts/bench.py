"""The rollback of a turn on a real gateway, beside the host's own `sessions.rewind`."""

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
from .model import Step
from .protected import protected

TURNS = 5
SAMPLES = 9
PATIENCE = 30.0  # seconds; the host sorts a history anew after each move


def rewind() -> Row:
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
    return Row("rewind", value * 1000, "ms", reference * 1000, against, bar=2.0)


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
