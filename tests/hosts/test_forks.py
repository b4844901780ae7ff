"""A fork of the host with hooks missing: the strongest mode that is left, and plain words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .forks import fork
from .install import host
from .model import Step
from .protected import TURN, Work, protected, receipt_since
from .scenario import until

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]


def test_without_messages_turns_and_exec_env_a_stop_holds_until_it_is_released(
    tmp_path: Path,
) -> None:
    missing = ("reply_dispatch", "before_agent_reply", "resolve_exec_env")
    less = fork(host(), tmp_path / "fork", *missing)
    with protected(tmp_path, host=less) as (gateway, product):
        [one] = until(lambda: product.json(gateway.state_dir, "status")["gateways"], TURN, "it")
        told = " ".join(one["reduced"])
        assert "what people write is not seen" in told
        assert "ended at its start" in told
        assert "allowConversationAccess" not in told, "nothing that is set gives it back"
        doctor = product.run(gateway.state_dir, "doctor")
        assert (doctor.returncode, "what people write is not seen" in doctor.stdout) == (1, True)
        session = "agent:dev1:fork"
        with gateway.client(session) as client:
            work = Work(gateway, "fork", client.send)
            before = time.time()
            client.send("/stop")
            receipt = receipt_since(gateway, session, before)
            assert receipt["converged"], receipt["left"]
            assert work.alive == [], "the cookie came with the call"
            assert "what people write" in str(receipt["gateways"])
            gateway.model.scripts["again"] = [Step("here again")]
            client.send("[[again]] hello")
            until(lambda: "clawstop release" in str(client.events), TURN, "they are told how")
            assert not gateway.model.requests_since(before, "again")
            product.run(gateway.state_dir, "release", session)
            client.send("[[again]] hello")
            until(lambda: gateway.model.requests_since(before, "again"), TURN, "it answers")


def test_without_a_gate_it_says_so_and_still_ends_and_kills(tmp_path: Path) -> None:
    with protected(tmp_path, host=fork(host(), tmp_path / "fork", "before_tool_call")) as (
        gateway,
        product,
    ):
        session = "agent:dev1:gateless"
        with gateway.client(session) as client:
            work = Work(gateway, "gateless", client.send)
            before = time.time()
            receipt = product.json(gateway.state_dir, "stop", session)
            assert receipt["converged"], receipt["left"]
            assert work.alive == []
            assert "no tool of a stopped run can be refused" in str(receipt["gateways"])
            time.sleep(1)
            assert work.later(before + 0.5) == []
