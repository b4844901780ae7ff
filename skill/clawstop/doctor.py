"""What is wrong, and what to do about it."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from . import client, receipts
from .errors import ClawstopError
from .paths import Paths, read_json

LOW_DISK = 50 * 1024 * 1024  # a stop needs a few kilobytes; below this the host itself breaks


@dataclass(frozen=True)
class Finding:
    ok: bool
    what: str
    fix: str = ""


async def examine(paths: Paths) -> list[Finding]:
    findings = [_openclaw(paths), _command(paths)]
    if not paths.openclaw.is_dir():
        return findings
    findings += [_private(paths), _disk(paths)]
    findings += await _engine(paths)
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
    command = (read_json(paths.command) or {}).get("command") or [""]
    runnable = os.access(str(command[0]), os.X_OK)
    return Finding(
        bool(command[0]) and runnable and all(Path(p).exists() for p in command if "/" in p),
        f"the gateway can start the engine: {' '.join(command) or 'not set up'}",
        "run: clawstop install",
    )


def _private(paths: Paths) -> Finding:
    mode = stat.S_IMODE(paths.root.stat().st_mode) if paths.root.exists() else 0o700
    return Finding(not mode & 0o077, f"{paths.root} is private", f"run: chmod 700 {paths.root}")


def _disk(paths: Paths) -> Finding:
    free = shutil.disk_usage(paths.openclaw).free
    return Finding(
        free > LOW_DISK,
        f"disk: {free // 2**20} MB free",
        "free some space: a stop that cannot be saved holds only while the engine runs",
    )


async def _engine(paths: Paths) -> list[Finding]:
    try:
        status = await client.call(paths, "status", {})
    except ClawstopError as error:
        return [Finding(False, f"engine: {error}", f"see {paths.log}")]
    findings = [
        Finding(True, f"engine: {status['version']}, plugins: {', '.join(status['plugins'])}")
    ]
    for gateway in status["gateways"]:
        name = f"gateway {gateway['host']} {gateway['version']} (pid {gateway['pid']})"
        ends = gateway.get("reply_registry") or gateway.get("harness_abort")
        findings.append(
            Finding(bool(ends), f"{name}: connected, runs can be ended", "update OpenClaw")
        )
    if not status["gateways"]:
        findings.append(
            Finding(
                False,
                "no gateway has the plugin loaded and connected",
                "start the gateway; if it runs: clawstop install, then restart it",
            )
        )
    findings += [Finding(False, problem, "see the message") for problem in status["problems"]]
    return findings
