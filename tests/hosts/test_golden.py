"""What a person sees, word for word, in two languages: compared with tests/hosts/golden/*.txt.

`CLAWSTOP_GOLDEN=write` writes them anew; then read what has changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .gateway import Gateway
from .model import MARK, Step, execute
from .protected import GONE, TURN, Work, protected
from .scenario import alive, until
from .telegram import PERSON, Telegram
from .test_triggers import said

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

GOLDEN = Path(__file__).parent / "golden"
QUIET = 1.5  # seconds after an answer in which a second one would come
MASKS = [
    (r"\d+\.\d (s|秒)", r"# \1"),
    (r"\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d", "DATE TIME"),
    (r"(Receipt|回执|/restore) [0-9a-f]{8}", r"\1 RECEIPT"),
    ("([(\uff08])[0-9a-f]{8}([)\uff09])", r"\1RECEIPT\2"),
    (r"\d+ (process|processes) killed", "# processes killed"),
    (r"终止 \d+", "终止 #"),
    (r"processes killed: \d+", "processes killed: #"),
    (r"终止进程 \d+", "终止进程 #"),
    (r"\d+ entries", "# entries"),
    (r"\d+ 条记录", "# 条记录"),
]
WORDS = {
    "en": {
        "task": "tidy up my files",
        "stop": "/stop",
        "next": "rather count them",
        "answer": "There are 12.",
        "push": "publish my work",
        "kill": "kill dev1",
    },
    "zh": {
        "task": "整理我的文件",
        "stop": "停止",
        "next": "先数一下",
        "answer": "共有 12 个。",
        "push": "发布我的工作",
        "kill": "杀掉 dev1",
    },
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Telegram]]:
    telegram = Telegram()
    with protected(tmp_path_factory.mktemp("golden"), telegram=telegram) as (gateway, _):
        yield gateway, telegram
    telegram.close()


class Dialogue:
    """A conversation as it stands in the chat: who said what, in order."""

    def __init__(self, gateway: Gateway, telegram: Telegram) -> None:
        self.gateway, self.telegram = gateway, telegram
        self.lines: list[str] = []

    def scene(self, title: str) -> None:
        self.lines += ["", f"# {title}"]

    def person(self, text: str) -> float:
        self.lines.append("person: " + MARK.sub("", text).strip())
        at = time.time()
        self.telegram.say(text)
        return at

    def bot(self, since: float, wanted: int = 1) -> None:
        """Everything that was shown since then, once as much has come as is expected."""
        until(lambda: len(self._shown(since)) >= wanted, GONE, f"{wanted} lines")
        time.sleep(QUIET)
        self.lines += [f"bot:    {line}" for line in self._shown(since)]

    def _shown(self, since: float) -> list[str]:
        calls = self.telegram.outbound(since, PERSON)
        return [masked(call.text).replace("\n", " | ") for call in calls if call.text]


def masked(text: str) -> str:
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    return text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_what_a_person_sees(stage: tuple[Gateway, Telegram], lang: str) -> None:
    gateway, telegram = stage
    words, told = WORDS[lang], Dialogue(gateway, telegram)

    def work(name: str) -> Work:
        ask = f"{words['task']}"
        return Work(gateway, f"{name}-{lang}", lambda text: told.person(f"{text[:-2]}{ask}"))

    told.scene("a task is stopped")
    work("stopped")
    told.bot(told.person(words["stop"]))
    told.scene("nothing runs any more")
    time.sleep(1)  # a second stop within a second is the same stop
    told.bot(told.person(words["stop"]))
    told.scene("it is brought back")
    told.bot(told.person("/restore"))
    told.scene("what was stopped so far")
    told.bot(told.person("/stops"))
    told.lines[-1] = " | ".join(told.lines[-1].split(" | ")[:3])  # of this test alone
    told.scene("a new message takes over")
    work("taken")
    gateway.model.scripts["next"] = [Step(words["answer"])]
    told.bot(told.person(f"[[next]] {words['next']}"))
    told.scene("a new message takes over, and something is out already")
    push(gateway, told, words["push"])
    gateway.model.scripts["next"] = [Step(words["answer"], delay=2)]  # behind our line
    told.bot(told.person(f"[[next]] {words['next']}"), wanted=2)
    told.scene("another agent is stopped from here")
    with gateway.client(f"agent:dev1:golden-{lang}") as client:
        Work(gateway, f"other-{lang}", client.send)
        told.bot(told.person(words["kill"]))
        told.scene("nobody has that name")
        told.bot(told.person("/kill dev9"))
        told.scene("a stop on a page")
        client.send("[[next]] " + words["next"])
        Work(gateway, f"page-{lang}", client.send)
        seen = client.mark()
        client.send(words["stop"])
        told.lines.append(f"person: {words['stop']}")
        mark = {"en": "Stopped", "zh": "已停止"}[lang]
        line = until(lambda: said(client, seen, mark), GONE, "a line on the page")
        told.lines.append(f"page:   {masked(line)}")
    compare(f"{lang}.txt", "\n".join(told.lines).strip() + "\n")


def push(gateway: Gateway, told: Dialogue, words: str) -> None:
    """A task that has pushed something, and goes on."""
    command = f"sleep {next(Work.numbers)}"
    repository(gateway.workspace())
    gateway.model.scripts["push"] = [
        Step(tools=[execute("git push origin main")]),
        Step(tools=[execute(command)]),
        Step("stale"),
    ]
    told.person(f"[[push]] {words}")
    until(lambda: alive(gateway, command), TURN, "it goes on")


def repository(folder: Path) -> None:
    """Something to push, and somewhere to push it."""
    remote = folder.parent / "remote.git"
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for arguments in (
        ("init", "-q", "--bare", str(remote)),
        ("init", "-q", "-b", "main", "."),
        (*who, "commit", "-q", "--allow-empty", "-m", "work"),
        ("remote", "add", "origin", str(remote)),
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=False, timeout=30)  # or it is there


def compare(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("CLAWSTOP_GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")
