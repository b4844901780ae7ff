"""Random stops, overlapping, on the embedded host: nothing happens after any of them.

A few rounds on every run, many with `python3 skill test --soak`. A failure prints its seed, and
CLAWSTOP_TEST_SEED replays it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from clawstop import ownership
from clawstop.embedded import EmbeddedHost, Exec, Say, Script
from clawstop.paths import Paths
from clawstop.server import Server
from wire import engine

LONG = bool(os.environ.get("CLAWSTOP_TEST_SOAK"))
ROUNDS = 200 if LONG else 8
WATCH = 1.0  # seconds; a wake of this host comes within milliseconds
SESSIONS = [f"agent:{agent}:{name}" for agent in "abc" for name in ("main", "side")]


def script(dice: random.Random) -> Script:
    """Tools that hide in every way, and words in between."""
    kinds: list[Say | Exec] = [
        Say("word"),
        Exec("sleep 30", background=True),
        Exec("setsid sleep 30 & sleep 0.05"),
        Exec("(trap '' TERM; sleep 30) & sleep 0.02"),
        Exec("(sleep 30 &) ; true"),
        Exec("for i in 1 2 3 4; do sleep 30 & done; wait"),
        Exec("true"),
    ]
    return dice.choices(kinds, k=dice.randrange(3, 9))


@pytest.mark.timeout(3600 if LONG else 120)
def test_nothing_happens_after_any_of_many_random_stops(tmp_path: Path) -> None:
    seed = os.environ.get("CLAWSTOP_TEST_SEED") or str(random.randrange(10**9))
    print(f"CLAWSTOP_TEST_SEED={seed}")
    dice = random.Random(seed)
    paths = Paths(tmp_path / "openclaw")

    async def play() -> None:
        scripts = {f"s{number}": script(dice) for number in range(20)}
        async with engine(paths) as server:
            host = EmbeddedHost(paths, scripts)
            await host.start()
            for _ in range(ROUNDS):
                await one_round(host, server, scripts)
            await host.stop()

    async def one_round(host: EmbeddedHost, server: Server, scripts: dict[str, Script]) -> None:
        busy = dice.sample(SESSIONS, dice.randrange(1, 5))
        for session in busy:
            await host.send(session, f"{dice.choice(sorted(scripts))} go")
        await asyncio.sleep(dice.random() * 0.3)
        targets = dice.choice([busy, [s.split(":")[1] for s in busy], ["everything"]])
        core = server.engine
        stops = [core.commands.stop(None, {"target": t, "pid": 1, "grace": 0.1}) for t in targets]
        results = await asyncio.gather(*stops)
        acknowledged = time.time()
        assert all(receipt["converged"] for receipt in results), [r["left"] for r in results]
        state = paths.state_id
        alive = ownership.find(lambda o: o.state == state and o.session in busy)
        assert not alive, alive
        await asyncio.sleep(WATCH / (1 if LONG else 4))
        after = [
            event
            for event in host.events
            if event.at > acknowledged and event.kind in ("tool", "said", "run")
        ]
        assert not after, after

    asyncio.run(play())
