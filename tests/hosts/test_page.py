"""An open page of the host's own keeps working after a rollback and after a restore."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from product import Product

from .gateway import Gateway
from .model import Step, execute
from .page import Page, browser
from .protected import TURN, receipt_since
from .scenario import alive, until

pytestmark = [
    pytest.mark.gateway,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium"),
]
Running = tuple[Gateway, Product]
NUMBERS = itertools.count(62000)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as one:
        yield one


def refused(page: Page) -> list[str]:
    """Messages of the person that the gateway did not take."""
    sent = page.calls("chat.send")
    return [params["message"] for params, answer in sent if not answer or not answer.get("ok")]


@pytest.mark.parametrize("how", ["the button", "/stop"])
def test_a_page_that_stays_open(running: Running, chromium: Browser, how: str) -> None:
    gateway, product = running
    name = how.strip("/").replace(" ", "-")
    session = f"agent:main:page-{name}"
    sleep = f"sleep {next(NUMBERS)}"
    scripts = gateway.model.scripts
    scripts[f"one-{name}"] = [Step("FIRST-ANSWER")]
    scripts[f"two-{name}"] = [Step(tools=[execute(sleep)])]
    scripts[f"three-{name}"] = [Step("THIRD-ANSWER")]
    scripts[f"four-{name}"] = [Step("FOURTH-ANSWER")]
    with gateway.client(session) as client:
        client.wait_final(client.send(f"[[one-{name}]] FIRST-QUESTION")["runId"])
    page = Page(chromium, gateway, session)
    try:
        page.shows("FIRST-ANSWER")
        page.send(f"[[two-{name}]] THE-TASK")
        page.shows("THE-TASK")
        until(lambda: alive(gateway, sleep), TURN, "the task runs")
        since = time.time()
        if how == "/stop":
            page.send("/stop")
        else:
            page.press_stop()
        receipt = receipt_since(gateway, session, since)
        assert receipt["converged"], receipt["left"]
        page.forgets("THE-TASK")
        page.shows("FIRST-ANSWER")
        page.shows("Stopped")
        page.send(f"[[three-{name}]] THIRD-QUESTION")
        page.shows("THIRD-ANSWER")
        assert refused(page) == []

        done = product.run(gateway.state_dir, "restore", receipt["id"], "--force")
        assert done.returncode == 0, done.stderr
        page.shows("THE-TASK")
        page.reload()  # until then it may keep what it has sent itself
        page.shows("THE-TASK")
        page.forgets("THIRD-QUESTION")
        page.send(f"[[four-{name}]] FOURTH-QUESTION")
        page.shows("FOURTH-ANSWER")
        assert refused(page) == []
    finally:
        page.close()
