"""The embedded host: a small gateway in Python, for the demo and for fast runs of the scenarios.

It does what a real one does to us. Its agents follow a script: they say things, run real processes
as tools in the foreground and in the background, keep their transcript in OpenClaw's JSONL format,
and are woken by a background process that ends. It speaks the bridge's side of the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import __version__, cookies, scopes
from .client import connect
from .cookies import Owner
from .errors import ClawstopError
from .paths import Paths
from .protocol import Peer

ASK_SECONDS = 2.0  # as the bridge in a real gateway: then it is a refusal
FROZEN_LOOK = 0.05  # seconds
END_SECONDS = 3.0


@dataclass(frozen=True)
class Say:
    """The agent says something to the person."""

    text: str


@dataclass(frozen=True)
class Exec:
    """The agent runs a shell command as a tool."""

    command: str
    background: bool = False


Script = Sequence[Say | Exec]


@dataclass
class Event:
    """Something that happened in the host, for whoever watches."""

    at: float
    session: str
    kind: str  # message, run, tool, process, refused, said, held back, ended, woken
    text: str


@dataclass
class Run:
    id: str
    session: str
    cause: str
    generation: int = 0
    task: asyncio.Task[None] | None = None
    process: asyncio.subprocess.Process | None = None


@dataclass
class EmbeddedHost:
    paths: Paths
    scripts: dict[str, Script]  # what a message starts, by its first word
    clock: Callable[[], float] = time.time
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._mirror: dict[str, Any] = {"first": 1, "latches": {}, "sessions": {}}
        self._watching: set[asyncio.Task[None]] = set()
        self._state = ""
        self._cages = ""

    # -- the connection

    async def start(self) -> None:
        agents = sorted({scopes.agent_of(session) for session in self._sessions()} | {"main"})
        hello = {"pid": os.getpid(), "host": "embedded", "version": __version__, "agents": agents}
        self._peer, self._reading, welcome = await connect(
            self.paths, "bridge", self._serve, **hello
        )
        self._state = welcome["state"]
        self._cages = welcome.get("cages", "")
        self._mirror = welcome["mirror"]

    async def stop(self) -> None:
        """Leave, as a gateway does: runs end, background processes stay."""
        await self._end_all(list(self._runs.values()))
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._peer.close()
        await self._reading

    async def _serve(self, peer: Peer, method: str, params: dict[str, Any]) -> Any:
        if method == "mirror":
            self._mirror["latches"] = params["latches"]
            self._mirror["sessions"].update(params["sessions"])
            self._mirror["frozen"] = params["frozen"]
            return None
        if method == "say":
            return self._note(params["session"], "told", params["text"])
        if method == "end":
            return await self._end(params["sessions"], params["scopes"])
        if method in ("drain", "memory_forget"):
            return {}  # nothing ever waits here, and nobody is told of an abort
        raise ClawstopError(f"there is no method {method}")

    async def _ask(self, method: str, **params: Any) -> dict[str, Any] | None:
        """The engine's answer; None when there is none, which allows nothing."""
        try:
            answer = await self._peer.ask(method, params, ASK_SECONDS)
        except (ClawstopError, TimeoutError):
            return None
        return answer or {}

    def _note(self, session: str, kind: str, text: str) -> None:
        self.events.append(Event(self.clock(), session, kind, text))

    # -- a person

    async def send(self, session: str, text: str, sender: str = "me") -> str:
        """A person's message; returns the id of the run it starts."""
        id = secrets.token_hex(4)
        self._note(session, "message", text)
        said = {"session": session, "id": id, "sender": sender, "authorised": True}
        await self._ask("message", **said)
        return await self._start_run(session, text, "message", id)

    async def _start_run(self, session: str, text: str, cause: str, id: str) -> str:
        run = Run(id, session, cause)
        asked = int(self.clock() * 1000)
        answer = await self._ask("run_start", run=id, session=session, cause=cause, asked=asked)
        if answer is None or answer["refusal"]:
            reason = answer["refusal"] if answer else "the engine does not answer"
            self._note(session, "refused", f"run: {reason}")
            self._peer.notify("run_end", {"run": id, "session": session})
            return id
        run.generation = answer["bound"]
        self._runs[id] = run
        self._note(session, "run", cause)
        self._write(session, {"role": "user", "content": [{"type": "text", "text": text}]})
        script = self.scripts.get(text.split()[0], [Say(f"you said: {text}")])
        run.task = asyncio.create_task(self._follow(run, script))
        return id

    # -- an agent

    async def _follow(self, run: Run, script: Script) -> None:
        try:
            for step in script:
                if isinstance(step, Say):
                    await self._say(run, step.text)
                elif not await self._tool(run, step):
                    await self._say(run, "I was not allowed to.")
                    return
        finally:
            self._runs.pop(run.id, None)
            self._note(run.session, "ended", run.id)
            with contextlib.suppress(ClawstopError):
                self._peer.notify("run_end", {"run": run.id, "session": run.session})

    async def _say(self, run: Run, text: str) -> None:
        answer = await self._ask("emit", run=run.id, session=run.session, kind="final")
        if answer is None or answer["refusal"]:
            self._note(run.session, "held back", text)
            return
        content = [{"type": "text", "text": text}]
        self._write(run.session, {"role": "assistant", "content": content})
        self._note(run.session, "said", text)

    async def _tool(self, run: Run, step: Exec) -> bool:
        id = secrets.token_hex(4)
        while any(scopes.covers(scope, run.session) for scope in self._mirror.get("frozen", ())):
            await asyncio.sleep(FROZEN_LOOK)
        ask = {"id": id, "run": run.id, "session": run.session, "tool": "exec"}
        answer = await self._ask("tool", **ask)
        if answer is None or answer["refusal"]:
            reason = answer["refusal"] if answer else "the engine does not answer"
            self._note(run.session, "refused", f"exec: {reason}")
            return False
        self._note(run.session, "tool", step.command)
        call = {
            "type": "toolCall",
            "id": id,
            "name": "exec",
            "arguments": {"command": step.command},
        }
        self._write(run.session, {"role": "assistant", "content": [call]})
        cookie = cookies.format(Owner(self._state, run.session, run.generation))
        process = await asyncio.create_subprocess_exec(
            *self._shell(cookie),
            step.command,
            cwd=self.workspace(run.session),
            env={**os.environ, cookies.VARIABLE: cookie},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        if step.background:
            watch = asyncio.create_task(self._wake_when_done(run.session, process))
            self._watching.add(watch)
            watch.add_done_callback(self._watching.discard)
            code = 0
        else:
            run.process = process
            code = await process.wait()
            run.process = None
        result = {"role": "toolResult", "toolCallId": id, "content": [], "isError": bool(code)}
        self._write(run.session, result)
        ended = {"id": id, "session": run.session, "ok": code == 0}
        self._peer.notify("tool_end", ended)
        return True

    def _shell(self, cookie: str) -> list[str]:
        """The shell for a command; it joins the cage of its run first, where there are any."""
        if sys.platform == "win32":
            return [os.environ.get("COMSPEC", "cmd.exe"), "/c"]
        if not self._cages:
            return ["/bin/sh", "-c"]
        cage = Path(self._cages, cookie)
        cage.mkdir(parents=True, exist_ok=True)
        return ["/bin/sh", "-c", 'echo 0 > "$0/cgroup.procs"; exec /bin/sh -c "$1"', str(cage)]

    async def _wake_when_done(self, session: str, process: asyncio.subprocess.Process) -> None:
        """As the gateway does: a background process that ends, or is killed, wakes its agent."""
        code = await process.wait()
        self._note(session, "woken", f"a background process ended with {code}")
        run = secrets.token_hex(4)
        await self._start_run(session, f"exec completed with {code}", "heartbeat", run)

    # -- ending runs

    async def _end(self, sessions: list[str], wide: list[str]) -> dict[str, Any]:
        begun = time.perf_counter()
        runs = [
            run
            for run in self._runs.values()
            if run.session in sessions or any(scopes.covers(s, run.session) for s in wide)
        ]
        ending = [run for run in runs if self._stopped(run)]
        await self._end_all(ending)
        took = round((time.perf_counter() - begun) * 1000)
        told = [{"run": r.id, "session": r.session, "how": ["task"], "ms": took} for r in ending]
        return {
            "ended": [run for run in told if run["run"] not in self._runs],
            "alive": [run for run in told if run["run"] in self._runs],
        }

    def _stopped(self, run: Run) -> bool:
        generation, _ = self._mirror["sessions"].get(run.session, [self._mirror["first"], 0])
        return run.generation < generation or scopes.latched(self._mirror, run.session)

    async def _end_all(self, runs: list[Run]) -> None:
        for run in runs:
            if run.process is not None:  # the host ends a foreground tool's group, and only that
                with contextlib.suppress(ProcessLookupError):
                    if sys.platform == "win32":
                        run.process.kill()
                    else:
                        os.killpg(run.process.pid, signal.SIGTERM)
            if run.task is not None:
                run.task.cancel()
        tasks = [run.task for run in runs if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=END_SECONDS)

    # -- files

    def workspace(self, session: str) -> Path:
        """Where the agent's tools run."""
        folder = self.paths.openclaw / f"workspace-{scopes.agent_of(session)}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _sessions(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for file in (self.paths.openclaw / "agents").glob("*/sessions/sessions.json"):
            known.update(json.loads(file.read_text(encoding="utf-8")))
        return known

    def transcript(self, session: str) -> list[dict[str, Any]]:
        """The session's entries, without the header."""
        name = self._sessions().get(session, {}).get("sessionFile")
        if name is None:
            return []
        with open(name, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines][1:]

    def _write(self, session: str, message: dict[str, Any]) -> None:
        folder = self.paths.openclaw / "agents" / scopes.agent_of(session) / "sessions"
        folder.mkdir(parents=True, exist_ok=True)
        known = self._sessions()
        moment = datetime.datetime.fromtimestamp(self.clock(), datetime.UTC)
        now = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if session not in known:
            id = secrets.token_hex(8)
            file = folder / f"{id}.jsonl"
            header = {"type": "session", "version": 3, "id": id, "timestamp": now}
            file.write_text(json.dumps(header) + "\n", encoding="utf-8")
            listed = folder / "sessions.json"
            index = json.loads(listed.read_text()) if listed.exists() else {}
            index[session] = {"sessionId": id, "sessionFile": str(file)}
            listed.write_text(json.dumps(index), encoding="utf-8")
            known = index
        entries = self.transcript(session)
        entry = {
            "type": "message",
            "id": secrets.token_hex(4),
            "parentId": entries[-1]["id"] if entries else None,
            "timestamp": now,
            "message": message,
        }
        with open(known[session]["sessionFile"], "a", encoding="utf-8") as file_:
            file_.write(json.dumps(entry, ensure_ascii=False) + "\n")
