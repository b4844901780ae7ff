"""Agents by name on a real gateway, what each is told, and one that is hired while it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from product import Product

from .gateway import Gateway
from .install import host
from .model import Step, execute
from .protected import GONE, TURN, Work, protected, receipt_since
from .scenario import alive, until
from .telegram import Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

Running = tuple[Gateway, Product]
AGENTS = ("main", "zero_dev1", "zero_pm", "one-pm")
NAMES = {"zero_dev1": "开发工程师", "zero_pm": "产品经理"}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Product, Telegram]]:
    telegram = Telegram()
    entries = {id: {"name": name} for id, name in NAMES.items()}
    root = tmp_path_factory.mktemp("office")
    with protected(
        root, telegram=telegram, agents=AGENTS, overrides={"agents": {"entries": entries}}
    ) as (gateway, product):
        yield gateway, product, telegram
    telegram.close()


@pytest.fixture
def running(office: tuple[Gateway, Product, Telegram]) -> Iterator[Running]:
    gateway, product, _ = office
    yield gateway, product
    for agent in AGENTS:
        product.run(gateway.state_dir, "release", agent)


def told(workspace: Path, id: str) -> bool:
    file = workspace / "AGENTS.md"
    return file.is_file() and f"You are the agent `{id}`" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "order",
    ["kill 开发工程师", "停掉 开发工程师", "stop dev1", "kill kaifagongchengshi", "/kill 开发"],
)
def test_an_agent_is_stopped_by_what_people_call_it(running: Running, order: str) -> None:
    gateway, _ = running
    number = next(Work.numbers)
    here, there = f"agent:main:page-{number}", f"agent:zero_dev1:page-{number}"
    with gateway.client(here) as client, gateway.client(there) as other:
        work = Work(gateway, f"named{number}", other.send)
        before = time.time()
        client.send(order)
        receipt = receipt_since(gateway, there, before)
        assert receipt["converged"], receipt["left"]
        assert receipt["scopes"] == ["agent:zero_dev1"]
        assert work.alive == []


def test_of_several_the_number_is_stopped(
    office: tuple[Gateway, Product, Telegram], running: Running
) -> None:
    gateway, _, telegram = office
    with gateway.client("agent:zero_pm:work") as other:
        work = Work(gateway, "several", other.send)
        before = time.time()
        telegram.say("kill pm")
        asked = ("Several go by pm. Reply with the number", "1. one-pm", "2. zero_pm (产品经理)")
        until(lambda: all(part in "\n".join(telegram.shown()) for part in asked), GONE, "it asks")
        assert work.alive
        telegram.say("2")
        receipt = receipt_since(gateway, "agent:zero_pm:work", before)
        assert receipt["scopes"] == ["agent:zero_pm"]
        assert work.alive == []
        requests = gateway.model.requests_since(before)
        assert not [r for r in requests if "kill pm" in str(r.messages)], "no model has seen it"


def test_a_conversation_is_stopped_by_its_label(running: Running) -> None:
    gateway, product = running
    key = "agent:zero_pm:taxes"
    with gateway.client(key) as client:
        work = Work(gateway, "taxes", client.send)
        client.call("sessions.patch", {"key": key, "label": "Tax return"})
        done = product.run(gateway.state_dir, "stop", "tax return")
        assert done.returncode == 0, done.stderr
        assert work.alive == []
        receipt = receipt_since(gateway, key, 0)
        assert receipt["scopes"] == [key]


def test_who_has_no_file_is_told_every_turn_and_who_has_one_only_there(running: Running) -> None:
    gateway, _ = running
    gateway.model.scripts["read"] = [Step("read")]

    def prompt(session: str) -> str:
        with gateway.client(session) as client:
            client.wait_final(client.send("[[read]] go")["runId"])
        return str(gateway.model.requests[-1].messages)

    assert prompt("agent:one-pm:a").count("You are the agent `one-pm`") == 1
    folder = gateway.workspace("one-pm")
    assert not (folder / "AGENTS.md").exists(), "the host makes it, not we"
    (folder / "AGENTS.md").write_text("# Your workspace\n")
    until(lambda: told(folder, "one-pm"), GONE, "its file has the block")
    assert prompt("agent:one-pm:b").count("You are the agent `one-pm`") == 1


def test_an_agent_added_while_the_gateway_runs_is_protected_within_two_seconds(
    running: Running,
) -> None:
    gateway, product = running
    folder = gateway.workspace("hired")
    folder.mkdir()
    (folder / "AGENTS.md").write_text("# Your workspace\n")
    with gateway.client("agent:main:boss") as client:
        hired = client.call("agents.create", {"name": "新来的 Hired", "workspace": str(folder)})
        added, id = time.time(), hired["agentId"]
        until(lambda: told(folder, id), GONE, "it is told")
        until(lambda: id in product.json(gateway.state_dir, "status")["agents"], GONE, "known")
        took = time.time() - added
        there = f"agent:{id}:work"
        with gateway.client(there) as other:
            work = Work(gateway, "hired", other.send)
            before = time.time()
            client.send("kill 新来的 hired")
            receipt = receipt_since(gateway, there, before)
        assert receipt["converged"], receipt["left"]
        assert work.alive == []
    assert (folder / "AGENTS.md").stat().st_mtime - added < 2, "told within two seconds"
    assert took < 10, "and known to a command, which takes a second to start"


def test_the_canary_is_stopped_for_all_to_see(running: Running) -> None:
    gateway, product = running
    number = next(Work.numbers)
    gateway.model.scripts[""] = [Step(tools=[execute(f"sleep {number}")]), Step("done")]
    try:
        findings = product.json(gateway.state_dir, "doctor", "--canary", "--yes")
    finally:
        del gateway.model.scripts[""]
    assert [finding["ok"] for finding in findings] == [True, True], findings
    assert not alive(gateway, f"sleep {number}")
    with gateway.client() as client:
        listed = client.call("sessions.list", {})["sessions"]
        assert not [one for one in listed if "canary" in one["key"]], "nothing of it is left"
    assert not [k for k in product.json(gateway.state_dir, "status")["latches"] if "canary" in k]


def test_doctor_is_content_and_says_what_is_not_so(running: Running) -> None:
    gateway, product = running
    findings = until(lambda: _content(product, gateway), TURN, "every line is ok")
    lines = [finding["what"] for finding in findings]
    assert any("the plugin is loaded and connected" in line for line in lines)
    file = gateway.workspace("zero_dev1") / "AGENTS.md"
    file.write_text("# Mine\n")
    until(lambda: told(file.parent, "zero_dev1"), GONE, "it has the block")
    file.write_text(file.read_text().replace("End your turn", "Go on"))
    found = product.json(gateway.state_dir, "doctor")
    (edited,) = (finding for finding in found if not finding["ok"])
    assert "somebody has edited the block" in edited["what"]
    file.unlink()


def _content(product: Product, gateway: Gateway) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] = product.json(gateway.state_dir, "doctor")
    wrong = [finding for finding in found if not finding["ok"]]
    print(json.dumps(wrong, indent=1))
    return None if wrong else found


def test_a_gateway_without_the_plugin_is_shouted(tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    with Gateway(tmp_path / "gateway", host()) as gateway:
        product.wire(gateway.state_dir)
        shout = f"NOT PROTECTED: a gateway answers on port {gateway.port}"
        assert shout in product.run(gateway.state_dir, "doctor").stdout
        status = product.run(gateway.state_dir, "status")
        assert shout in status.stdout.splitlines()[0]
