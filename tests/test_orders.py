"""What a whole message orders us to do, who is meant by it, and who may say it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clawstop import targets
from clawstop.agents import Agent
from clawstop.names import Names

BRIDGE = Path(__file__).parent.parent / "hooks" / "openclaw"
DRIVER = """
const module = await import(process.argv[1]);
let text = "";
for await (const chunk of process.stdin.setEncoding("utf8")) text += chunk;
const { call, every } = JSON.parse(text);
console.log(JSON.stringify(every.map((args) => module[call](...args) ?? null)));
"""


def node(file: str, call: str, every: list[list[Any]]) -> list[Any]:
    """What a function of the bridge gives for each of these arguments, from one Node process."""
    binary = shutil.which("node")
    assert binary, "Node is needed: the bridge is JavaScript"
    done = subprocess.run(
        [binary, "--input-type=module", "-e", DRIVER, (BRIDGE / file).as_uri()],
        input=json.dumps({"call": call, "every": every}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def killed(name: str, bare: str = "", *, sure: bool = False, keep: bool = False) -> dict[str, Any]:
    """An order with the name as it was typed, and without what is said around a name."""
    return {"kind": "kill", "name": name, "bare": bare or name, "sure": sure, "keep": keep}


ORDERS = {
    "/stop": {"kind": "stop"},
    "stop it": {"kind": "stop"},
    "中断": {"kind": "stop"},
    "/stop --keep": {"kind": "stop", "keep": True},
    "/stops": {"kind": "stops"},
    "/suspects@some_bot": {"kind": "suspects"},
    "/restore": {"kind": "restore", "receipt": "", "force": False},
    "/restore 1a2b3c4d --force": {"kind": "restore", "receipt": "1a2b3c4d", "force": True},
    "kill dev1": killed("dev1"),
    "  Kill dev1 ": killed("dev1"),
    "/kill dev1": killed("dev1", sure=True),
    "/halt dev1": killed("dev1", sure=True),
    "stop dev1": killed("dev1"),
    "杀掉 dev1": killed("dev1"),
    "停掉dev1": killed("dev1"),
    "kill everything": killed("everything"),
    "kill dev1 now!!": killed("dev1 now!!", "dev1"),
    "杀掉dev1。": killed("dev1。", "dev1"),
    "kill @dev1 please": killed("dev1 please", "dev1"),
    "@some_bot kill dev1": killed("dev1"),
    "/kill dev1 --keep": killed("dev1", sure=True, keep=True),
    "／kill dev1": killed("dev1", sure=True),
    "ｋｉｌｌ dev1": killed("dev1"),
    "殺掉 dev1": killed("dev1"),
    "終止dev1": killed("dev1"),
    "kill C#": killed("C#"),
    "kill C#!": killed("C#!", "C#"),
    "kill Anna (QA)": killed("Anna (QA)"),
    "kill zero_pm (产品经理)": killed("zero_pm (产品经理)"),
    "kill (dev1)": killed("(dev1)"),
    "kill dev1)": killed("dev1)", "dev1"),
    "kill 🦊": killed("🦊"),
    "kill dev1 🙏": killed("dev1 🙏", "dev1"),
    "kill dev1?": None,
    "杀掉dev1？": None,
    "kill dev1?!": None,
    "/kill Who?": killed("Who?", "Who", sure=True),
    "@else kill dev1": None,
    "killer whales": None,
    "please kill dev1 and then go on": None,
    "how do I kill dev1?": None,
    "kill dev1\nand dev2": None,
    "/restored": None,
    "/stopsign": None,
}


def test_orders_are_told_from_talk() -> None:
    found = node("orders.js", "orderOf", [[text, ["some_bot"]] for text in ORDERS])
    assert dict(zip(ORDERS, found, strict=True)) == ORDERS


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("dev1", ["zero_dev1"]),
        ("DEV1", ["zero_dev1"]),
        ("zero_dev1", ["zero_dev1"]),
        ("pm", ["one-pm", "zero_pm"]),
        ("audit", ["audit"]),
        ("all", ["all"]),
        ("Everything", ["everything"]),
        ("it", []),
        ("ev1", []),
        ("the docker container", []),
        ("", []),
    ],
)
def test_in_chat_a_name_is_a_whole_name(name: str, called: list[str]) -> None:
    agents = ["zero_dev1", "zero_pm", "one-pm", "audit", "main"]
    assert targets.meant(name, Names(map(Agent, agents))) == called


PAIRED = {"channels": {"telegram": {"dmPolicy": "pairing"}}}
OPEN = {"channels": {"telegram": {"dmPolicy": "open", "allowFrom": ["*"], "groupAllowFrom": [42]}}}
OWNED = {**OPEN, "commands": {"ownerAllowFrom": ["telegram:7"]}}
BY_GROUP = {"channels": {"telegram": {"groups": {"-1": {"allowFrom": ["*"]}}}}}
BY_ACCOUNT = {"channels": {"telegram": {"accounts": {"b": {"dmPolicy": "open"}}}}}


@pytest.mark.parametrize(
    ("config", "who", "may"),
    [
        (OPEN, {"channel": "webchat", "sender": "x"}, True),
        (PAIRED, {"channel": "telegram", "sender": "5"}, True),
        (OPEN, {"channel": "telegram", "sender": "5"}, False),
        (OPEN, {"channel": "telegram", "sender": "42"}, True),
        (OWNED, {"channel": "telegram", "sender": "7"}, True),
        (BY_GROUP, {"channel": "telegram", "sender": "5"}, False),
        (BY_ACCOUNT, {"channel": "telegram", "account": "b", "sender": "5"}, False),
        (BY_ACCOUNT, {"channel": "telegram", "account": "a", "sender": "5"}, True),
    ],
)
def test_who_may_command_another_agent(config: Any, who: Any, may: bool) -> None:
    assert node("authority.js", "mayCommandOthers", [[config, who]]) == [may]


@pytest.mark.parametrize(
    ("config", "who", "may"),
    [
        (PAIRED, {"authorised": True, "group": False, "sender": "5"}, True),
        (PAIRED, {"authorised": False, "group": False, "sender": "5"}, False),
        (OPEN, {"authorised": True, "group": True, "sender": "5"}, False),
        (OPEN, {"authorised": True, "group": True, "sender": "42"}, True),
        (PAIRED, {"authorised": True, "group": True, "sender": "5"}, False),
    ],
)
def test_who_may_use_the_channels_menu(config: Any, who: Any, may: bool) -> None:
    about = {"channel": "telegram", **who}
    assert node("authority.js", "mayUseMenu", [[config, about]]) == [may]


def test_yes_and_no_are_whole_answers() -> None:
    yes = ["yes", "Yes!", "go on", "继续", "是的。", "好的", "ＯＫ", "y"]
    no = ["no", "No.", "不用了", "否", "算了", "n"]
    neither = ["yes, but change the title", "no idea", "继续写第二章", "now", "nothing", "", "1"]
    told = node("orders.js", "answerOf", [[text] for text in (*yes, *no, *neither)])
    assert told == [True] * len(yes) + [False] * len(no) + [None] * len(neither)
