"""The drop-in of the gateway's service: written once, taken away without a trace."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from clawstop import service
from clawstop.errors import UsageError
from clawstop.paths import Paths


@pytest.fixture
def home(tmp_path: Path) -> Path:
    units = tmp_path / service.UNITS
    units.mkdir(parents=True)
    (units / "openclaw-gateway.service").write_text("[Service]\n")
    return tmp_path


def drop_ins(home: Path) -> list[Path]:
    return sorted((home / service.UNITS).glob("*.d/*"))


def test_it_runs_recover_and_is_safe_to_repeat(home: Path) -> None:
    paths = Paths(home / "100% mine $HOME" / ".openclaw")
    lines = list(service.write(paths, home, dry_run=False))
    (file,) = drop_ins(home)
    assert lines[0] == f"write {file}"
    read = configparser.RawConfigParser()
    read.read(file)
    command = read["Service"]["ExecStartPost"]
    assert command.startswith("-/"), "a failure of ours is not the gateway's"
    assert "recover --wait-gateway 60 --yes" in command
    assert "100%% mine $$HOME" in command, "as systemd reads it"
    assert list(service.write(paths, home, dry_run=False)) == []


def test_a_dry_run_writes_nothing(home: Path) -> None:
    assert list(service.write(Paths(home), home, dry_run=True))
    assert drop_ins(home) == []


def test_it_goes_without_a_trace_and_others_stay(home: Path) -> None:
    list(service.write(Paths(home), home, dry_run=False))
    other = home / service.UNITS / "openclaw-gateway-two.service.d" / service.NAME
    other.parent.mkdir()
    other.write_text("[Service]\n")
    assert list(service.remove(Paths(home), home, dry_run=True))
    assert len(drop_ins(home)) == 2
    list(service.remove(Paths(home), home, dry_run=False))
    assert drop_ins(home) == [other], "not ours"
    assert not (home / service.UNITS / "openclaw-gateway.service.d").exists()
    assert list(service.remove(Paths(home), home, dry_run=False)) == []


def test_without_a_service_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="openclaw gateway install"):
        list(service.write(Paths(tmp_path), tmp_path, dry_run=False))


def test_of_several_profiles_each_has_its_own(home: Path) -> None:
    units = home / service.UNITS
    work = units / "openclaw-gateway-work.service"
    work.write_text("[Service]\nEnvironment=OPENCLAW_PROFILE=work\n")
    list(service.write(Paths(home / ".openclaw-work"), home, dry_run=False))
    assert drop_ins(home) == [units / "openclaw-gateway-work.service.d" / service.NAME]
    list(service.write(Paths(home / ".openclaw"), home, dry_run=False))
    assert len(drop_ins(home)) == 2
    third = units / "openclaw-gateway-third.service"
    third.write_text('[Service]\nEnvironment="OPENCLAW_STATE_DIR=%h/third"\n')
    list(service.write(Paths(home / "third"), home, dry_run=False))
    assert len(drop_ins(home)) == 3
    list(service.remove(Paths(home / ".openclaw"), home, dry_run=False))
    assert len(drop_ins(home)) == 2, "the others' are theirs"
    assert not (units / "openclaw-gateway.service.d").exists()


def test_a_service_of_somebody_else_is_left_alone(home: Path) -> None:
    (home / service.UNITS / "openclaw-gateway-two.service").write_text("[Service]\n")
    with pytest.raises(UsageError, match="openclaw-gateway-two"):
        list(service.write(Paths(home / ".openclaw"), home, dry_run=False))
