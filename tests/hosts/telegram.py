"""Owns the fake Telegram: a Bot API on loopback that people write to and the gateway polls.

telegram = Telegram()
telegram.say("hello")                            # a DM from the default person
telegram.say("hello", chat=GROUP, sender=77)     # in a group, from somebody else
telegram.outbound(since)                         # what the gateway did, with times
telegram.shown()                                 # what the person sees now, edits applied
"""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from .loopback import Handler, Loopback

PERSON = 42
GROUP = -1001000000042  # supergroup ids are negative and start with -100
BOT = {"id": 1, "is_bot": True, "first_name": "Scripted", "username": "scripted_bot"}
POLL_LIMIT = 20.0  # seconds; the gateway asks for 30, and a killed one leaves its poll behind
POLLS = frozenset({"getUpdates", "getMe"})  # not outbound: nobody sees them
FLEETING = frozenset({"sendChatAction", "sendMessageDraft"})  # leave no message in the chat
ENTITY = re.compile(r"^/\w+|@\w+")  # a leading command, or a mention

Params = dict[str, Any]

NATIVE = ("/stop", "stop", "停止")  # of the words that tests use


@dataclass(frozen=True)
class Call:
    """One Bot API call of the gateway."""

    time: float
    method: str
    params: Params

    @property
    def text(self) -> str:
        return str(self.params.get("text") or self.params.get("caption") or "")

    @property
    def chat(self) -> int | None:
        chat = str(self.params.get("chat_id", ""))
        return int(chat) if re.fullmatch(r"-?\d+", chat) else None


class Telegram:
    """The server: give `config()` to a gateway, `close()` it at the end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[Call] = []
        self._updates: list[Params] = []  # not yet acknowledged by an offset
        self._shown: dict[int, dict[int, str]] = {}  # chat -> message id -> text
        self._refusing: frozenset[str] = frozenset()
        self._refused: list[Call] = []
        self._next_update = 1
        self._next_message = 100
        self._loopback = Loopback(type("TelegramHandler", (_Handler,), {"telegram": self}))
        self.url = self._loopback.url

    def config(self, **changes: Any) -> Params:
        """`channels.telegram` for this server: everybody may write, no mention needed."""
        return {
            "enabled": True,
            "botToken": f"{BOT['id']}:scripted",
            "apiRoot": self.url,
            "dmPolicy": "open",
            "allowFrom": ["*"],
            "groupPolicy": "open",
            "groups": {"*": {"requireMention": False}},
            "network": {"dangerouslyAllowPrivateNetwork": True},
            **changes,
        }

    def say(
        self, text: str, *, chat: int | None = None, sender: int = PERSON, quote: str = ""
    ) -> int:
        """A person writes, in a DM or in the group `chat`, perhaps about an earlier message that
        they quote; returns the message id."""
        with self._changed:
            message = self._message(sender if chat is None else chat, text)
            message["from"] = _person(sender)
            message["entities"] = [_entity(found) for found in ENTITY.finditer(text)]
            if quote:
                earlier = self._message(sender if chat is None else chat, quote)
                message["reply_to_message"] = {**earlier, "from": _person(sender)}
            self._updates.append({"update_id": self._next_update, "message": message})
            self._next_update += 1
            self._changed.notify_all()
            return int(message["message_id"])

    @property
    def calls(self) -> list[Call]:
        with self._changed:
            return list(self._calls)

    def outbound(self, since: float = 0.0, chat: int | None = None) -> list[Call]:
        """What the gateway did at `since` or later, without its polls; in one chat if named."""
        return [
            call
            for call in self.calls
            if call.time >= since
            and call.method not in POLLS
            and (chat is None or call.chat == chat)
        ]

    def shown(self, chat: int = PERSON) -> list[str]:
        """The bot's messages as the chat shows them now: edited, and without the deleted ones."""
        with self._changed:
            return list(self._shown.get(chat, {}).values())

    def refuse(self, *methods: str) -> None:
        """Fail these methods from now on, as a service that is down does; none: all work again."""
        with self._changed:
            self._refusing = frozenset(methods)

    def refused(self, text: str) -> bool:
        """Whether a message with this text was tried and refused."""
        with self._changed:
            return any(text in call.text for call in self._refused)

    def close(self) -> None:
        self._loopback.close()
        with self._changed:
            self._changed.notify_all()  # polls in flight end now

    def answer(self, method: str, params: Params) -> object:
        """Record a call and return its `result`."""
        call = Call(time.time(), method, params)
        with self._changed:
            if method in self._refusing:
                self._refused.append(call)
                raise ConnectionError(method)
            self._calls.append(call)
            match method:
                case "getUpdates":
                    return self._poll(params)
                case "getMe":
                    return BOT
                case "getChat":
                    return _chat(call.chat or PERSON)
                case "getMyCommands":
                    return []
                case "getWebhookInfo":
                    return {"url": "", "has_custom_certificate": False, "pending_update_count": 0}
                case "deleteMessage":
                    self._shown.get(call.chat or PERSON, {}).pop(int(params["message_id"]), None)
                case _ if method.startswith(("send", "edit")) and method not in FLEETING:
                    return self._show(call)
        return True

    def _poll(self, params: Params) -> list[Params]:
        offset = int(params.get("offset") or 0)
        self._updates = [update for update in self._updates if update["update_id"] >= offset]
        if not self._updates:
            self._changed.wait(min(float(params.get("timeout") or 0), POLL_LIMIT))
        return list(self._updates)

    def _show(self, call: Call) -> Params:
        message = self._message(call.chat or PERSON, call.text)
        message["from"] = BOT
        if "message_id" in call.params:  # an edit keeps its message
            message["message_id"] = int(call.params["message_id"])
        self._shown.setdefault(message["chat"]["id"], {})[message["message_id"]] = call.text
        return message

    def _message(self, chat: int, text: str) -> Params:
        self._next_message += 1
        return {
            "message_id": self._next_message,
            "date": int(time.time()),
            "chat": _chat(chat),
            "text": text,
        }


def _chat(chat: int) -> Params:
    if chat < 0:
        return {"id": chat, "type": "supergroup", "title": f"Group {-chat}"}
    return {"id": chat, "type": "private", "first_name": f"Person {chat}"}


def _person(user: int) -> Params:
    return {
        "id": user,
        "is_bot": False,
        "first_name": f"Person {user}",
        "username": f"person{user}",
    }


def _entity(found: re.Match[str]) -> Params:
    kind = "bot_command" if found[0].startswith("/") else "mention"
    return {"type": kind, "offset": found.start(), "length": len(found[0])}


class _Handler(Handler):
    telegram: ClassVar[Telegram]

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        where = urlsplit(self.path)
        params = {**_parse(self.body()), **dict(parse_qsl(where.query))}
        method = where.path.rsplit("/", 1)[-1]
        try:
            self.reply(200, {"ok": True, "result": self.telegram.answer(method, params)})
        except ConnectionError:
            told = {"ok": False, "error_code": 502, "description": "Bad Gateway"}
            self.reply(502, told)


def _parse(raw: bytes) -> Params:
    try:
        value = json.loads(raw or b"{}")
    except ValueError:  # a form; media comes as multipart, which is kept as it is
        text = raw.decode(errors="replace")
        return {"multipart": text} if text.startswith("--") else dict(parse_qsl(text))
    return value if isinstance(value, dict) else {"value": value}
