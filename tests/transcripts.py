"""Transcripts to roll back: lines as the host writes them, and files of them."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import psutil
import zoo
from clawstop import cookies
from clawstop.cookies import Owner
from clawstop.paths import Paths
from clawstop.store import Store

SESSION = "agent:dev1:main"
BEGIN = 1_800_000_000.0  # when the first entry was written; each next one a second later


class Tree:
    """Builds a transcript line by line; each entry goes on from the last, unless told otherwise."""

    def __init__(self, *, header: bool = True) -> None:
        self.lines: list[bytes] = []
        self.leaf: str | None = None
        self._numbers = itertools.count(1)
        if header:
            self.raw({"type": "session", "version": 3, "id": "s1", "timestamp": when(BEGIN)})

    @property
    def data(self) -> bytes:
        return b"".join(self.lines)

    def raw(self, line: bytes | dict[str, Any], end: bytes = b"\n") -> None:
        text = json.dumps(line).encode() if isinstance(line, dict) else line
        self.lines.append(text + end)

    def entry(self, kind: str, parent: str | None = None, end: bytes = b"\n", **more: Any) -> str:
        number = next(self._numbers)
        id = f"e{number}"
        about = {"type": kind, "id": id, "parentId": parent or self.leaf}
        self.raw({**about, "timestamp": when(BEGIN + number), **more}, end)
        self.leaf = id
        return id

    def user(self, text: str = "do it", **more: Any) -> str:
        content = [{"type": "text", "text": text}]
        return self.entry("message", message={"role": "user", "content": content}, **more)

    def says(self, text: str = "done", stop: str = "stop", **more: Any) -> str:
        content = [{"type": "text", "text": text}]
        message = {"role": "assistant", "content": content, "stopReason": stop, **more}
        return self.entry("message", message=message)

    def calls(self) -> str:
        call = {"type": "toolCall", "id": "c", "name": "exec", "arguments": {"command": "ls"}}
        return self.entry(
            "message",
            message={"role": "assistant", "content": [call], "stopReason": "toolUse"},
        )

    def result(self) -> str:
        return self.entry("message", message={"role": "toolResult", "content": []})

    def injected(self) -> str:
        return self.says("stopped", model="gateway-injected", provider="openclaw")

    def write(self, file: Path) -> Path:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(self.data)
        return file


def when(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def talked() -> Tree:
    """One turn that is over."""
    tree = Tree()
    tree.user("hello")
    tree.says("hi")
    return tree


def working() -> Tree:
    """The same, and a task in the middle of a tool."""
    tree = talked()
    tree.user("the task")
    tree.calls()
    return tree


class Place:
    """A state folder with an agent, its conversations in files, and processes that it owns."""

    def __init__(self, folder: Path, tree: Tree, session: str = SESSION) -> None:
        self.paths = Paths(folder / "openclaw")
        self.paths.prepare()
        self.file = self.add(session, tree)

    @property
    def logs(self) -> Path:
        return self.paths.openclaw / "agents" / "dev1" / "interrupt-logs"

    def add(self, session: str, tree: Tree) -> Path:
        """Another conversation of the same agent; it is the newest."""
        folder = self.paths.openclaw / "agents" / "dev1" / "sessions"
        index = folder / "sessions.json"
        known = json.loads(index.read_text()) if index.exists() else {}
        file = tree.write(folder / f"s{len(known)}.jsonl")
        known[session] = {"sessionId": file.stem, "sessionFile": str(file), "abortedLastRun": True}
        index.write_text(json.dumps(known))
        moment = BEGIN + len(known)
        os.utime(file, (moment, moment))
        return file

    def begin(self, asked: float, session: str = SESSION, run: str = "r1") -> None:
        """A run, as a gateway that died since would have left it."""
        store = Store.open(self.paths.database)
        store.bind(run, session, "message", asked=asked)
        store.close()

    def process(self, command: str = "exec sleep 60") -> subprocess.Popen[bytes]:
        cookie = cookies.format(Owner(self.paths.state_id, SESSION, 1))
        env = {**os.environ, cookies.VARIABLE: cookie}
        child = subprocess.Popen(["sh", "-c", command], env=env)
        # In the middle of an exec a process has no environment.
        seen = psutil.Process(child.pid)
        zoo.until(lambda: seen.name() != "sh" and cookies.VARIABLE in seen.environ())
        return child

    def made(self) -> list[Path]:
        return sorted(self.logs.glob("rollback-*.jsonl"))
