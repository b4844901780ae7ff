"""After its acknowledgement a stopped run does nothing: many random stops on a real gateway.

A few on every run, 200 (takeovers: 300, crashes: 50) with `python3 skill test --soak`, and then
beside a gateway without clawstop. CLAWSTOP_TEST_SEED replays the same plan.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from .crashes import Crashes
from .gateway import Gateway
from .install import host
from .protected import protected
from .soak import NATIVE, WORDS, Soak
from .takeovers import Takeovers
from .telegram import Telegram

LONG = bool(os.environ.get("CLAWSTOP_TEST_SOAK"))
STOPS = 200 if LONG else 8
TAKEOVERS = 300 if LONG else 10
CRASHES = 50 if LONG else 2
WORKERS = 3 if LONG else 4

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(7200 if LONG else 600)]


@pytest.fixture
def phone() -> Iterator[Telegram]:
    server = Telegram()
    yield server
    server.close()


@pytest.fixture
def dice() -> random.Random:
    seed = os.environ.get("CLAWSTOP_TEST_SEED") or str(random.randrange(10**9))
    print(f"CLAWSTOP_TEST_SEED={seed}")
    return random.Random(seed)


def test_nothing_happens_after_the_acknowledgement_of_any_stop(
    tmp_path: Path, phone: Telegram, dice: random.Random
) -> None:
    ways = [f"page {word}" for word in (*WORDS, "chat.abort")]
    ways += [f"phone {word}" for word in WORDS] + ["shell stop"] * 3
    with protected(tmp_path, telegram=phone) as (gateway, product):
        soak = Soak(gateway, phone, product, dice)
        soak.run(STOPS, WORKERS, ways)
        print(json.dumps(soak.table(), indent=1, ensure_ascii=False))
        hooks = [g["hook_ms"] for g in product.json(gateway.state_dir, "status")["gateways"]]
        print(json.dumps({"time in our hooks": hooks}))
        chain = product.run(gateway.state_dir, "receipts", "--verify")
        assert chain.returncode == 0, chain.stdout
    assert soak.after == []


@pytest.mark.skipif(not LONG, reason="a comparison, not a check: `--soak` makes it")
def test_the_same_without_clawstop(tmp_path: Path, phone: Telegram, dice: random.Random) -> None:
    people = {"groupAllowFrom": ["42"], "groups": {"*": {"requireMention": False}}}
    overrides = {"channels": {"telegram": people}}
    agents = ("main", "dev1")
    with Gateway(tmp_path, host(), agents=agents, telegram=phone, overrides=overrides) as gateway:
        soak = Soak(gateway, phone, None, dice)
        soak.run(60, WORKERS, [f"page {word}" for word in NATIVE] + ["phone /stop", "phone stop"])
        print(json.dumps(soak.table(), indent=1, ensure_ascii=False))
    assert soak.after != [], "then nobody needs clawstop any more"


def test_no_message_that_takes_over_is_lost_or_doubled(
    tmp_path: Path, phone: Telegram, dice: random.Random
) -> None:
    with protected(tmp_path, telegram=phone) as (gateway, product):
        soak = Takeovers(gateway, phone, product, dice)
        soak.run(TAKEOVERS, 2, ["page", "page", "phone"])  # more, and the gateway stands still
        print(json.dumps(soak.table(), indent=1, ensure_ascii=False))
        wrong = [*soak.lost, *soak.doubled, *soak.after]
        assert not wrong, "\n".join(wrong)


def test_what_a_crash_cuts_off_goes_on_once_and_what_was_stopped_never(
    tmp_path: Path, phone: Telegram, dice: random.Random
) -> None:
    with protected(tmp_path, telegram=phone) as (gateway, product):
        plan = dice if LONG or os.environ.get("CLAWSTOP_TEST_SEED") else random.Random(1)
        soak = Crashes(gateway, phone, product, plan)
        soak.run(CRASHES)
        assert not soak.wrong, "\n".join(soak.wrong)
