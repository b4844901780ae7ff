"""Going in and out again without a host: what happens to a person's own files."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import ssl
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from clawstop import agents, agentsmd, cookies, doctor, install, starter
from clawstop.agents import Config
from clawstop.cookies import Owner
from clawstop.errors import UsageError
from clawstop.openclaw import OpenClaw
from clawstop.paths import Paths
from product import Product


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OPENCLAW_CONFIG_PATH", raising=False)
    paths = Paths(tmp_path / "state")
    paths.prepare()
    return paths


def write(home: Paths, config: Any) -> Path:
    file = home.openclaw / "openclaw.json"
    file.write_text(json.dumps(config))
    return file


def put_back(home: Paths, before: bytes, now: Any, installed: Any = None) -> Path:
    """What uninstall does when the host has taken its own part out; `installed` is what the file
    was when we had gone in."""
    file = home.openclaw / "openclaw.json"
    file.write_bytes(before)
    agentsmd.back_up(home.root / agentsmd.BACKUPS, file, before)
    if installed is not None:
        agentsmd.back_up(home.root / install.INSTALLED, file, json.dumps(installed).encode())
    file.write_text(json.dumps(now))
    list(install._put_config_back(home, Config(files=[file]), dry_run=False))
    return file


def test_a_config_comes_back_with_its_comments_if_only_ours_has_changed(home: Paths) -> None:
    before = b"{ // mine\n agents: {entries: {dev1: {}}},\n}\n"
    now = {"agents": {"entries": {"dev1": {}}}, "plugins": {"allow": ["clawstop"], "load": {}}}
    assert put_back(home, before, {**now, "meta": {"touched": 1}}).read_bytes() == before
    (kept,) = (home.root / install.LAST).iterdir()
    assert "plugins" in kept.read_text(), "as it was before it came back"


@pytest.mark.parametrize(
    "more",
    [
        {"agents": {"entries": {"dev1": {}, "dev2": {}}}},
        {"channels": {"telegram": {"allowFrom": []}}},
        {"hooks": {}},
    ],
)
def test_what_the_person_has_added_since_stays(home: Paths, more: dict[str, Any]) -> None:
    before: dict[str, Any] = {"agents": {"entries": {"dev1": {}}}}
    now = {**before, **more}
    assert json.loads(put_back(home, json.dumps(before).encode(), now).read_text()) == now


def test_a_copy_that_is_not_put_back_is_named_and_stays(home: Paths) -> None:
    file = home.openclaw / "openclaw.json"
    commented = b"{ // mine\n agents: {entries: {dev1: {}}},\n}\n"
    put_back(home, commented, {"agents": {"entries": {"dev1": {}, "dev2": {}}}})
    (kept,) = agentsmd.copies(home.root / agentsmd.BACKUPS, file)
    config = Config(files=[file])
    for dry_run in (True, False):
        (line,) = install._put_config_back(home, config, dry_run)
        assert line.startswith(f"leave {file}")
        assert line.endswith(str(kept))
    list(install._keep(home, config, dry_run=False))
    assert kept.read_bytes() == commented, "and another install keeps it"


def test_what_was_taken_from_the_person_outlives_a_purge(home: Paths) -> None:
    theirs = home.root / agentsmd.BACKUPS / "leftovers" / "crontab"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("0 3 * * * backup\n")
    (home.root / "receipts.jsonl").touch()
    told = list(install._purge(home, dry_run=False))
    assert theirs.exists()
    assert [entry.name for entry in home.root.iterdir()] == [agentsmd.BACKUPS]
    assert str(theirs.parent.parent) in told[-1]


def test_a_look_at_a_purge_makes_nothing(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    assert list(install._purge(paths, dry_run=True)) == []
    assert list(install._purge(paths, dry_run=False)) == []
    paths.root.mkdir()
    list(install._purge(paths, dry_run=True))
    assert list(paths.root.iterdir()) == []


OLD = """#!/bin/sh
echo "$*" >> "$0.log"
case "$*" in
  *--help) echo "  --dangerously-force-unsafe-install  Bypass" ;;
  "plugins install"*unsafe*) ;;
  "plugins install"*) echo "blocked: dangerous code patterns detected"; exit 1 ;;
  "config schema") echo '{"properties": {}}' ;;
esac
"""


@pytest.mark.parametrize("said", [None, False])
def test_an_old_release_is_told_what_it_needs_and_nothing_that_it_refuses(
    home: Paths, tmp_path: Path, said: bool | None
) -> None:
    """It scans plugins, knows no permission, and has diagnostics off unless it is told."""
    binary = tmp_path / "openclaw"
    binary.write_text(OLD)
    binary.chmod(0o755)
    write(home, {} if said is None else {"diagnostics": {"enabled": said}})
    openclaw = OpenClaw(home, str(binary))
    list(install._link(home, openclaw, agents.read(home), None, dry_run=False))
    steps = Path(f"{binary}.log").read_text()
    assert "--dangerously-force-unsafe-install" in steps
    assert "allowConversationAccess" not in steps
    assert ("config set diagnostics.enabled true" in steps) == (said is None), "their word counts"


def test_a_config_comes_back_from_an_old_release_too(home: Paths) -> None:
    before = b"{ // mine\n agents: {list: [{id: 'dev1'}]},\n}\n"
    now = {"agents": {"list": [{"id": "dev1"}]}, "diagnostics": {"enabled": True}}
    assert put_back(home, before, now, installed=now).read_bytes() == before


def test_diagnostics_that_a_person_turned_on_since_stay_on(home: Paths) -> None:
    before = {"agents": {"list": [{"id": "dev1"}]}}
    now = {**before, "diagnostics": {"enabled": True}}
    file = put_back(home, json.dumps(before).encode(), now, installed=before)
    assert json.loads(file.read_text()) == now


def test_a_release_that_cannot_load_the_plugin_is_told_before_anything_is_written(
    home: Paths, tmp_path: Path
) -> None:
    binary = tmp_path / "openclaw"
    binary.write_text("#!/bin/sh\necho 2026.3.28\n")
    binary.chmod(0o755)
    write(home, {})
    before = sorted(home.openclaw.rglob("*"))
    with pytest.raises(
        UsageError, match=r"2026\.3\.28 cannot load the plugin: update it to 2026\.4"
    ):
        list(install.install(home, str(binary), dry_run=False))
    assert sorted(home.openclaw.rglob("*")) == before


@pytest.mark.parametrize("schema", ["exit 1", 'echo "{}"'])
def test_a_setting_that_the_release_refuses_does_not_leave_an_install_half_made(
    home: Paths, tmp_path: Path, schema: str
) -> None:
    binary = tmp_path / "openclaw"
    binary.write_text(
        f"""#!/bin/sh
case "$*" in
  "config schema") {schema} ;;
  "config set"*) echo "Unrecognized key"; exit 1 ;;
esac
"""
    )
    binary.chmod(0o755)
    write(home, {})
    openclaw = OpenClaw(home, str(binary))
    told = list(install._link(home, openclaw, agents.read(home), None, dry_run=False))
    assert any("goes on without" in line and "Unrecognized key" in line for line in told)


DEFAULTS = """#!/bin/sh
echo "$*" >> "$0.log"
case "$*" in
  *--help) ;;
  "config schema") echo '{"properties": {}}' ;;
  "plugins install"*) echo "{}" > "$OPENCLAW_CONFIG_PATH" ;;
  "plugins enable"*) echo '%s' > "$OPENCLAW_CONFIG_PATH" ;;
esac
"""


@pytest.mark.parametrize("since", [False, True], ids=["only the host's", "the person's too"])
def test_defaults_that_the_host_writes_beside_us_are_not_the_persons(
    home: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: bool
) -> None:
    file = home.openclaw / "openclaw.json"
    monkeypatch.setenv("OPENCLAW_CONFIG_PATH", str(file))
    written = {"agents": {"defaults": {"compaction": 1}}, "diagnostics": {"enabled": True}}
    entry = {"plugins": {"entries": {"clawstop": {"enabled": True}}}}
    binary = tmp_path / "openclaw"
    binary.write_text(DEFAULTS % json.dumps({**written, **entry}))
    binary.chmod(0o755)
    before = b"{ // mine\n}\n"
    file.write_bytes(before)
    list(install._link(home, OpenClaw(home, str(binary)), agents.read(home), None, dry_run=False))
    more = {**written, **entry, **({"channels": {}} if since else {})}
    file.write_text(json.dumps(more))
    told = "\n".join(install.uninstall(home, str(binary), dry_run=False))
    assert (file.read_bytes() == before) != since
    assert ("config unset diagnostics.enabled" in told) == since, "we had turned it on"


def test_every_folder_with_our_plugin_is_ours(home: Paths, tmp_path: Path) -> None:
    ours = str(Product(tmp_path / "copy").plugin)
    other = tmp_path / "other" / "hooks" / "openclaw"
    other.mkdir(parents=True)
    (other / "openclaw.plugin.json").write_text('{"id": "another"}')
    gone = str(tmp_path / "gone" / "hooks" / "openclaw")
    listed: list[Any] = [ours, "/elsewhere", gone, str(other), 7, "\0"]
    config = Config(raw={"plugins": {"load": {"paths": listed}}})
    assert install._ours(config) == ([ours, gone], ["/elsewhere", str(other), 7, "\0"])
    before = json.dumps({"plugins": {"load": {"paths": [str(other)]}}}).encode()
    now = {"plugins": {"load": {"paths": [ours, str(other), gone]}}}
    assert put_back(home, before, now).read_bytes() == before


def test_files_that_the_config_includes_come_back_too(home: Paths) -> None:
    main, part = home.openclaw / "openclaw.json", home.openclaw / "plugins.json5"
    team = home.openclaw / "team.json5"
    texts = {
        main: b"{ // mine\n plugins: {$include: './plugins.json5'},\n"
        b" agents: {$include: './team.json5'},\n}\n",
        part: b"{ // theirs\n allow: ['memory-core'],\n}\n",
        team: b"{entries: {dev1: {}}}",
    }
    for file, text in texts.items():
        file.write_bytes(text)
    config = agents.read(home, {})
    list(install._keep(home, config, dry_run=False))
    entry = {"entries": {"clawstop": {"enabled": True}}}
    part.write_text(json.dumps({"allow": ["memory-core", "clawstop"], **entry}))
    grown = b"{entries: {dev1: {}, dev2: {}}}"
    team.write_bytes(grown)
    list(install._put_config_back(home, config, dry_run=False))
    assert {file: file.read_bytes() for file in texts} == {**texts, team: grown}


def test_a_linked_config_stays_a_link(home: Paths, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    real.chmod(0o640)
    (home.openclaw / "openclaw.json").symlink_to(real)
    file = put_back(home, b"{}\n", {"plugins": {"entries": {}}})
    assert file.is_symlink()
    assert real.read_bytes() == b"{}\n"
    assert real.stat().st_mode & 0o777 == 0o640


def test_where_no_launcher_can_be_the_rest_goes_on(home: Paths, tmp_path: Path) -> None:
    (tmp_path / ".local").touch()
    told = list(install._write_launcher(["python", "skill"], tmp_path, dry_run=False))
    assert told[-1].startswith(f"leave {starter.launcher()}: ")


def test_a_folder_that_cannot_be_written_is_a_sentence(home: Paths, tmp_path: Path) -> None:
    product, state = Product(tmp_path / "clawstop"), tmp_path / "other"
    state.mkdir()
    (state / "clawstop").touch()
    for words in (("watch", "--once"), ("uninstall",), ("status",), ("stop", "main")):
        done = product.run(state, *words)
        assert done.returncode == 1, words
        assert done.stderr.startswith("clawstop: "), done.stderr
        assert "Traceback" not in done.stderr, words


def test_a_launcher_stays_while_another_openclaw_has_it(home: Paths, tmp_path: Path) -> None:
    for state in ("one", "two"):
        list(install._write_launcher(["python", "skill"], tmp_path / state, dry_run=False))
    assert not list(install._write_launcher(["python", "skill"], tmp_path / "two", dry_run=False))
    assert list(install._remove_launcher(tmp_path / "two", dry_run=False)) == []
    assert starter.is_ours(starter.launcher())
    assert os.access(starter.launcher(), os.X_OK)
    assert list(install._remove_launcher(tmp_path / "one", dry_run=False))
    assert not starter.launcher().exists()


def block(home: Paths, agent: str) -> Path:
    folder = home.openclaw / f"workspace-{agent}"
    folder.mkdir()
    (folder / "AGENTS.md").write_text("# Mine\n")
    return folder / "AGENTS.md"


def test_without_the_host_the_blocks_go_all_the_same(home: Paths, tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    entry = {"plugins": {"entries": {"clawstop": {"enabled": True}}}}
    write(home, {"agents": {"entries": {"dev1": {}, "gone": {}}}, **entry})
    files = [block(home, "dev1"), block(home, "gone")]
    assert product.run(home.openclaw, "watch", "--once").returncode == 0
    assert all("clawstop:begin" in file.read_text() for file in files)
    write(home, {"agents": {"entries": {"dev1": {}, "pm": {}}}, **entry})
    done = product.run(home.openclaw, "uninstall", PATH="/nowhere")
    assert done.returncode == 2
    assert "openclaw was not found" in done.stderr
    assert [file.read_text() for file in files] == ["# Mine\n", "# Mine\n"], "also of who is gone"
    (home.openclaw / "openclaw.json").write_text("{")
    done = product.run(home.openclaw, "uninstall", PATH="/nowhere")
    assert done.returncode == 1
    assert "openclaw.json, line 1" in done.stderr


def test_an_agent_changes_no_settings_and_takes_nothing_away(home: Paths, tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    cookie = cookies.format(Owner("0123456789abcdef", "agent:dev1:main", 1))
    for words in (("install", "--replace"), ("install", "--fence", "previews"), ("uninstall",)):
        done = product.run(home.openclaw, *words, **{cookies.VARIABLE: cookie})
        assert done.returncode == 5, words


def test_a_host_that_cannot_be_asked_knows_nothing(home: Paths, tmp_path: Path) -> None:
    command = tmp_path / "openclaw"
    command.write_text("#!/bin/sh\nexit 1\n")
    command.chmod(0o755)
    openclaw = OpenClaw(home, str(command))
    assert openclaw.knows("plugins", "entries", "*") is None
    assert not openclaw.takes("plugins install", "--force")


def test_a_purge_leaves_alone_what_it_cannot_read(home: Paths) -> None:
    file = home.openclaw / "agents/gone/interrupt-logs/rollback-20260101-120000.jsonl"
    file.parent.mkdir(parents=True)
    file.touch()
    list(install._purge(home, dry_run=False))
    assert file.exists()
    assert not home.root.exists()


# -- doctor


@pytest.mark.parametrize("name", ["q?x", "h#x", "p%41"])
def test_a_database_is_looked_at_wherever_it_is(tmp_path: Path, name: str) -> None:
    paths = Paths(tmp_path / name)
    paths.prepare()
    with closing(sqlite3.connect(paths.database)) as db:
        db.execute("CREATE TABLE t (x)")
    assert doctor._database(paths).ok
    paths.database.write_bytes(b"garbage" * 1000)
    assert not doctor._database(paths).ok
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("port", ["²", "", "99999", "-1", None, [], 0])
def test_no_port_makes_doctor_fail(monkeypatch: pytest.MonkeyPatch, port: Any) -> None:
    monkeypatch.delenv("OPENCLAW_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(doctor, "_is_gateway", lambda number, *_: number == doctor.GATEWAY_PORT)
    assert doctor.gateway_without_us(Config(raw={"gateway": {"port": port}}))


def test_whatever_listens_is_not_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENCLAW_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(doctor, "KNOCK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        config = Config(raw={"gateway": {"port": server.getsockname()[1]}})
        assert doctor.gateway_without_us(config) == 0, "one that says nothing"

        def answer() -> None:
            for _ in range(2):  # the one above is still in line
                with server.accept()[0] as connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")

        thread = threading.Thread(target=answer)
        thread.start()
        assert doctor.gateway_without_us(config) == 0, "one that says something else"
        thread.join()


def gateway_at(host: str, context: ssl.SSLContext | None) -> tuple[threading.Thread, int]:
    """Says hello once, as a gateway does."""
    server = socket.create_server((host, 0))
    server.settimeout(5)

    def answer() -> None:
        with suppress(OSError), server, server.accept()[0] as plain:
            said = context.wrap_socket(plain, server_side=True) if context else plain
            with said:
                said.recv(4096)
                said.sendall(b'{"event":"connect.challenge"}')

    thread = threading.Thread(target=answer)
    thread.start()
    return thread, server.getsockname()[1]


def certificate(folder: Path) -> ssl.SSLContext:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    files = ["-subj", "/CN=gateway", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run([*made, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


def test_a_gateway_is_seen_wherever_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENCLAW_GATEWAY_PORT", raising=False)
    for host, context, more in (
        ("127.0.0.1", None, {}),
        ("127.0.0.2", None, {"bind": "custom", "customBindHost": "127.0.0.2"}),
        ("127.0.0.1", certificate(tmp_path), {"tls": {"enabled": True}}),
    ):
        thread, port = gateway_at(host, context)
        assert doctor.gateway_without_us(Config(raw={"gateway": {"port": port, **more}})) == port
        thread.join()


def test_doctor_says_what_the_next_gateway_would_load(tmp_path: Path) -> None:
    plugin, old = str(install._plugin()), str(Product(tmp_path / "old").plugin)
    for listed, enabled, told in (
        ([plugin], True, "is linked and enabled"),
        ([plugin], False, "is not enabled"),
        ([old, plugin], True, "is not linked"),
        ([], True, "is not linked"),
    ):
        about = {"load": {"paths": listed}, "entries": {"clawstop": {"enabled": enabled}}}
        finding = doctor._plugin(Config(raw={"plugins": about}))
        assert told in finding.what
        assert finding.ok == (told == "is linked and enabled")


def test_an_engine_that_cannot_start_is_seen(home: Paths, tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    command = [*product.command, "engine", "openclaw"]
    home.command.write_text(json.dumps({"command": command}))
    home.command.chmod(0o600)
    assert doctor._command(home).ok
    (product.folder / "skill/clawstop/engine.py").write_text("cut off (")  # ours: nothing heals it
    assert not doctor._command(home).ok


def test_odd_files_are_told_and_no_traceback(home: Paths, tmp_path: Path) -> None:
    product = Product(tmp_path / "clawstop")
    write(home, {"agents": {"entries": {"dev1": {}, "rel": {"workspace": "."}}}})
    file = block(home, "dev1")
    file.chmod(0o444)
    (home.root / agentsmd.OWN).mkdir()
    (home.root / agentsmd.OWN / "zh.md").write_bytes(b"---\nversion: 1\n---\n\xff\xfe")
    told = product.run(home.openclaw, "doctor")
    assert "Traceback" not in told.stderr
    assert "zh.md cannot be read" in told.stdout
    (home.root / agentsmd.OWN / "zh.md").unlink()
    told = product.run(home.openclaw, "doctor")
    assert "it is read-only" in told.stdout
    assert "make it writable" in told.stdout
    assert "the workspace of rel is not an absolute path" in told.stdout
    assert product.run(home.openclaw, "watch", "--once").returncode == 1
