"""Owns the fake Feishu: its open API on loopback, and the people who write to the gateway's bot.

feishu = Feishu()
gateway = Gateway(root, host(), overrides=feishu.overrides(), env=feishu.env())
install(gateway)                                  # the channel is a package of its own
feishu.say("hello")                               # a DM from the default person
feishu.say("hello", chat=GROUP, sender="ou_eve")  # in a group, from somebody else
feishu.outbound(since)                            # what the gateway did, with times
feishu.shown()                                    # what the person sees now, cards filled in

The plugin takes an https API only, so the fake has a certificate for a day, which the gateway
trusts through `env()`. Events are posted to the plugin's webhook.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

from .gateway import Gateway
from .install import HostUnavailable
from .loopback import Handler, Loopback

PACKAGE = "npm:@openclaw/feishu@2026.9.5"  # the newest there is for 2026.9.6
PERSON = "ou_person"
GROUP = "oc_group"
BOT = {"open_id": "ou_bot", "app_name": "Scripted", "activate_status": 2}
APP, SECRET = "cli_scripted", "scripted"
WEBHOOK = "/feishu/events"
INSTALL_TIMEOUT = 300.0  # seconds; measured 30-45, most of it the host's own checks
DELIVERY_TIMEOUT = 60.0  # seconds; the webhook listens some seconds after the gateway is ready
DELIVERY_POLL = 0.1  # seconds between two attempts; a closed port refuses at once
CERTIFICATE_TIMEOUT = 30.0  # seconds; openssl takes milliseconds
PLUMBING = re.compile(r"/(auth|bot|contact)/")  # not outbound: nobody sees them

Params = dict[str, Any]


def install(gateway: Gateway) -> None:
    """Have the host install the channel into this gateway's state; before its start.

    The host refuses the channel its inbound queue unless its own command installed it from the
    registry. The command gets a config of its own: one that names a channel which is not there yet
    sends the host looking for it in other places first.
    """
    bare = gateway.root / "install.json"
    bare.write_text("{}")
    openclaw = [str(gateway.host.node), str(gateway.host.entry)]
    done = subprocess.run(
        [*openclaw, "plugins", "install", PACKAGE, "--pin", "--force", "--accept-capabilities"],
        env={**gateway.env(), "OPENCLAW_CONFIG_PATH": str(bare)},
        cwd=gateway.root,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT,
    )
    if done.returncode:
        raise HostUnavailable(f"{PACKAGE} was not installed:\n{done.stdout}{done.stderr}")


@dataclass(frozen=True)
class Call:
    """One API call of the gateway; `chat` is where it shows, `path` starts behind /open-apis."""

    time: float
    method: str
    path: str
    params: Params
    chat: str | None

    @property
    def text(self) -> str:
        return _text(self.params.get("content"))


class Feishu:
    """The server: give `overrides()` and `env()` to a gateway, `close()` it at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Call] = []
        self._cards: dict[str, str] = {}  # card id -> text
        self._chats: dict[str, str] = {}  # message id -> chat, people's and the bot's
        self._shown: dict[str, dict[str, Params]] = {}  # chat -> message id -> as it was sent
        self._serial = itertools.count(1)
        self._folder = tempfile.TemporaryDirectory(prefix="feishu-")
        folder = Path(self._folder.name)
        context = _certified(folder / "certificate.pem")
        self._trusted = folder / "trusted.pem"
        self._trusted.write_text(_extra() + (folder / "certificate.pem").read_text())
        members = {"feishu": self, "context": context}
        self._loopback = Loopback(type("FeishuHandler", (_Handler,), members))
        self.url = self._loopback.url.replace("http:", "https:", 1)
        self.port = _free_port()

    def config(self, **changes: Any) -> Params:
        """`channels.feishu` for this server: everybody may write, no mention needed."""
        return {
            "enabled": True,
            "appId": APP,
            "appSecret": SECRET,
            "domain": self.url,
            "connectionMode": "webhook",
            "webhookPort": self.port,
            "webhookPath": WEBHOOK,
            "verificationToken": SECRET,
            "encryptKey": SECRET,
            "dmPolicy": "open",
            "allowFrom": ["*"],
            "groupPolicy": "open",
            **changes,
        }

    def overrides(self, *plugins: Path, owner: str = "main", **changes: Any) -> Params:
        """For a gateway: the channel, its account bound to `owner`, beside the `plugins` it has."""
        names = [json.loads((it / "openclaw.plugin.json").read_text())["id"] for it in plugins]
        match = {"channel": "feishu", "accountId": "default"}
        return {
            "channels": {"feishu": self.config(**changes)},
            "bindings": [{"agentId": owner, "match": match}],
            "plugins": {"allow": ["memory-core", "feishu", *names]},
        }

    def env(self) -> dict[str, str | None]:
        """What makes the gateway's Node trust this server, beside whom it trusts already."""
        return {"NODE_EXTRA_CA_CERTS": str(self._trusted)}

    def say(self, text: str, *, chat: str | None = None, sender: str = PERSON) -> str:
        """A person writes, in a DM or in the group `chat`; returns the message id."""
        message, now = self._id("om"), str(int(time.time() * 1000))
        where = chat or _dm(sender)
        with self._lock:
            self._chats[message] = where
        self._deliver(
            {
                "schema": "2.0",
                "header": {
                    "event_id": self._id("ev"),
                    "event_type": "im.message.receive_v1",
                    "create_time": now,
                    "token": SECRET,
                    "app_id": APP,
                },
                "event": {
                    "sender": {"sender_id": {"open_id": sender}, "sender_type": "user"},
                    "message": {
                        "message_id": message,
                        "create_time": now,
                        "chat_id": where,
                        "chat_type": "group" if chat else "p2p",
                        "message_type": "text",
                        "content": json.dumps({"text": text}),
                    },
                },
            }
        )
        return message

    @property
    def calls(self) -> list[Call]:
        with self._lock:
            return list(self._calls)

    def outbound(self, since: float = 0.0, chat: str | None = None) -> list[Call]:
        """What the gateway did at `since` or later, without plumbing; in one chat if named."""
        return [
            call
            for call in self.calls
            if call.time >= since
            and not PLUMBING.match(call.path)
            and (chat is None or call.chat == chat)
        ]

    def shown(self, chat: str | None = None) -> list[str]:
        """The bot's messages as the chat shows them now: edited, and without the deleted ones."""
        with self._lock:
            return [self._read(sent) for sent in self._shown.get(chat or _dm(PERSON), {}).values()]

    def close(self) -> None:
        self._loopback.close()
        self._folder.cleanup()

    def answer(self, method: str, path: str, params: Params) -> Params:
        """Record a call and return what Feishu would say."""
        with self._lock:
            call = Call(time.time(), method, path, params, self._chat(path, params))
            self._calls.append(call)
            return {"code": 0, "msg": "ok", **self._do(call)}

    def _do(self, call: Call) -> Params:
        match call.method, call.path.strip("/").split("/"):
            case "POST", ["auth", *_]:
                return {"tenant_access_token": "t-scripted", "expire": 7200}
            case _, ["bot", "v3", "info"]:
                return {"bot": BOT}
            case _, ["contact", "v3", "users", person]:
                return {"data": {"user": {"open_id": person, "name": f"Person {person}"}}}
            case "POST", ["im", "v1", "messages"] | ["im", "v1", "messages", _, "reply"]:
                return {"data": self._show(self._id("om"), call)}
            case "PUT" | "PATCH", ["im", "v1", "messages", message]:
                return {"data": self._show(message, call)}
            case "DELETE", ["im", "v1", "messages", message]:
                self._shown.get(call.chat or "", {}).pop(message, None)
            case "POST", ["im", "v1", "messages", _, "reactions"]:
                return {"data": {"reaction_id": self._id("re")}}
            case "POST", ["cardkit", "v1", "cards"]:
                card = self._id("card")
                self._cards[card] = _text(call.params["data"])
                return {"data": {"card_id": card}}
            case "PUT", ["cardkit", "v1", "cards", card, "elements", "content", *_]:
                self._cards[card] = call.text or _text(call.params.get("element"))
        return {"data": {}}

    def _show(self, message: str, call: Call) -> Params:
        chat = call.chat or _dm(PERSON)
        self._chats[message] = chat
        self._shown.setdefault(chat, {})[message] = call.params
        return {"message_id": message, "chat_id": chat}

    def _read(self, sent: Params) -> str:
        content = json.loads(sent["content"])
        card = content.get("data", {}).get("card_id") if content.get("type") == "card" else None
        return _text(content) if card is None else self._cards[card]

    def _chat(self, path: str, params: Params) -> str | None:
        """Where a call shows: the chat it names, or that of the message in its path."""
        if params.get("receive_id_type") == "open_id":
            return _dm(str(params["receive_id"]))
        if "receive_id" in params:
            return str(params["receive_id"])
        return next((self._chats[part] for part in path.split("/") if part in self._chats), None)

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._serial)}"

    def _deliver(self, event: Params) -> None:
        """Post to the webhook, signed; again until it is there, as Feishu does too."""
        body = json.dumps(event)
        stamp, nonce = str(int(time.time())), "nonce"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{WEBHOOK}",
            data=body.encode(),
            headers={
                "content-type": "application/json",
                "x-lark-request-timestamp": stamp,
                "x-lark-request-nonce": nonce,
                "x-lark-signature": _sha256(stamp + nonce + SECRET + body),
            },
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + DELIVERY_TIMEOUT
        while True:
            try:
                direct.open(request, timeout=DELIVERY_TIMEOUT).close()
                return
            except urllib.error.HTTPError as refused:
                with refused:
                    why = refused.read().decode(errors="replace")
                raise ConnectionError(f"the webhook said {refused.code}: {why}") from refused
            except OSError:  # nobody listens there yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(DELIVERY_POLL)


def _dm(person: str) -> str:
    """The chat of the bot and one person."""
    return f"oc_{person}"


def _text(content: object) -> str:
    """The text in a message, a post, a card or a piece of one; Feishu nests JSON in strings."""
    if isinstance(content, str):
        try:
            return _text(json.loads(content))
        except ValueError:
            return content
    if isinstance(content, list):
        return "\n".join(filter(None, map(_text, content)))
    if not isinstance(content, dict) or content.get("element_id") == "note":
        return ""
    if content.get("tag") in ("text", "md", "markdown", "plain_text"):
        return str(content.get("text") or content.get("content") or "")
    if isinstance(content.get("text"), str):
        return str(content["text"])
    parts = (_text(part) for part in content.values() if isinstance(part, dict | list))
    return "\n".join(filter(None, parts))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _certified(path: Path) -> ssl.SSLContext:
    """A server's context with a certificate for 127.0.0.1, which is left at `path`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise HostUnavailable("openssl is not on PATH: the fake Feishu needs a certificate")
    key = path.with_name("key.pem")
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1"
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [openssl, *words.split(), *name, "-keyout", str(key), "-out", str(path)],
        check=True,
        capture_output=True,
        timeout=CERTIFICATE_TIMEOUT,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key)
    return context


def _extra() -> str:
    """The certificates that Node is told to trust here anyway, such as a company's own."""
    path = os.environ.get("NODE_EXTRA_CA_CERTS")
    return f"{Path(path).read_text()}\n" if path else ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _Handler(Handler):
    feishu: ClassVar[Feishu]
    context: ClassVar[ssl.SSLContext]

    def setup(self) -> None:
        # Here and not at the listening socket: a slow handshake holds up its own thread only.
        self.request = self.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def do_GET(self) -> None:
        self.do_POST()

    def do_PUT(self) -> None:
        self.do_POST()

    def do_PATCH(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        where = urlsplit(self.path)
        params = {**json.loads(self.body() or b"{}"), **dict(parse_qsl(where.query))}
        path = where.path.removeprefix("/open-apis")
        self.reply(200, self.feishu.answer(self.command, path, params))
