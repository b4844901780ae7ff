"""What is shown after a stop: nothing by default; with live previews, what was on its way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from clawstop.limits import PREVIEWS

from .conftest import Limited
from .gateway import Gateway
from .model import Step
from .protected import GONE, TURN, protected
from .scenario import until
from .telegram import PERSON, Call, Telegram

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(300)]

WORDS = "stale words " * 150
PARTIAL: dict[str, Any] = {"channels": {"telegram": {"streaming": {"mode": "partial"}}}}
ROUNDS = 3
LATE = 4  # edits of a preview that were on their way; 0 to 2 were seen


@pytest.fixture(scope="module", params=["strict", "previews"])
def fenced(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, Telegram, str]]:
    telegram = Telegram()
    settings = {} if request.param == "strict" else {"fence": request.param}
    root = tmp_path_factory.mktemp(request.param)
    options: dict[str, Any] = {"plugin_config": settings, "overrides": PARTIAL}
    with protected(root, telegram=telegram, **options) as (gateway, _):
        yield gateway, telegram, request.param
    telegram.close()


def streaming(gateway: Gateway, telegram: Telegram, name: str) -> list[Call]:
    """A run that writes for a long time; what is shown of it after two seconds."""
    gateway.model.scripts[name] = [Step(WORDS, chunk=20, chunk_delay=0.2)]
    before = time.time()
    telegram.say(f"[[{name}]] go")
    until(lambda: gateway.model.requests_since(before, name), TURN, "it writes")
    begun = time.time()
    until(lambda: stale(telegram, before) or time.time() > begun + 8, TURN, "it shows, or not")
    time.sleep(1)
    return stale(telegram, before)


def stale(telegram: Telegram, since: float) -> list[Call]:
    return [call for call in telegram.outbound(since, PERSON) if "stale" in call.text]


def test_after_a_stop(fenced: tuple[Gateway, Telegram, str], limit: Limited) -> None:
    gateway, telegram, fence = fenced
    fence = "previews" if fence == "strict" and limit(PREVIEWS) else fence
    for number in range(ROUNDS):
        shown = streaming(gateway, telegram, f"stop{number}")
        assert bool(shown) == (fence == "previews")
        said = time.time()
        telegram.say("/stop")
        until(partial(answered, telegram, said), GONE, "our line")
        until(lambda: not kept(telegram), GONE, "the preview is gone")
        late = stale(telegram, said)
        print(f"{fence}: {len(late)} late edits after a stop")
        assert len(late) <= (0 if fence == "strict" else LATE)
        gone = time.time()
        time.sleep(1)
        assert not stale(telegram, gone), "what was on its way has arrived"


def test_after_a_new_message(fenced: tuple[Gateway, Telegram, str], limit: Limited) -> None:
    gateway, telegram, fence = fenced
    fence = "previews" if fence == "strict" and limit(PREVIEWS) else fence
    for number in range(ROUNDS):
        streaming(gateway, telegram, f"next{number}")
        gateway.model.scripts[f"fresh{number}"] = [Step(f"fresh {number}")]
        said = time.time()
        telegram.say(f"[[fresh{number}]] no, this")
        until(partial(shows, telegram, f"fresh {number}"), GONE, "the answer")
        until(lambda: not kept(telegram), GONE, "the preview is gone")
        late = stale(telegram, said)
        print(f"{fence}: {len(late)} late edits after a new message")
        assert len(late) <= (0 if fence == "strict" else LATE)


def answered(telegram: Telegram, since: float) -> bool:
    return any("Stopped" in call.text for call in telegram.outbound(since, PERSON))


def shows(telegram: Telegram, text: str) -> bool:
    return text in telegram.shown()


def kept(telegram: Telegram) -> list[str]:
    return [text for text in telegram.shown() if "stale" in text]
