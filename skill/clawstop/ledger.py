"""Which tool calls were let through, refused and finished, and what was kept from being said: the
first question after a stop is what was already done. In memory, bounded: a receipt says since when
its engine has been watching."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .redaction import redact

KEPT = 1000  # finished calls kept for receipts: hours of one busy agent, well under a megabyte
SHOWN = 300  # characters of a call's input: enough to know it again

# What a call may have touched. A tool that is not known may have done anything.
READS = frozenset(
    {
        "read",
        "ls",
        "find",
        "grep",
        "image",
        "pdf",
        "web_search",
        "web_fetch",
        "memory_search",
        "memory_get",
        "session_status",
        "sessions_list",
        "sessions_history",
        "agents_list",
        "tool_search",
        "update_plan",
        "get_goal",
    }
)
MACHINE = frozenset(["exec", "bash", "process", "write", "edit", "apply_patch"])
OUTWARD = re.compile(
    r"\b(curl|wget|ssh|scp|rsync|git\s+push|gh|mail|sendmail|mutt|aws|gcloud|az|kubectl|docker"
    r"|npm\s+publish|twine|telnet|nc)\b"
)
# Commands that make the system start something later, where no stop of ours can look.
SHELLS = frozenset({"exec", "bash"})
SCHEDULES = re.compile(
    r"\b(?:crontab|systemd-run|launchctl|schtasks)\b|\bsystemctl\b[^;|&]{0,80}\b(?:enable|start)\b"
    r"|/etc/cron|(?:^|[;|&(\"]) *(?:sudo +)?(?:at|batch) "
)
# Commands that hand work to somebody who is not below them: another machine, or another daemon.
ELSEWHERE = re.compile(
    r"(?:^|[;|&(\"]|\\n) *(?:sudo +)?"
    r"(?:ssh|mosh|docker|podman|nerdctl|kubectl|lxc|machinectl|tmux|screen)\s"
    r"|\"host\": *\"(?:node|sandbox)\""
)
REACH = ("outside", "machine", "read")  # what a person asks for first
OUTCOMES = ("done", "failed", "outcome unknown", "blocked")


def shown(text: str) -> str:
    """What a receipt shows of it, without secrets. Looking through the rest would take time."""
    return str(redact(text[: 2 * SHOWN]))[:SHOWN]


def reach(tool: str, input: str) -> str:
    """How far a call can be seen: outside this machine, on it, or nowhere."""
    if tool in READS:
        return "read"
    if tool in MACHINE:
        return "outside" if OUTWARD.search(input) else "machine"
    return "outside"


@dataclass
class Call:
    id: str
    session: str
    run: str
    tool: str
    input: str
    generation: int
    at: float
    outcome: str = "outcome unknown"  # until the host reports its end

    def told(self) -> dict[str, Any]:
        """As a receipt has it. Looked through only now: every tool call waits for the gate."""
        far = reach(self.tool, self.input)
        return {**vars(self), "input": shown(self.input), "reach": far}


class Ledger:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.since = clock()
        self._open: dict[tuple[str, str], Call] = {}
        self._done: deque[Call] = deque(maxlen=KEPT)
        self._held: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def allowed(
        self, id: str, session: str, run: str, tool: str, input: str = "", generation: int = 0
    ) -> None:
        call = Call(id, session, run, tool, input, generation, self._clock())
        self._open[session, id] = call
        if len(self._open) > KEPT:  # their ends were lost
            self._open.pop(next(iter(self._open)))

    def refused(
        self, id: str, session: str, run: str, tool: str, input: str = "", generation: int = 0
    ) -> None:
        call = Call(id, session, run, tool, input, generation, self._clock(), "blocked")
        self._done.append(call)

    def finished(self, id: str, session: str, ok: bool) -> None:
        call = self._open.pop((session, id), None)
        if call:
            call.outcome = "done" if ok else "failed"
            self._done.append(call)

    def held(self, session: str, run: str, kind: str, text: str) -> None:
        """Something of a dead run that was kept from the person."""
        told = {"session": session, "run": run, "kind": kind, "text": shown(text)}
        self._held.append(told)

    def close(self, covers: Callable[[str, int], bool]) -> dict[str, list[Any]]:
        """What became of the calls of these sessions, what can be seen from outside first; what
        was not said; what they may have scheduled outside the host, and what they may have
        started where nobody can look (`remote`).

        `covers(session, generation)` chooses. They leave the ledger: a later stop of the same
        session speaks of later calls.
        """

        def inside(call: Call) -> bool:
            return covers(call.session, call.generation)

        taken = [call for call in (*self._done, *self._open.values()) if inside(call)]
        self._done = deque((call for call in self._done if not inside(call)), KEPT)
        self._open = {key: call for key, call in self._open.items() if not inside(call)}
        held = [output for output in self._held if covers(output["session"], 0)]
        self._held = deque((o for o in self._held if not covers(o["session"], 0)), KEPT)
        tools = [call.told() for call in taken]
        tools.sort(key=lambda t: (OUTCOMES.index(t["outcome"]), REACH.index(t["reach"]), t["at"]))
        scheduled = [
            shown(call.input)
            for call in taken
            if call.tool in SHELLS and call.outcome != "blocked" and SCHEDULES.search(call.input)
        ]
        remote = [
            shown(call.input)
            for call in taken
            if call.tool in SHELLS and call.outcome != "blocked" and ELSEWHERE.search(call.input)
        ]
        return {"tools": tools, "suppressed": held, "scheduled": scheduled, "remote": remote}
