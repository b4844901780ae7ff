"""Owns the labelled transcript tails: real gateways killed at known moments, and what they left.

`python -m hosts.tails 2026.9.6` plays every case on that release and writes `tails/2026.9.6.jsonl`.
A label is what the case did, never what its tail looks like; the last few are damaged copies.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import check_output
from typing import Any

from .client import FINAL_STATES, RpcError
from .gateway import Gateway
from .install import host
from .model import Step, ToolCall, execute, searched
from .scenario import alive, until

OUT, HOME = Path(__file__).parents[1] / "tails", Path.home()
TURN = 45.0  # seconds for a state to come; a shared machine is slow
SETTLE = 5.0  # seconds after the last state, for what the host writes behind its answers
LINES = 14  # of a transcript's end
BULK = 500  # characters; who reads a tail has no use for a longer field
UNZIP = "process.stdout.write(require('zlib').zstdDecompressSync(require('fs').readFileSync(0)))"
NODES = "select session_key, entry_json, status, updated_at, spawned_by from session_nodes"
EVENTS = "select event_json, event_zstd from transcript_events where session_id = ? order by seq"
# Every case holds its run until the kill, and the host lets only four at work by default.
DEFAULTS = {"maxConcurrent": 40, "heartbeat": {"every": "4h"}}
ROOMY = {"agents": {"defaults": DEFAULTS}, "cron": {"maxConcurrentRuns": 8}}
ASKING = {"tools": {"exec": {"host": "gateway", "security": "allowlist", "ask": "always"}}}
# Up to 2026.4 only a page or a terminal has rights without a paired device, when this is set.
HOURLY = {"schedule": {"kind": "every", "everyMs": 3_600_000}, "delivery": {"mode": "none"}}
COLOURS = [{"label": "red"}, {"label": "blue"}]
QUESTION = {"id": "colour", "header": "Colour", "question": "Which?", "options": COLOURS}
TEXTS = {"done": "All done.", "words": "On it.", "mute": "NO_REPLY", "slow": "word " * 4000}
TEXTS |= {"question": "I found two ways to do it. Which of the two shall I take?"}
MORE, GARBAGE = "and now look at the logs too", "\x00\x01\x1f\ufffd\ufffd{\x7f"
CRON = {"OPENCLAW_SKIP_CRON": None}
Row = dict[str, Any]
Case = dict[str, str]
COLUMNS = ("name", "label", "steps", "moves", "why")
# A batch is one gateway and its kill; a case is name | label | the model's steps | moves | why.
# What follows `late` is done right before the kill; `child:x` and `job:x` are x's other sessions.
CASES = """
= ended
plain            | finished | done             | go over            | answered in words
after-tools      | finished | tool tool done   | go over            | ran two tools, then answered
no-reply         | finished | mute mute        | go over            | chose to say nothing
empty            | finished | none none none   | go over            | empty replies, given up
error-after-tool | finished | tool error error | go over            | a tool, refused, given up
injected         | finished | done             | go over chat.inject:note | answered, then injected
compacted        | finished | done done done   | go over sessions.compact | answered, then compacted
woken            | finished | back done done   | go over asked3     | woken by a process, answered
main             | finished | done done done   | go over wake asked2 | answered a heartbeat
cron             | finished | tool done        | job asked2         | a job that was done
parent           | finished | spawn:grown done | go over over2      | answered after its child
grown            | finished | tool done done   | child:parent       | a child that was done
question         | finished | question         | go over            | its last word is a question
stop-tool        | stopped  | busy             | go runs stop over  | /stop while a tool ran
stop-stream      | stopped  | slow             | go asked1 stop over | /stop while words came
stop-early       | stopped  | done done        | go stop over       | /stop right after the message
stop-later-turn  | stopped  | done busy        | go over more runs stop over2 | /stop in turn two
abort-tool       | stopped  | busy             | go runs chat.abort over | chat.abort in a tool
sessions-abort   | stopped  | busy             | go runs sessions.abort over | aborted in a tool
= tools
tool             | cut_off  | busy             | go runs            | killed while a tool ran
words-tool       | cut_off  | words+busy       | go runs            | killed in a tool, after words
batch            | cut_off  | batch            | go runs            | killed with one of three done
steered          | cut_off  | busy             | go runs more       | killed, a message was waiting
inject-at-work   | cut_off  | busy             | go runs chat.inject:note | a line injected, killed
after-stop       | cut_off  | busy busy busy   | go runs stop over more asked2 | stopped, told anew
cron-tool        | cut_off  | busy             | job runs           | a job killed in its tool
cron-tool-key    | cut_off  |                  | job:cron-tool      | the other key of that job
quiet            | finished | spawn:toiler done | go over            | answered, its child at work
toiler           | cut_off  | busy             | runs child:quiet   | a child killed in its tool
said-now         | finished | done             | late go over       | killed right after its answer
= model
woken-hang       | cut_off  | back done hang   | go over asked3     | woken by a process, killed
compacted-hang | cut_off | hang | go:ok over sessions.compact go asked1 | compacted, told anew, cut
hang             | cut_off  | hang             | go asked1          | killed before its first word
stream           | cut_off  | slow             | go asked1          | killed while words came
after-result     | cut_off  | tool hang        | go asked2          | killed after a tool's result
between-tools    | cut_off  | tool slow+tool   | go asked2          | killed before its next tool
later-turn-hang  | cut_off  | done hang        | go over more asked2 | killed before words, turn two
ok               | trivial  | done hang        | go over say:ok asked2 | ok, not answered yet
hao-de           | trivial  | done hang        | go over say:好的 asked2 | 好的, not answered yet
thumb            | trivial  | done hang        | go over say:👍 asked2 | 👍, not answered yet
= moment
stopped-now      | stopped  | busy             | go runs late stop  | killed right after /stop
ok-accepted      | trivial  | done hang        | go over late say:ok | ok, accepted and killed
accepted-later   | cut_off  | done hang        | go over late more  | accepted in turn two, killed
accepted-now     | cut_off  | hang             | late go            | accepted and killed
= asking
approval         | waiting  | tool             | go heard1:approval.requested | an approval pending
ask-user         | waiting  | ask              | go heard1:question.requested | a question was open
"""


class Stage:
    """A gateway on which cases are played until it is killed, and what it has left of them."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.model, self.jobs = gateway, gateway.model, dict[str, str]()
        self.person = gateway.client(caps=["exec-approvals"])
        self.do("warm-up", "go", "")
        self.do("warm-up", "over", "")

    def play(self, cases: list[Case]) -> list[Row]:
        """Bring them into their states and kill; rows of the cases that could be made."""
        for case in cases:
            steps = case["steps"].split()
            self.model.scripts[case["name"]] = [self.step(case, word) for word in steps]
        ready = [case for case in cases if self.moved(case, case["moves"].partition("late")[0])]
        time.sleep(SETTLE)
        true = [case for case in ready if self.true(case)]
        print("moved on:", [case["name"] for case in ready if case not in true], flush=True)
        done = [case for case in true if self.moved(case, case["moves"].partition("late")[2])]
        self.gateway.kill()
        left = Remains(self.gateway)
        return [row for case in done for row in left.rows(case, self.jobs)]

    def step(self, case: Case, word: str) -> Step:
        """What the model does, by its word in the table."""
        kind, _, child = word.partition(":")
        first, _, kind = kind.rpartition("+")
        sleep = execute(f"sleep 47000; : {case['name']}")
        calls: dict[str, list[ToolCall]] = {
            "tool": [execute("ls")],
            "busy": [sleep],
            "batch": [execute("ls"), sleep, execute("sleep 47001")],
            "back": [("exec", {"command": "sleep 2; echo it", "background": True})],
            "spawn": [("sessions_spawn", {"task": f"[[{child}]] go"})],
            "ask": [("ask_user", {"questions": [QUESTION]})],
        }
        known = self.model.requests[-1].tools
        tools = [c if c[0] in known else searched(c[0], **c[1]) for c in calls.get(kind, ())]
        delay, error = 0.2 if "slow" in word else 0.0, 400 if kind == "error" else 0
        text = TEXTS.get(first or kind, "")
        return Step(text, tools, hang=kind == "hang", chunk_delay=delay, error=error)

    def moved(self, case: Case, words: str) -> bool:
        """Do what the table says; False, and a word on it, when this release cannot."""
        try:
            for word in words.split():
                self.do(case["name"], *word.partition(":")[::2])
        except (RpcError, TimeoutError) as error:
            print(f"{case['name']} left out: {error}", flush=True)
            return False
        return True

    def do(self, name: str, verb: str, about: str) -> None:
        """One move: a call, a deed, or to wait until a state has come so many times."""
        send, call, key = self.person.send, self.person.call, f"agent:main:{name}"
        word, count = verb.rstrip("0123456789"), int(re.sub(r"\D", "", verb) or 1)
        states: dict[str, Callable[[], int]] = {
            "over": lambda: self.ended(key),
            "runs": lambda: len(alive(self.gateway, f": {name}")),
            "asked": lambda: len(self.outcomes(name)),
            "heard": lambda: sum(f["event"].endswith(about) for _, f in self.person.events),
        }
        texts = {"go": f"[[{about or name}]] go", "say": about, "stop": "/stop", "more": MORE}
        if text := texts.get(word):
            send(text, key)
        elif state := states.get(word):
            until(lambda: state() >= count, TURN, f"{name}: {verb}")
            time.sleep(0.5)  # for what follows a state: first words, a tool at work
        elif "." in word:
            where = {"sessionKey" if word.startswith("chat.") else "key": key}
            call(word, {**where, **({"message": about} if about else {})}, TURN)
        elif word == "wake":
            call("wake", {"mode": "now", "text": "look around"})
        elif (word, about) == ("job", ""):
            self.schedule(name)

    def schedule(self, name: str) -> None:
        """A job that runs at once."""
        job: Row = {**HOURLY, "name": name, "agentId": "main", "sessionTarget": "isolated"}
        job["payload"] = {"kind": "agentTurn", "message": f"[[{name}]] go"}
        self.jobs[name] = self.person.call("cron.add", job)["id"]
        self.person.call("cron.run", {"id": self.jobs[name], "mode": "force"})

    def outcomes(self, script: str) -> list[str]:
        return [one.outcome for one in self.model.requests if one.script == script]

    def ended(self, key: str) -> int:
        payloads = [frame.get("payload") or {} for _, frame in self.person.events]
        mine = [one for one in payloads if one.get("sessionKey") == key]
        return len({one.get("runId") for one in mine if one.get("state") in FINAL_STATES})

    def true(self, case: Case) -> bool:
        """Whether it is at work now just when its label says so; a late one is not there yet."""
        if "late" in case["moves"] or case["label"] == "waiting" or not case["steps"]:
            return True
        runs = alive(self.gateway, f": {case['name']}")
        works = bool(runs) or "answering" in self.outcomes(case["name"])
        return works == (case["label"] in ("cut_off", "trivial"))


class Remains:
    """The sessions that a killed gateway has left, in files or in SQLite."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, agent = gateway, gateway.state_dir / "agents/main"
        self.files, database = agent / "sessions", agent / "agent/openclaw-agent.sqlite"
        self.base, self.entries = None, dict[str, Row]()
        if not database.is_file():
            self.entries = json.loads((self.files / "sessions.json").read_text())
            return
        self.base = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
        for key, entry, status, at, by in self.base.execute(NODES):
            self.entries[key] = json.loads(entry) | {"status": status, "updated_at": at}
            self.entries[key]["spawned_by"] = by

    def rows(self, case: Case, jobs: dict[str, str]) -> Iterator[Row]:
        """What there is of this case, and damaged copies of one; nothing without a session."""
        kind, _, other = case["moves"].split()[-1].partition(":")
        keys = [f"agent:main:{case['name']}"]
        if kind == "child":
            parent = f"agent:main:{other}"
            keys = [key for key, entry in self.entries.items() if entry.get("spawnedBy") == parent]
        elif job := jobs.get(other or case["name"]):  # one key a job, or one more for its run
            keys = sorted((key for key in self.entries if job in key), key=len, reverse=True)
        for key in keys[kind == "job" :][:1]:
            row: Row = json.loads(self.placeless(self.row(case, key)))
            yield row
            if case["name"] == "after-tools":
                yield from damaged(row, in_files=self.base is None)

    def row(self, case: Case, key: str) -> str:
        entry = self.entries.get(key, {})
        kept = {name: value for name, value in entry.items() if len(json.dumps(value)) <= BULK}
        lines, lock = self.transcript(case, entry.get("sessionId"))
        told = {name: case[name] for name in ("name", "label", "why")}
        rest = {"entry": kept, "lines": lines[-LINES:], "lock": lock, "torn": False}
        return json.dumps({**told, "session": key, **rest})

    def transcript(self, case: Case, session: str | None) -> tuple[list[str], str | None]:
        """(lines, lock) of a session; a file that no entry names yet is known by its words."""
        if self.base:
            unzip = [str(self.gateway.host.node), "-e", UNZIP]  # Python 3.11 knows no zstd
            rows = self.base.execute(EVENTS, (session,))
            lines = [text or check_output(unzip, input=packed).decode() for text, packed in rows]
            return lines, None
        file = self.files / f"{session}.jsonl"
        for other in self.files.glob("*.jsonl") if session is None else ():
            if ".trajectory" not in other.name and f"[[{case['name']}]]" in other.read_text():
                file = other
        lock = file.with_name(f"{file.name}.lock")
        lines = file.read_text().removesuffix("\n").split("\n") if file.is_file() else []
        return lines, lock.read_text() if lock.is_file() else None

    def placeless(self, text: str) -> str:
        """The text without a trace of this machine; an error if one is left."""
        root, state = self.gateway.root, self.gateway.state_dir
        for path, place in ((state, "/.openclaw"), (root, ""), (HOME, "")):
            text = re.sub(rf"{re.escape(str(path))}(?![\w-])", f"/home/user{place}", text)
        traces = (str(HOME), tempfile.gettempdir(), self.gateway.token, f":{self.gateway.port}")
        if found := [trace for trace in traces if trace in text]:
            raise ValueError(f"{found} in {text}")
        return text


def damaged(row: Row, in_files: bool) -> Iterator[Row]:
    """Copies of a whole conversation with one damage each; a database's row is never torn."""
    lines: list[str] = row["lines"]
    ways = {"two-headers": [lines[0], *lines], "no-header": lines[1:], "empty-file": []}
    ways |= {"garbage": [*lines, GARBAGE], "torn": [*lines[:-1], lines[-1][:99]]}
    for name in [name for name in ways if in_files or name != "torn"]:
        label = "finished" if "header" in name else "unknown"  # its end is as it was
        told = {"name": name, "label": label, "why": f"a damaged copy of {row['name']}"}
        yield {**row, **told, "lines": ways[name], "torn": name == "torn"}


def main(version: str, root: Path) -> None:
    rows: list[Row] = []
    for part in CASES.split("= ")[1:]:
        name, *lines = part.strip().splitlines()
        cases = [dict(zip(COLUMNS, map(str.strip, line.split("|")), strict=True)) for line in lines]
        told = {**ROOMY, **(ASKING if name == "asking" else {})}
        with Gateway(root / name, host(version), env=CRON, overrides=told) as gateway:
            rows += Stage(gateway).play(cases)
        print(f"{version}: {name}: {len(rows)} rows", flush=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (OUT / f"{version}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tails-") as folder:
        main(sys.argv[1], Path(folder))
