"""Everything that a run starts on a real gateway dies with its stop, and the receipt says why it
was known to be the run's; what is leased lives on."""

from __future__ import annotations

import itertools
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clawstop import wrapping
from product import Product

from .gateway import Gateway
from .model import Step, execute
from .protected import GONE, TURN, last_receipt, receipt_since
from .scenario import alive, until

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]

NUMBERS = itertools.count(57_300)  # a sleep of its own for each, so that each can be told

# Two hundred, as fast as they can be forked; then each sleeps.
BOMB = """python3 -I -S -c "import os
r, w = os.pipe(); os.set_blocking(r, False); os.write(w, b'x' * 200)
while True:
    try: os.read(r, 1)
    except BlockingIOError: os.execvp('sleep', ['sleep', '{n}'])
    os.fork()"
"""

# What hides, and how: {n} is how long it sleeps.
ZOO = {
    "in the background": ("sleep {n}", {"background": True}),
    "deaf": ("trap '' TERM HUP INT; while :; do sleep {n}; done", {"background": True}),
    "in a session of its own": ("setsid sleep {n} & sleep 0.2", {}),
    "a daemon": ("(setsid sh -c 'sleep {n} & :' &); sleep 0.3", {}),
    "a daemon without a cookie": (
        "(env -i setsid sh -c '(sleep {n} &) ; :' >/dev/null 2>&1 &); sleep 0.3",
        {},
    ),
    "a login shell": ("(su -l -c 'setsid sleep {n} &' >/dev/null 2>&1 &); sleep 0.5", {}),
    "behind nohup": ("nohup sleep {n} >/dev/null 2>&1 & sleep 0.2", {}),
    "on a terminal": ("sleep {n}", {"pty": True, "background": True}),
    "deep down": (
        "n=0; f() {{ if [ $1 -gt 60 ]; then exec sleep {n}; fi; (f $(($1+1))); :; }}; f 0",
        {"background": True},
    ),
    "forking as fast as it can": (BOMB, {"background": True}),
    "an agent below the agent": (
        "python3 -c \"import subprocess, time; subprocess.Popen(['sleep', '{n}'], env={{}}, "
        'start_new_session=True); time.sleep(600)"',
        {"background": True},
    ),
}


def test_nobody_of_the_zoo_outlives_the_stop(running: Running) -> None:
    gateway, _ = running
    session = "agent:dev1:zoo"
    needles = {kind: f"sleep {next(NUMBERS)}" for kind in ZOO}
    steps = []
    for kind, (command, options) in ZOO.items():
        text = command.format(n=needles[kind].split()[1])
        steps.append(Step(tools=[("exec", {"command": text, **options})]))
    gateway.model.scripts["zoo"] = [*steps, Step(hang=True)]
    with gateway.client(session) as client:
        client.send("[[zoo]] go")
        for needle in needles.values():
            until(partial(alive, gateway, needle, anywhere=True), TURN, f"{needle} is there")
        before = time.time()
        client.send("/stop")
        receipt = receipt_since(gateway, session, before)
    left = [kind for kind, needle in needles.items() if alive(gateway, needle, anywhere=True)]
    assert left == []
    assert receipt["converged"], receipt["left"]
    proofs = {
        kind: process["proof"]
        for process in receipt["processes"]
        for kind, needle in needles.items()
        if process["command"] == needle
    }
    assert proofs.keys() == ZOO.keys(), "each is in the receipt"
    assert proofs["in the background"] == "cookie"
    assert proofs["a daemon without a cookie"] == "cgroup"
    # By its cage, or by its parent where it was born after the cages were looked at.
    assert proofs["an agent below the agent"].startswith(("cgroup", "child of", "seen"))


def test_the_environment_of_a_tool_is_the_person_s(running: Running) -> None:
    """Nothing of ours but the cookie; the model's own variables are kept."""
    gateway, _ = running
    session = "agent:dev1:environment"
    script = 'env > env.txt; echo "$0" > shell.txt; readlink /proc/$$/exe >> shell.txt'
    call = ("exec", {"command": script, "env": {"MODEL": "its own"}})
    gateway.model.scripts["environ"] = [Step(tools=[call]), Step("done")]
    folder = gateway.workspace("dev1")
    with gateway.client(session) as client:
        client.send("[[environ]] go")
        until(lambda: len(_lines(folder / "shell.txt")) == 2, TURN, "it ran")
    environ = (folder / "env.txt").read_text()
    assert "MODEL=its own\n" in environ
    assert [line.split("=")[0] for line in environ.splitlines() if "CLAWSTOP" in line] == [
        "CLAWSTOP_COOKIE"
    ]
    assert "clawstop/shell" not in environ
    assert Path(_lines(folder / "shell.txt")[1]).name == "bash"


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_a_leased_server_outlives_the_stop_and_is_in_the_receipt(running: Running) -> None:
    gateway, product = running
    session = "agent:dev1:leased"
    kept, run = f"sleep {next(NUMBERS)}", f"sleep {next(NUMBERS)}"
    wrapper = f"python3 -I -S {Path(wrapping.__file__).with_name('launch.py')}"
    state = f"OPENCLAW_STATE_DIR={gateway.state_dir}"
    gateway.model.scripts["leased"] = [
        Step(
            tools=[
                (
                    "exec",
                    {
                        "command": f"{state} {wrapper} --lease keep:1h -- {kept}",
                        "background": True,
                    },
                ),
                ("exec", {"command": f"{state} {wrapper} -- {run}", "background": True}),
            ]
        ),
        Step(hang=True),
    ]
    with gateway.client(session) as client:
        client.send("[[leased]] go")
        until(lambda: alive(gateway, kept) and alive(gateway, run), TURN, "both run")
        seen = product.json(gateway.state_dir, "stop", session, "--dry-run")
        assert any(kept in row["command"] for row in seen["leased"])
        before = time.time()
        client.send("/stop")
        receipt = receipt_since(gateway, session, before)
        assert receipt["converged"], receipt["left"]
        assert not alive(gateway, run)
        assert [row for row in receipt["leased"] if row["command"] == kept]
        assert [p for p in alive(gateway, kept) if p.command == kept]
        time.sleep(2)
        assert [p for p in alive(gateway, kept) if p.command == kept], "nothing else ends it"
        # Ending it takes the strongest word there is.
        again = product.json(gateway.state_dir, "stop", "everything", "--now")
        until(lambda: not alive(gateway, kept), GONE, "it is dead")
        assert again["leased"] == []
        product.json(gateway.state_dir, "release", "everything")


@pytest.mark.parametrize("how", ["shell", "chat"])
def test_who_works_in_the_workspace_is_a_suspect_and_no_more(running: Running, how: str) -> None:
    gateway, product = running
    session = f"agent:dev1:suspects-{how}"
    number = next(NUMBERS)
    with subprocess.Popen(["sleep", str(number)], cwd=gateway.workspace("dev1")) as editor:
        try:
            seen = product.json(gateway.state_dir, "stop", session, "--dry-run")
            assert editor.pid in [row["pid"] for row in seen["suspects"]]
            receipt = product.json(gateway.state_dir, "stop", session)
            assert receipt["converged"], receipt["left"]
            assert editor.pid in [row["pid"] for row in receipt["suspects"]]
            assert editor.poll() is None
            if how == "shell":
                product.json(gateway.state_dir, "stop", session, "--suspects")
            else:
                with gateway.client(session) as client:
                    client.send("/suspects")
            assert editor.wait(GONE) == -15
        finally:
            editor.kill()
    told = until(lambda: last_with(gateway, editor.pid), GONE, "a receipt")
    assert told["converged"], told["left"]
    product.json(gateway.state_dir, "release", session)


def last_with(gateway: Gateway, pid: int) -> dict[str, Any] | None:
    """The newest receipt, if it says that this process was ended because somebody asked for it."""
    receipt = last_receipt(gateway)
    rows = receipt["processes"] if receipt else []
    asked = [row for row in rows if row["pid"] == pid and row["proof"] == "asked"]
    return receipt if asked else None


def test_frozen_tools_wait_and_processes_stand_still_until_the_release(running: Running) -> None:
    """Longer than the 15 s after which the host would give up on the gate."""
    gateway, product = running
    session = "agent:dev1:frozen"
    beat = gateway.workspace("dev1") / "beat"
    loop = "while :; do date +%N > beat; sleep 0.05; done"
    gateway.model.scripts["frozen"] = [
        Step(tools=[("exec", {"command": loop, "background": True})]),
        Step(tools=[execute("touch thawed")], delay=4.0),
        Step("all done"),
    ]
    with gateway.client(session) as client:
        sent = client.send("[[frozen]] go")
        until(lambda: len(gateway.model.requests_since(0, "frozen")) == 2, TURN, "it is under way")
        answer = product.json(gateway.state_dir, "freeze", session)
        assert answer["frozen"]
        time.sleep(0.3)
        last = beat.read_bytes()
        time.sleep(20)
        assert beat.read_bytes() == last
        assert not (gateway.workspace("dev1") / "thawed").exists()
        assert product.json(gateway.state_dir, "status")["frozen"] == [session]
        product.json(gateway.state_dir, "release", session)
        until((gateway.workspace("dev1") / "thawed").exists, GONE, "the tool goes on")
        until(lambda: beat.read_bytes() != last, GONE, "so do its processes")
        _, final = client.wait_final(sent["runId"], timeout=TURN)
        assert final["payload"]["state"] == "final"
        product.json(gateway.state_dir, "stop", session)
        product.json(gateway.state_dir, "release", session)
