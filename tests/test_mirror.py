"""The bridge's mirror refuses exactly what the store refuses: the two rules are one."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

from clawstop.store import Store

MIRROR = Path(__file__).parent.parent / "hooks" / "openclaw" / "mirror.js"
SESSIONS = ["agent:a:1", "agent:a:sub:2", "agent:ab:1", "agent:b:1", "main", "agent:a"]
SCOPES = ["*", "agent:a", "agent:b", "agent:main", "agent:a:1", "agent:a:sub:2", "main"]
ASK = """
const { Mirror } = await import(process.argv[1]);
const cases = JSON.parse(await new Response(process.stdin).text());
console.log(JSON.stringify(cases.map(({ mirror, sessions }) => {
  const m = new Mirror();
  m.take(mirror, true);
  return sessions.map((s) => [m.latched(s), m.generation(s)]);
})));
"""


def test_the_mirror_and_the_store_give_the_same_verdicts(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node, "Node is needed: the bridge is JavaScript"
    dice = random.Random(7)
    cases, expected = [], []
    for number in range(60):
        store = Store.open(tmp_path / f"{number}.sqlite")
        for step in range(dice.randrange(8)):
            match dice.randrange(3):
                case 0:
                    latch = dice.sample(SCOPES, dice.randrange(3))
                    store.begin_stop(f"s{step}", {}, latch, dice.sample(SESSIONS, 2))
                case 1:
                    store.admit(f"m{step}", dice.choice(SESSIONS))
                case _:
                    store.release(dice.choice(SCOPES))
        cases.append({"mirror": store.mirror(), "sessions": SESSIONS})
        standings = [store.standing(session) for session in SESSIONS]
        expected.append([[s.latched_since is not None, s.generation] for s in standings])
        store.close()
    done = subprocess.run(
        [node, "--input-type=module", "-e", ASK, str(MIRROR)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert json.loads(done.stdout) == expected
    assert any(held for case in expected for held, _ in case)


def test_the_bridge_has_no_dependencies_and_ships_every_file() -> None:
    shipped = json.loads((MIRROR.parent / "package.json").read_text())["files"]
    files = [file for file in MIRROR.parent.iterdir() if file.name != "package.json"]
    assert len(files) > 10
    for file in files:
        assert any(file.match(pattern) for pattern in shipped), file.name
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("import "):
                assert 'from "./' in line or 'from "node:' in line, line
