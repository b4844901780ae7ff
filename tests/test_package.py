"""What ships: the wheel holds all it needs and nothing with a generic name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_puts_only_our_own_names_into_site_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"clawstop", "clawstop_hooks"}
    assert "clawstop/_data/hooks/openclaw/index.js" in names
    assert "clawstop/_data/agents_md_templates/zh.md" in names
    assert not any("test" in name for name in names)


def test_an_installed_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        "import clawstop.cli, clawstop.starter as i; from clawstop.settings import resource;"
        "assert resource('hooks','openclaw','index.js').is_file();"
        "from clawstop.plugins import Plugins; print(Plugins.load().names);"
        "assert '-m' in i.engine_command()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert str(site) not in str(ROOT)
    assert done.stdout.strip() == "['clawstop_hooks.reaper', 'clawstop_hooks.protocol']"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_template_has_front_matter(language: str) -> None:
    text = (ROOT / "agents_md_templates" / f"{language}.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    assert yaml.safe_load(front) == {"language": language, "version": 4}
    assert "`{command} stop" in body


def test_nothing_names_a_machine_path_or_a_registry() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    words = ("/work" + "/", "/root" + "/", "npmjs" + ".org", "pypi" + ".org")
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            assert not [word for word in words if word in text], name


def test_the_skill_text_is_short_and_declares_its_variables() -> None:
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    front = yaml.safe_load(text.split("---\n")[1])
    assert len(front["description"]) <= 200, "a list of skills shows no more"
    declared = front["metadata"]["openclaw"]
    assert declared["requires"] == {"bins": ["python3"]}, "what is not set must not disable it"
    names = {row["name"] for row in declared["envVars"] if row["required"] is False}
    assert len(names) == len(declared["envVars"])
    settings = json.loads((ROOT / "claw.json").read_text(encoding="utf-8"))["settings"]
    assert {f"CLAWSTOP_{key.upper()}" for key in settings} <= names
    ours = re.compile(r"(?:environ|env)\W+(?:get\W+)?((?:OPENCLAW|CLAWSTOP|INTERRUPT)_[A-Z_]+)")
    for file in [*(ROOT / "skill").rglob("*.py"), *(ROOT / "hooks").rglob("*.[jp][sy]")]:
        used = set(ours.findall(file.read_text(encoding="utf-8")))
        assert used <= names, file


def test_a_download_needs_nothing_that_is_left_out_of_it() -> None:
    """`.clawhubignore`: what ships is small, and is enough to run."""
    command = ["git", "ls-files", "-z", "-c"]
    every, left_out = (
        set(
            subprocess.run(
                [*command, *more], cwd=ROOT, capture_output=True, text=True
            ).stdout.split("\0")
        )
        for more in ([], ["-i", "-X", ".clawhubignore"])
    )
    ships = {name for name in every - left_out if name and not name.startswith(".")}
    assert {name.split("/")[0] for name in ships} == {
        "skill",
        "hooks",
        "agents_md_templates",
        "docs",
        "SKILL.md",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "claw.json",
    }
    assert sum((ROOT / name).stat().st_size for name in ships) < 2 * 1024 * 1024
