"""A task that cooperates, as a tool on a real gateway: stopped in its chat it saves its place,
tidies up, ends by itself, and goes on from there when asked."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from clawstop import checkpoints
from product import ROOT

from .model import Step, execute
from .protected import TURN, protected, receipt_since
from .scenario import alive, until

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

SESSION = "agent:dev1:cooperates"
TASK = """
from clawstop import Interrupted, Interruptible
with Interruptible(interval=60_000) as task:
    place = task.resume()
    begin = place["data"] + 1 if place else 0
    print("begun at", begin, flush=True)
    open("begun", "w").write(str(begin))
    task.clean_up(lambda: open("tidied", "w").close())
    for number in task(range(begin, begin + 10**6)):
        task.save_checkpoint("number", number)
        task.sleep(0.02)
"""


@pytest.mark.parametrize("background", [False, True], ids=["in front", "behind"])
def test_a_task_saves_its_place_and_goes_on_from_there(tmp_path: Path, background: bool) -> None:
    with protected(tmp_path) as (gateway, _):
        space = gateway.workspace("dev1")
        space.mkdir(parents=True, exist_ok=True)
        (space / "counting.py").write_text(TASK)
        run = f"PYTHONPATH={ROOT / 'skill'} exec {sys.executable} -S counting.py"
        call = ("exec", {"command": run, "background": True}) if background else execute(run)
        front = [execute("sleep 4711")] if background else []
        gateway.model.scripts["count"] = [Step("Counting.", tools=[call, *front]), Step("done")]
        with gateway.client(SESSION) as client:
            client.send("[[count]] please")
            until(lambda: (space / "begun").exists(), TURN, "the task has begun")
            until(lambda: _place(gateway.state_dir) > 5, TURN, "it has come somewhere")
            said = time.time()
            client.send("/stop")
            receipt = receipt_since(gateway, SESSION, said)
            assert receipt["converged"], receipt["left"]
            assert (space / "tidied").exists(), receipt
            (told,) = receipt["cooperated"]
            assert (told["session"], told["checkpoint"]) == (SESSION, "number")
            mine = [row for row in receipt["processes"] if "counting.py" in row["command"]]
            assert {row["signal"] for row in mine} <= {"none", "host", "TERM"}, mine
            assert alive(gateway, "counting.py") == []
            reached = _place(gateway.state_dir)
            (space / "begun").unlink()
            client.send("[[count]] go on where you were")
            until(lambda: (space / "begun").exists(), TURN, "it has begun again")
            until(lambda: (space / "begun").read_text(), TURN, "and says where")
            assert int((space / "begun").read_text()) == reached + 1
            client.send("/stop")
            until(lambda: not alive(gateway, "counting.py"), TURN, "it is over")


def _place(state_dir: Path) -> int:
    file = checkpoints.file_of(state_dir / "clawstop/checkpoints", SESSION)
    found = checkpoints.load(file)
    return int(found.last["data"]) if found and found.last else -1
