"""Owns what a test gateway is told: its openclaw.json and its environment, all under one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .install import Host

Config = dict[str, Any]

PROVIDER, MODEL = "scripted", "scripted"
# From outside the test: nothing of the developer's own OpenClaw, clawstop or XDG folders gets in.
FOREIGN = ("OPENCLAW_", "CLAWSTOP_", "XDG_CONFIG", "XDG_DATA", "XDG_STATE", "XDG_CACHE")
OPEN = "2026.4.23"  # up to then a plugin may read conversations, and a client needs a device
OLD: Config = {
    "gateway": {"controlUi": {"allowInsecureAuth": True}},
    "diagnostics": {"enabled": True},  # as `install` sets it, where it is off by default
    # At a /new it would show the model the old conversation, script marks and all.
    "hooks": {"internal": {"entries": {"session-memory": {"enabled": False}}}},
}
QUIET = {
    "OPENCLAW_NO_RESPAWN": "1",  # the pid we started stays the gateway's
    "OPENCLAW_NO_AUTO_UPDATE": "1",
    "OPENCLAW_DISABLE_BONJOUR": "1",
    "OPENCLAW_SKIP_CRON": "1",
    "OPENCLAW_SKIP_CANVAS_HOST": "1",
    "OPENCLAW_SKIP_GMAIL_WATCHER": "1",
    "NO_COLOR": "1",
}


@dataclass(frozen=True)
class Folders:
    """The isolated places of one gateway."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def config(self) -> Path:
        return self.state / "openclaw.json"

    @property
    def log(self) -> Path:
        return self.root / "gateway.log"

    def workspace(self, agent: str) -> Path:
        return self.root / "workspaces" / agent

    def make(self, agents: Sequence[str]) -> None:
        for folder in (self.state, self.home, *map(self.workspace, agents)):
            folder.mkdir(parents=True, exist_ok=True)


def base(folders: Folders, port: int, token: str, model_url: str) -> Config:
    """A loopback gateway with the scripted model and nothing that acts on its own."""
    model = {
        "id": MODEL,
        "name": MODEL,
        "reasoning": False,
        "input": ["text"],
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
        "contextWindow": 128_000,
        "maxTokens": 8192,
    }
    provider = {
        "baseUrl": model_url,
        "apiKey": "scripted",
        "api": "openai-completions",
        "models": [model],
    }
    return {
        "gateway": {
            "mode": "local",
            "bind": "loopback",
            "port": port,
            "auth": {"mode": "token", "token": token},
        },
        "models": {
            "mode": "replace",
            "providers": {PROVIDER: provider},
            "catalogRefresh": {"enabled": False},  # it fetches a list from the network
        },
        "agents": {
            "defaults": {
                "model": {"primary": f"{PROVIDER}/{MODEL}"},
                "skipBootstrap": True,
                "heartbeat": {"every": "0m"},
            }
        },
        "tools": {"profile": "full"},
        "update": {"checkOnStart": False},
        # The default is one file in /tmp for every gateway of the machine.
        "logging": {"file": str(folders.root / "openclaw.log")},
    }


def roster(folders: Folders, agents: Sequence[str]) -> Config:
    """The agents, each with its own workspace; the first one owns what names no agent."""
    workspaces = {name: {"workspace": str(folders.workspace(name))} for name in agents}
    if len(agents) == 1:  # a single agent owns everything implicitly
        return {"agents": {"entries": workspaces}}
    owner = {"agentId": agents[0]}
    return {
        "agents": {
            "ownership": "explicit",
            "defaults": {"heartbeat": owner, "systemAgent": owner},
            "entries": workspaces,
        },
    }


def fitting(whole: Config, host: Host) -> Config:
    """The same, in the words of this release: older ones refuse keys that they do not know."""
    if host.before(OPEN):
        for entry in whole["plugins"].get("entries", {}).values():
            entry.pop("hooks", None)  # they may all read conversations
        whole = merge(whole, OLD)
    if knows(host, "agents.entries"):
        return whole
    agents, models = dict(whole["agents"]), dict(whole["models"])
    models.pop("catalogRefresh")
    agents.pop("ownership", None)
    entries = agents.pop("entries")  # the first in the list is the default
    defaults = {key: value for key, value in agents["defaults"].items() if key != "systemAgent"}
    defaults["heartbeat"] = {"every": "0m"}
    agents |= {"defaults": defaults, "list": [{"id": id, **rest} for id, rest in entries.items()]}
    return {**whole, "agents": agents, "models": models}


def knows(host: Host, key: str) -> bool:
    """Whether the reference that comes with this release has this key."""
    folder = host.package / "docs" / "gateway"
    return any(key in file.read_text(errors="replace") for file in folder.glob("config*.md"))


def channel(telegram: Config, owner: str) -> Config:
    """Telegram, its account bound to `owner`: with several agents an unbound one stays blocked."""
    match = {"channel": "telegram", "accountId": "default"}
    return {
        "channels": {"telegram": telegram},
        "bindings": [{"agentId": owner, "match": match}],
    }


def plugins(
    folder: Path | None, conversation: bool, settings: Mapping[str, Any], telegram: bool
) -> Config:
    """The plugin in `folder`; `conversation` lets its hooks read and change what is said."""
    # Without a list the host loads every bundled plugin and takes twice as long to start.
    bundled = ["memory-core", "telegram"] if telegram else ["memory-core"]
    if folder is None:
        return {"plugins": {"allow": bundled}}
    name = json.loads((folder / "openclaw.plugin.json").read_text())["id"]
    entry: Config = {"enabled": True, "config": dict(settings)}
    if conversation:
        entry["hooks"] = {"allowConversationAccess": True}
    return {
        "plugins": {
            "enabled": True,
            "allow": [*bundled, name],
            "load": {"paths": [str(folder.absolute())]},
            "entries": {name: entry},
        }
    }


def environment(folders: Folders, host: Host, extra: Mapping[str, str | None]) -> dict[str, str]:
    """The gateway's environment; None in `extra` removes a variable."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    path = f"{host.node.parent}{os.pathsep}{outside.get('PATH', os.defpath)}"
    inside: dict[str, str | None] = {
        **outside,
        **QUIET,
        "PATH": path,
        "SHELL": "/bin/bash",  # a CI machine may name none: then the host takes sh
        "HOME": str(folders.home),
        "OPENCLAW_STATE_DIR": str(folders.state),
        "OPENCLAW_CONFIG_PATH": str(folders.config),
        **extra,
    }
    return {key: value for key, value in inside.items() if value is not None}


def merge(*layers: Mapping[str, Any]) -> Config:
    """The later layers laid on the earlier: objects merge, everything else is replaced."""
    result: Config = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            if isinstance(value, Mapping):
                value = merge(below, value) if isinstance(below, Mapping) else merge(value)
            result[key] = value
    return result
