"""Into a person's OpenClaw and out again, with the host's own command line."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from clawstop import doctor
from clawstop.limits import REWRITES
from product import Product

from .config import knows
from .conftest import Limited
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


def roster() -> bytes:
    """An agent, as this release has them in its config."""
    return b"entries: {main: {}}" if knows(host(), "agents.entries") else b'list: [{id: "main"}]'


class Home:
    """A person's home with an OpenClaw that was set up and does not run."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "home" / ".openclaw"
        self.state.mkdir(parents=True)
        self._command = str(openclaw(folder, host()))
        kept = {name: value for name, value in os.environ.items() if "OPENCLAW" not in name}
        self._env = {**kept, "HOME": str(folder / "home"), "OPENCLAW_STATE_DIR": str(self.state)}

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def clawstop(self, product: Product, *words: str) -> str:
        return self.run(*product.command, *words, "--openclaw", self._command)

    def loaded(self) -> str:
        deep = [] if host().before("2026.5.12") else ["--runtime"]
        told = self.run(self._command, "plugins", "inspect", "clawstop", *deep, "--json")
        plugin = json.loads(told[told.index("{") :])["plugin"]
        return str(plugin.get("rootDir") or Path(plugin["source"]).parent)


@pytest.mark.soak
def test_of_two_downloads_the_one_that_was_installed_last_is_loaded(tmp_path: Path) -> None:
    home = Home(tmp_path)
    old, new = Product(tmp_path / "old"), Product(tmp_path / "new")
    config = home.state / "openclaw.json"
    before = b"{ // mine\n  agents: {%b},\n}\n" % roster()
    config.write_bytes(before)
    home.clawstop(old, "install")
    home.clawstop(new, "install")
    assert home.loaded() == str(new.plugin)
    assert str(old.plugin) not in config.read_text()
    told = home.clawstop(new, "install")
    assert "linked and enabled already" in told
    # As it was left by one that did not look for others.
    both = json.loads(config.read_text())
    both["plugins"]["load"]["paths"].insert(0, str(old.plugin))
    config.write_text(json.dumps(both))
    home.clawstop(new, "uninstall")
    assert config.read_bytes() == before


@pytest.mark.soak
def test_a_config_with_includes_is_as_it_was(tmp_path: Path) -> None:
    home, product = Home(tmp_path), Product(tmp_path / "clawstop")
    texts = {
        home.state / "openclaw.json": b"{ // mine\n  agents: {%b},\n"
        b"  plugins: {$include: './plugins.json5'},\n}\n" % roster(),
        home.state / "plugins.json5": b"{ // theirs\n  allow: ['memory-core'],\n}\n",
    }
    for file, text in texts.items():
        file.write_bytes(text)
    home.clawstop(product, "install")
    assert home.loaded() == str(product.plugin)
    home.clawstop(product, "uninstall")
    assert {file: file.read_bytes() for file in texts} == texts


def is_back(now: str, before: str, told: str, limit: Limited) -> bool:
    return now == before or (limit(REWRITES) and "as it was before us: " in told)


def test_settings_that_were_there_before_us_come_back_with_their_comments(
    tmp_path: Path, limit: Limited
) -> None:
    home, product = Home(tmp_path), Product(tmp_path / "clawstop")
    config = home.state / "openclaw.json"
    before = (
        b"{ // mine\n  agents: {%b},\n  plugins: {entries: {\n"
        b"    clawstop: {config: {protocol: 'off'}}, // for later\n  }},\n}\n" % roster()
    )
    config.write_bytes(before)
    home.clawstop(product, "install")
    assert home.loaded() == str(product.plugin)
    told = home.clawstop(product, "uninstall")
    assert is_back(config.read_text(), before.decode(), told, limit)


def test_install_protects_a_gateway_and_uninstall_takes_it_out(
    tmp_path: Path, limit: Limited
) -> None:
    release = host()
    product = Product(tmp_path / "clawstop")
    allowed = {"plugins": {"allow": ["memory-core", "clawstop"]}}
    # Without it 2026.7 takes a config that is put back for a damaged one.
    written = {"meta": {"lastTouchedVersion": release.version}}
    gateway = Gateway(tmp_path / "gateway", release, overrides={**allowed, **written})
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

    file = gateway.workspace("main") / "AGENTS.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("# Hello\n")
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
        assert doctor._is_gateway(gateway.port), "so it is told when it is not protected"
        until(lambda: clawstop("doctor").returncode == 0, 120, "doctor finds nothing wrong")
        gateway.model.scripts["turn"] = [Step(tools=[execute("echo hi > hi")]), Step("done")]
        client.wait_final(client.send("[[turn]] go")["runId"])
        assert transcript(client)[-1].startswith("assistant: done")
        assert clawstop("stop", "main").returncode == 0
        status = json.loads(clawstop("status", "--json").stdout)
        assert status["latches"] == ["agent:main"]
        assert status["gateways"][0]["version"] == release.version
        assert "clawstop:begin" in file.read_text(), "the agent is told"
        done = clawstop("uninstall", "--openclaw", command)
        assert done.returncode == 0, done.stderr
        time.sleep(3)  # a gateway that runs would have put the blocks back within one
        assert file.read_text() == "# Hello\n"
    now = gateway.config_path.read_text()
    assert is_back(now, before, done.stdout, limit), "to the byte"
    assert (gateway.state_dir / "clawstop/receipts.jsonl").exists(), "receipts are kept"
    assert not (home / ".local/bin/clawstop").exists()
