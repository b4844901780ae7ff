"""A SIGKILL at any step of a stop: still latched, and the next command finishes it, once."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from clawstop import cookies, receipts
from clawstop.cookies import Owner
from clawstop.paths import Paths
from clawstop.store import Store
from product import Patch, Product, crash_at

S = "agent:dev1:main"
STEPS = {
    "before the latch": "    bumped, problems = self.latch(request)",
    "after the latch": "cut_off = await",
    "after the mirrors": 'lap("latched")',
    "before the runs are ended": "ended = await self._bridges.end",
    "before the drain": "drained = await self._drain",
    "after the drain": 'lap("drained")',
    "before the kill": "async with self._slots:",
    "after the kill": 'lap("killed")',
    "before the receipt": "written = self._write(receipt)",
    "after the receipt": "if not again and request.id",
    "before the plugins are told": "await self._plugins.stop_finished(receipt)",
}


class Place:
    """A state folder with one bound run that owns one process."""

    def __init__(self, folder: Path) -> None:
        self.paths = Paths(folder / "openclaw")
        self.paths.prepare()
        (self.paths.openclaw / "agents" / "dev1").mkdir(parents=True)
        store = Store.open(self.paths.database)
        store.bind("r1", S, "message")
        store.close()
        cookie = cookies.format(Owner(self.paths.state_id, S, 1))
        self.process = subprocess.Popen(
            ["sleep", "60"], env={**os.environ, cookies.VARIABLE: cookie}
        )

    def latched(self) -> bool:
        store = Store.open(self.paths.database)
        refusal = store.standing(S).refusal
        store.close()
        return refusal is not None


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_is_made_good_by_the_next_command(tmp_path: Path, step: str) -> None:
    place = Place(tmp_path)
    product = Product(tmp_path / "clawstop", *crash_at(STEPS[step]))
    crashed = product.run(place.paths.openclaw, "stop", "dev1")
    assert crashed.returncode == -signal.SIGKILL, crashed.stderr
    if step == "before the latch":  # nothing was promised yet, and nothing was done
        assert not place.latched()
        assert product.run(place.paths.openclaw, "stop", "dev1").returncode == 0
    else:
        assert place.latched()
        status = product.json(place.paths.openclaw, "status")
        assert status["unfinished"] == []
    assert place.latched()
    assert place.process.wait(5) != 0, "the owned process is dead"
    written = list(receipts.read(place.paths.receipts))
    assert len(written) == 1, "one stop, one receipt"
    assert written[0]["converged"]
    assert written[0]["sessions"] == {S: [1, 2]}
    assert receipts.verify(place.paths.receipts) == []


def test_without_resuming_the_crash_test_would_be_red(tmp_path: Path) -> None:
    place = Place(tmp_path)
    forgetful = Patch("skill/clawstop/server.py", "        await server.engine.resume()\n", "")
    product = Product(tmp_path / "clawstop", forgetful, *crash_at(STEPS["before the kill"]))
    product.run(place.paths.openclaw, "stop", "dev1")
    product.run(place.paths.openclaw, "status")
    assert place.process.poll() is None
    place.process.kill()
    place.process.wait()
