"""What is wrong, and what to do about it."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import secrets
import shutil
import socket
import sqlite3
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import psutil

from . import agents, agentsmd, client, install, leftovers, receipts
from .agents import Config
from .errors import ClawstopError
from .paths import Paths, read_json

LOW_DISK = 50 * 1024 * 1024  # a stop needs a few kilobytes; below this the host itself breaks
START_SECONDS = 30.0  # the engine's command starts in half a second
GATEWAY_PORT = 18789  # the host's own default
LOOPBACK = "127.0.0.1"
TAILNET = re.compile(r"100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\.")  # 100.64.0.0/10
KNOCK_SECONDS = 2.0  # it answers in 20 ms; a busy one later
HELLO = b"connect.challenge"  # the first thing that a gateway says
# What to do about a file that is left alone, by why it is.
FIXES = {
    "edited": "take the block out, both marks and all between, to have it renewed",
    "marks": "take what is left of the block out, to have it renewed",
    "read-only": "make it writable, then: clawstop watch --once",
    "newer": "update clawstop here too",
    "another OpenClaw": "give its agents a workspace of their own",
    "another name": "make it a file of its own, then: clawstop watch --once",
}
FIX = "put a plain file there, then: clawstop watch --once"
TESTED = ("2026.9.6", "2026.7.35", "2026.4.9")  # by CI, each time; docs/hosts.md has more


@dataclass(frozen=True)
class Finding:
    ok: bool
    what: str
    fix: str = ""


async def examine(paths: Paths) -> list[Finding]:
    findings = [_openclaw(paths), _command(paths)]
    if not paths.openclaw.is_dir():
        return findings
    config = agents.read(paths)
    findings += [_config(config), _private(paths), _disk(paths), _database(paths)]
    findings += await _engine(paths, config)
    findings += await asyncio.to_thread(_files, paths, config)
    problems = receipts.verify(paths.receipts)
    findings.append(
        Finding(
            not problems,
            "receipts: " + ("the chain holds" if not problems else "; ".join(problems)),
            "somebody edited receipts.jsonl; compare it with a backup",
        )
    )
    return findings


def _openclaw(paths: Paths) -> Finding:
    return Finding(
        paths.openclaw.is_dir(),
        f"OpenClaw's state folder: {paths.openclaw}",
        "start OpenClaw once, or name the folder with --state-dir or OPENCLAW_STATE_DIR",
    )


def _command(paths: Paths) -> Finding:
    """Started as a service would: without anything that a person's shell has set."""
    command = [str(part) for part in (read_json(paths.command) or {}).get("command") or ()]
    told = f"the gateway can start the engine: {' '.join(command) or 'not set up'}"
    fix = "run: clawstop install"
    if not command or not os.access(command[0], os.X_OK):
        return Finding(False, told, fix)
    bare = {name: os.environ[name] for name in ("HOME", "SYSTEMROOT") if name in os.environ}
    try:
        done = subprocess.run(
            [*command[: command.index("engine")], "engine", "--check"],
            env={**bare, "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Finding(False, f"{told}: {error}", fix)
    if done.returncode:
        return Finding(False, f"{told}: {done.stderr.strip()[-200:]}", fix)
    return Finding(True, told)


def _config(config: Config) -> Finding:
    known = f"{len(config.agents)} agents in {config.files[0]}"
    homeless = [agent.id for agent in config.agents if agent.workspace is None]
    if homeless and not config.problem:
        told = f"the workspace of {', '.join(homeless)} is not an absolute path"
        return Finding(False, told, "write it as one: only the gateway knows where it is")
    fix = "mend it at that place; the gateway cannot read it either"
    return Finding(not config.problem, config.problem or known, fix)


def _private(paths: Paths) -> Finding:
    wrong = [
        file
        for file in (paths.root, paths.socket)
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077
    ]
    names = " ".join(map(str, wrong))
    told = f"{names} is open to others" if wrong else f"{paths.root} and its socket are private"
    return Finding(not wrong, told, f"run: chmod go= {names}")


def _disk(paths: Paths) -> Finding:
    free = shutil.disk_usage(paths.openclaw).free
    return Finding(
        free > LOW_DISK,
        f"disk: {free // 2**20} MB free",
        "free some space: a stop that cannot be saved holds only while the engine runs",
    )


def _database(paths: Paths) -> Finding:
    if not paths.database.exists():
        return Finding(True, "database: none yet")
    try:
        with closing(sqlite3.connect(f"{paths.database.as_uri()}?mode=ro", uri=True)) as db:
            said = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        said = str(error)
    fix = f"stop the gateway, move {paths.database} away, and start it again: stops begin anew"
    return Finding(said == "ok", f"database: {said}", fix)


async def _engine(paths: Paths, config: Config) -> list[Finding]:
    try:
        status = await client.call(paths, "status", {})
    except ClawstopError as error:
        return [Finding(False, f"engine: {error}", f"see {paths.log}")]
    plugins = ", ".join(status["plugins"])
    findings = [Finding(True, f"engine: {status['version']}, plugins: {plugins}")]
    for gateway in status["gateways"]:
        findings += _gateway(gateway)
    if not status["gateways"]:
        findings += [_plugin(config), await asyncio.to_thread(_no_gateway, config)]
    else:
        findings.append(Finding(True, f"fence: {status['settings']['fence']}"))
        told = "cookies on real tools: not looked at; `clawstop doctor --canary` does"
        findings.append(Finding(True, told))
    dead = status.get("orphans", ())
    findings.append(
        Finding(
            not dead,
            f"processes of stopped runs: {', '.join(map(_named, dead)) or 'none'}",
            "run: clawstop stop everything",
        )
    )
    # A gateway's own lacks are said above.
    mine = [text for text in status["problems"] if not text.startswith("reduced: ")]
    return [*findings, *(Finding(False, problem, "see the message") for problem in mine)]


def _named(process: dict[str, Any]) -> str:
    return f"{process['pid']} {str(process['command'])[:60]}"


def _gateway(gateway: dict[str, Any]) -> Iterator[Finding]:
    name = f"gateway {gateway['host']} {gateway['version']} (pid {gateway['pid']})"
    turns = (gateway.get("hook_ms") or {}).get("turn") or {}
    seen = f", {turns['count']} turns seen" if turns.get("count") else ""
    known = gateway["version"] in TESTED
    release = "" if known else "; not a release of every test run, see docs/hosts.md"
    yield Finding(True, f"{name}: the plugin is loaded and connected{seen}{release}")
    for limit in gateway.get("limits", ()):
        yield Finding(True, f"{name}: a limit of this release: {limit}")
    for lost in gateway.get("reduced", ()):
        what, _, fix = str(lost).partition("; ")
        yield Finding(False, f"{name}: reduced: {what}", fix or "update OpenClaw")


def _plugin(config: Config) -> Finding:
    """What the next gateway would load; one that runs tells more."""
    linked = install.is_linked(config)
    enabled = config.entry().get("enabled") is True
    word = "not linked" if not linked else "linked and enabled" if enabled else "not enabled"
    told = f"the plugin is {word} in OpenClaw's config"
    return Finding(linked and enabled, told, "run: clawstop install")


def _no_gateway(config: Config) -> Finding:
    """The worst case: a gateway runs, and is not protected."""
    if port := gateway_without_us(config):
        return Finding(
            False,
            f"NOT PROTECTED: a gateway answers on port {port}, and clawstop is not loaded in it",
            "run: clawstop install, then restart the gateway, then: clawstop doctor",
        )
    return Finding(
        False,
        "no gateway is running",
        "start the gateway; if it runs: clawstop install, then restart it",
    )


def gateway_without_us(config: Config) -> int:
    """The port on which a gateway answers; 0 when none does."""
    about = config.raw.get("gateway")
    about = about if isinstance(about, dict) else {}
    told = str(os.environ.get("OPENCLAW_GATEWAY_PORT") or about.get("port") or "")
    number = int(told) if told.isascii() and told.isdigit() and len(told) < 6 else 0
    port = number if 0 < number < 65536 else GATEWAY_PORT
    tls = about.get("tls")
    secure = isinstance(tls, dict) and tls.get("enabled") is True
    return port if any(_is_gateway(port, host, secure) for host in _hosts(about)) else 0


def _hosts(about: dict[str, Any]) -> list[str]:
    """Where it may listen: not every gateway does on the loopback address."""
    bind, chosen = about.get("bind"), about.get("customBindHost")
    hosts = [LOOPBACK]
    if bind == "custom" and isinstance(chosen, str) and chosen not in ("", "0.0.0.0", "::"):
        hosts.append(chosen)
    if bind in ("tailnet", "auto"):
        mine = (one.address for every in psutil.net_if_addrs().values() for one in every)
        hosts += [address for address in mine if TAILNET.match(address)]
    return hosts


def _is_gateway(port: int, host: str = LOOPBACK, secure: bool = False) -> bool:
    """Whether what listens there says hello as a gateway does, at once and unasked."""
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    asked = f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
    asked += f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    said = b""
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), KNOCK_SECONDS))
            if secure:
                connection = stack.enter_context(_unchecked().wrap_socket(connection))
            connection.sendall(asked.encode())
            while HELLO not in said and len(said) < 4096 and (more := connection.recv(4096)):
                said += more
    except (OSError, ValueError):  # a name that is none, too
        return False
    return HELLO in said


def _unchecked() -> ssl.SSLContext:
    """A gateway's certificate is mostly its own, and nothing is told to it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _files(paths: Paths, config: Config) -> list[Finding]:
    """The agents' own files, and what other tools have left."""
    try:
        reports = agentsmd.sync(config.agents, config.protocol, paths.root, dry_run=True)
    except ClawstopError as error:
        return [Finding(False, f"your own template cannot be used: {error}", "mend it there")]
    there = sum(report.did == "same" for report in reports)
    findings = [Finding(True, f"AGENTS.md: {there} of {len(reports)} with our block")]
    for report in reports:
        if report.did in agentsmd.CHANGED:
            what = f"{report.file}: the block is not as it should be"
            findings.append(Finding(False, what, "run: clawstop watch --once"))
        elif not report.ok:
            told = f"{report.file} is left alone: {report.why}"
            fix = next((fix for words, fix in FIXES.items() if words in report.why), FIX)
            findings.append(Finding(False, told, fix))
    for left in leftovers.find(paths, config.agents):
        told = f"{left.tool} has left something: {left.what}"
        fix = "run: clawstop install --replace" if left.remove else "do as it says"
        findings.append(Finding(False, told, fix))
    return findings
