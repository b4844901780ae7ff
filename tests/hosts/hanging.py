"""Owns a server that never answers: for fetches, for plugins' tools, and as an MCP server. It notes
when a client came and when it was gone."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .install import Host
from .loopback import Handler, Loopback

LOOPBACK = "2026.8.1"  # since then web_fetch may be let onto this machine
POLL = 0.02  # seconds between two looks whether the client is gone


@dataclass
class Visit:
    """One request that is not answered; `gone` is when its client gave up."""

    path: str
    came: float
    gone: float | None = None


@dataclass
class Hanging:
    visits: list[Visit] = field(default_factory=list)
    cancelled: list[float] = field(default_factory=list)  # MCP: when a call was called off

    def __post_init__(self) -> None:
        self._loopback = Loopback(type("HangingHandler", (_Handler,), {"server_": self}))
        self.url = self._loopback.url
        self.lock = threading.Lock()

    @property
    def closing(self) -> bool:
        return self._loopback.closing.is_set()

    def config(self, host: Host) -> dict[str, Any]:
        """What a gateway needs to reach it; an older one fetches nothing from this machine."""
        private = {"ssrfPolicy": {"dangerouslyAllowPrivateNetwork": True}}
        policy = private if not host.before(LOOPBACK) else {}
        server = {"url": f"{self.url}/mcp", "transport": "streamable-http"}
        return {
            "tools": {"web": {"fetch": {"enabled": True, **policy}}},
            "mcp": {"servers": {"hanging": server}},
        }

    def close(self) -> None:
        self._loopback.close()


class _Handler(Handler):
    server_: ClassVar[Hanging]

    def do_GET(self) -> None:
        if self.path == "/mcp":
            self.reply(405, {})
        else:
            self.hang()

    def do_DELETE(self) -> None:
        self.reply(405, {})

    def do_POST(self) -> None:
        call = json.loads(self.body())
        match call.get("method"):
            case "initialize":
                version = call["params"]["protocolVersion"]
                info = {"name": "hanging", "version": "1"}
                told: dict[str, Any] = {"protocolVersion": version, "serverInfo": info}
                self.result(call, told | {"capabilities": {"tools": {}}})
            case "tools/list":
                schema = {"type": "object", "properties": {}}
                tool = {"name": "forever", "description": "Hangs.", "inputSchema": schema}
                self.result(call, {"tools": [tool]})
            case "tools/call":
                self.hang()
            case "notifications/cancelled":
                self.server_.cancelled.append(time.time())
                self.reply(202, {})
            case _:
                self.result(call, {})

    def result(self, call: dict[str, Any], value: Any) -> None:
        self.reply(200, {"jsonrpc": "2.0", "id": call.get("id"), "result": value})

    def hang(self) -> None:
        visit = Visit(self.path, time.time())
        self.server_.visits.append(visit)
        self.close_connection = True
        while not self.server_.closing:
            readable, _, _ = select.select([self.connection], [], [], POLL)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                break
            time.sleep(POLL if readable else 0)
        visit.gone = time.time()
