"""The way of a newcomer: from ClawHub into a real gateway, a stop, and out without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clawstop import __version__
from product import ROOT

from .gateway import Gateway
from .install import Host, host
from .protected import Work, receipt_since
from .registry import Registry, bundle, ships
from .scenario import until
from .test_install import openclaw

pytestmark = [pytest.mark.gateway, pytest.mark.timeout(600)]

RULES = b"# Rules\r\n\r\nNo end"


@pytest.fixture
def registry() -> Iterator[Registry]:
    served = Registry(bundle(ROOT), __version__)
    yield served
    served.close()


def clawhub(release: Host, folder: Path, *args: str, **env: str) -> str:
    done = subprocess.run(
        [str(release.node), str(release.clawhub), "--no-input", "--workdir", str(folder), *args],
        env={"PATH": f"{release.node.parent}{os.pathsep}{os.defpath}", "HOME": str(folder), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_from_clawhub_to_a_stop_and_out_again(tmp_path: Path, registry: Registry) -> None:
    release = host()
    clawhub(release, tmp_path, "install", "clawstop", CLAWHUB_REGISTRY=registry.url)
    skill = tmp_path / "skills" / "clawstop"
    bundled = files(skill)
    assert sorted(name for name in bundled if not name.startswith(".")) == ships(ROOT)
    assert sum(map(len, bundled.values())) < 2 * 1024 * 1024
    assert not [file for file in skill.rglob("*") if file.is_file() and os.access(file, os.X_OK)]

    gateway = Gateway(tmp_path / "gateway", release)
    home = Path(gateway.env()["HOME"])
    config = gateway.config_path.read_bytes()
    rules = gateway.workspace() / "AGENTS.md"
    rules.write_bytes(RULES)
    command = str(openclaw(tmp_path, release))

    def clawstop(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["python3", str(skill / "skill"), *args],
            env={**gateway.env(), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )

    shown = clawstop("install", "--openclaw", command, "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "run openclaw plugins install" in shown.stdout
    assert f"added {rules} (main)" in shown.stdout
    assert (gateway.config_path.read_bytes(), rules.read_bytes()) == (config, RULES)
    done = clawstop("install", "--openclaw", command)
    assert "check that the plugin loads" in done.stdout, done.stderr
    assert "no gateway is running" in done.stdout, "it ends with doctor, which says what is next"
    assert b"You are the agent `main`" in rules.read_bytes()
    assert rules.read_bytes().startswith(RULES)
    installed = gateway.config_path.read_bytes(), rules.read_bytes()
    again = clawstop("install", "--openclaw", command)
    assert "the plugin is linked and enabled already" in again.stdout
    assert (gateway.config_path.read_bytes(), rules.read_bytes()) == installed
    with gateway, gateway.client() as client:
        until(lambda: clawstop("doctor").returncode == 0, 60, "doctor finds nothing wrong")
        work = Work(gateway, "downloaded", client.send)
        before = time.time()
        client.send("/stop")
        receipt = receipt_since(gateway, client.session, before)
        assert receipt["converged"], receipt["left"]
        assert work.alive == []
        assert clawstop("uninstall", "--openclaw", command, "--dry-run").returncode == 0
        assert rules.read_bytes() == installed[1]
    done = clawstop("uninstall", "--openclaw", command)
    assert done.returncode == 0, done.stderr
    assert gateway.config_path.read_bytes() == config, "byte for byte"
    assert rules.read_bytes() == RULES
    assert (gateway.state_dir / "clawstop/receipts.jsonl").exists(), "receipts are kept"
    assert not (home / ".local/bin/clawstop").exists()
    assert files(skill) == bundled, "an update finds it unchanged"
    purged = clawstop("uninstall", "--openclaw", command, "--purge")
    assert purged.returncode == 0, purged.stderr
    assert not (gateway.state_dir / "clawstop").exists()


def test_what_a_person_changed_meanwhile_stays_when_it_goes(tmp_path: Path) -> None:
    release = host()
    gateway = Gateway(tmp_path / "gateway", release)
    command = str(openclaw(tmp_path, release))

    def clawstop(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["python3", str(ROOT / "skill"), *args, "--openclaw", command],
            env={**gateway.env(), "PATH": os.environ["PATH"]},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )

    assert "check that the plugin loads" in clawstop("install").stdout
    text = gateway.config_path.read_text()
    assert '"full"' in text
    gateway.config_path.write_text(text.replace('"full"', '"coding"'))
    done = clawstop("uninstall")
    assert done.returncode == 0, done.stderr
    after = gateway.config_path.read_text()
    assert '"coding"' in after
    assert "clawstop" not in after


def test_the_host_installs_the_folder_as_a_skill_and_finds_it_fit(tmp_path: Path) -> None:
    release = host()
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "bundle.zip").write_bytes(bundle(ROOT))
    with zipfile.ZipFile(tmp_path / "bundle.zip") as archive:
        archive.extractall(folder)
    gateway = Gateway(tmp_path / "gateway", release)
    command = openclaw(tmp_path, release)

    def run(*args: str) -> str:
        done = subprocess.run(
            [str(command), *args],
            env=gateway.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "Installed clawstop" in run("skills", "install", str(folder))
    about = run("skills", "info", "clawstop", "--json")
    assert '"eligible": true' in about, about
    assert (gateway.workspace() / "skills/clawstop/SKILL.md").is_file()


def test_the_plugin_passes_clawhubs_own_check(tmp_path: Path) -> None:
    release = host()
    shutil.copytree(ROOT / "hooks" / "openclaw", tmp_path / "plugin")
    told = clawhub(
        release,
        tmp_path,
        *("package", "validate", str(tmp_path / "plugin")),
        *("--openclaw", str(release.package), "--out", str(tmp_path / "reports")),
    )
    assert "Plugin Inspector: PASS" in told
    # The whole store is read only on releases that cannot be asked for one entry: sessions.js.
    assert "Findings: 1\n" in told
    assert "sdk-load-session-store" in told
