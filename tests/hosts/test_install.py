"""Into a person's OpenClaw and out again, with the host's own command line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from product import ROOT, Product

from .gateway import Gateway
from .install import Host, host
from .model import Step, execute
from .scenario import transcript, until

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(400)]


def openclaw(folder: Path, release: Host) -> Path:
    """The host's command, as npm would put it on PATH."""
    file = folder / "openclaw"
    file.write_text(f'#!/bin/sh\nexec "{release.node}" "{release.entry}" "$@"\n')
    file.chmod(0o755)
    return file


def test_install_protects_a_gateway_and_uninstall_takes_it_out(tmp_path: Path) -> None:
    release = host()
    product = Product(tmp_path / "clawstop")
    gateway = Gateway(
        tmp_path / "gateway", release, overrides={"plugins": {"allow": ["memory-core", "clawstop"]}}
    )
    command = str(openclaw(tmp_path, release))

    def clawstop(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*product.command, *args],
            env=gateway.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )

    before = gateway.config_path.read_text()
    assert "run openclaw" in clawstop("install", "--openclaw", command, "--dry-run").stdout
    assert gateway.config_path.read_text() == before
    done = clawstop("install", "--openclaw", command)
    assert done.returncode == 0, done.stderr
    home = Path(gateway.env()["HOME"])
    short = subprocess.run(
        [str(home / ".local/bin/clawstop"), "--version"], capture_output=True, text=True
    )
    assert short.stdout.startswith("clawstop, version"), short.stderr
    with gateway, gateway.client() as client:
        until(lambda: clawstop("doctor").returncode == 0, 30, "doctor finds nothing wrong")
        gateway.model.scripts["turn"] = [Step(tools=[execute("echo hi > hi")]), Step("done")]
        client.wait_final(client.send("[[turn]] go")["runId"])
        assert transcript(client)[-1].startswith("assistant: done")
        assert clawstop("stop", "main").returncode == 0
        status = json.loads(clawstop("status", "--json").stdout)
        assert status["latches"] == ["agent:main"]
        assert status["gateways"][0]["version"] == release.version
    done = clawstop("uninstall", "--openclaw", command)
    assert done.returncode == 0, done.stderr
    after = json.loads(gateway.config_path.read_text())["plugins"]
    assert "clawstop" not in after["allow"]
    assert not after.get("entries", {}).get("clawstop", {}).get("enabled")
    assert (gateway.state_dir / "clawstop/receipts.jsonl").exists(), "receipts are kept"
    assert not (home / ".local/bin/clawstop").exists()


def test_the_plugin_passes_clawhubs_own_check(tmp_path: Path) -> None:
    release = host()
    plugin = shutil.copytree(ROOT / "hooks" / "openclaw", tmp_path / "plugin")
    done = subprocess.run(
        [str(release.node), str(release.clawhub), "package", "validate", str(plugin)],
        # It asks the network too, so it needs the settings of this machine.
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "PATH": os.pathsep.join([str(release.node.parent), os.environ["PATH"]]),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Findings: none" in done.stdout
