"""Owns the host's web page in a real browser: what a person types, presses and sees there."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, WebSocket, expect, sync_playwright

from .gateway import Gateway

FLAGS = (
    "--no-sandbox",  # as root there is none
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
READY = 60.0  # seconds; the page takes 2-9 to load
Frame = dict[str, Any]


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        path = shutil.which("chromium")
        one = play.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield one
        finally:
            one.close()


class Page:
    """One session's chat. The token in the address logs in; on loopback nothing else is asked."""

    def __init__(self, browser: Browser, gateway: Gateway, session: str) -> None:
        self._frames: list[tuple[str, Frame]] = []
        self._context = browser.new_context(service_workers="block")
        self._page = self._context.new_page()
        self._page.on("websocket", self._listen)
        _, agent, rest = session.split(":", 2)
        path = agent if rest == "main" else f"{agent}/{rest}"
        self._page.goto(f"http://127.0.0.1:{gateway.port}/chat/{path}#token={gateway.token}")
        deadline = time.monotonic() + READY
        while not any(answer for _, answer in self.calls("chat.startup")):
            assert time.monotonic() < deadline, "the page loads no chat"
            self.pause(0.1)
        expect(self._composer).to_be_enabled(timeout=READY * 1000)

    def send(self, text: str) -> None:
        self._composer.fill(text)
        if text.startswith("/"):
            self._page.keyboard.press("Escape")  # the menu of commands
        self._composer.press("Enter")

    def press_stop(self) -> None:
        self._page.locator(".chat-send-btn--stop").click(timeout=READY * 1000)

    def shows(self, text: str) -> None:
        """Wait until a bubble has this text."""
        bubble = self._page.locator(".chat-bubble", has_text=text).last
        expect(bubble).to_be_visible(timeout=READY * 1000)

    def forgets(self, text: str) -> None:
        """Wait until it is not among what the person has said; our line may quote it."""
        bubbles = self._page.locator(".chat-group.user .chat-bubble", has_text=text)
        expect(bubbles).to_have_count(0, timeout=READY * 1000)

    def reload(self) -> None:
        self._page.reload()
        expect(self._composer).to_be_enabled(timeout=READY * 1000)

    def pause(self, seconds: float) -> None:
        """Let the page work; a plain sleep would hold its events up."""
        self._page.wait_for_timeout(seconds * 1000)

    def calls(self, method: str) -> list[tuple[Frame, Frame | None]]:
        """(params, answer) of what the page asked of the gateway."""
        answers = {frame["id"]: frame for way, frame in self._frames if way == "got"}
        return [
            (frame["params"], answers.get(frame["id"]))
            for way, frame in self._frames
            if way == "sent" and frame.get("method") == method
        ]

    def close(self) -> None:
        self._context.close()

    @property
    def _composer(self) -> Any:
        return self._page.get_by_label("Chat composer")

    def _listen(self, socket: WebSocket) -> None:
        def keep(way: str, data: str | bytes) -> None:
            frame = json.loads(data)
            if "id" in frame:
                self._frames.append((way, frame))

        socket.on("framesent", lambda data: keep("sent", data))
        socket.on("framereceived", lambda data: keep("got", data))
