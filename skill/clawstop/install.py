"""Going into a person's OpenClaw and out again, with the host's own commands.

Each function yields a line for every step, before it is taken, and takes only those that are
needed: a second install changes nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import filelock

from . import agents, agentsmd, callers, ownership, service
from .agents import Config
from .backups import NAME as BACKUP
from .backups import read as read_backup
from .bridges import Bridges
from .errors import ClawstopError, UsageError
from .leftovers import LEFTOVERS
from .limits import OLDEST, number
from .openclaw import OpenClaw
from .paths import Paths, private_folder, read_json, read_object, write_private
from .settings import resource
from .starter import MARK, engine_command, is_ours, launcher, own_command

ENTRY = "plugins.entries.clawstop"
FENCE = f"{ENTRY}.config.fence"
PERMISSION = f"{ENTRY}.hooks.allowConversationAccess"
SCANNED, UNSAFE = "dangerous code patterns", "--dangerously-force-unsafe-install"  # 2026.4
DIAGNOSTICS = "diagnostics.enabled"
PATHS, ALLOWED = "plugins.load.paths", "plugins.allow"
MANIFEST = "openclaw.plugin.json"
INSTALLED = "installed"  # what files were right after the host had put us in
LAST = "last"  # what files were when we left
FOR = "# for "
KNOWN = ("plugins", "entries", "*", "hooks", "allowConversationAccess")


def install(
    paths: Paths, binary: str | None, *, fence: str | None = None, dry_run: bool
) -> Iterator[str]:
    openclaw = OpenClaw(paths, binary)
    yield f"found OpenClaw {openclaw.version or 'of an unknown version'}: {openclaw.binary}"
    if openclaw.version and number(openclaw.version) < number(OLDEST):
        raise UsageError(
            f"OpenClaw {openclaw.version} cannot load the plugin: update it to {OLDEST} or newer. "
            "Without it `clawstop run` and `clawstop stop` still own and kill what they start"
        )
    config = _config(paths)
    yield from _write_command(paths, dry_run)
    yield from _write_launcher(own_command(), paths.openclaw, dry_run)
    if not dry_run:
        paths.left.unlink(missing_ok=True)
    yield from _link(paths, openclaw, config, fence, dry_run)
    yield from write_blocks(paths, config, dry_run=dry_run)
    if dry_run:
        return
    yield "check that the plugin loads"
    verify(openclaw, _plugin())


def _config(paths: Paths) -> Config:
    config = agents.read(paths)
    if config.problem and config.files[0].exists():
        raise UsageError(f"OpenClaw's config cannot be read: {config.problem}")
    return config


def _write_command(paths: Paths, dry_run: bool) -> Iterator[str]:
    command = engine_command()
    if (read_json(paths.command) or {}).get("command") == command:
        return
    yield f"write {paths.command}: {shlex.join(command)}"
    if not dry_run:
        paths.prepare()
        write_private(paths.command, json.dumps({"command": command}))


def _plugin() -> Path:
    return resource("hooks", "openclaw").resolve()


def _link(
    paths: Paths, openclaw: OpenClaw, config: Config, fence: str | None, dry_run: bool
) -> Iterator[str]:
    """The plugin, where it is not what it should be yet."""
    plugin = str(_plugin())
    if fence == chosen_fence(config):
        fence = None
    ours, others = _ours(config)
    # Of several folders with one plugin the host loads the first.
    linked, alone = plugin in ours, ours in ([], [plugin])
    enabled = config.entry().get("enabled") is True
    permitted = config.entry("hooks").get("allowConversationAccess") is True
    may_permit = permitted or openclaw.knows(*KNOWN) is not False
    # Releases that know no such permission tell of a stop on a channel only with diagnostics on.
    deaf = not may_permit and _diagnostics(config.raw) is None
    if linked and alone and enabled and permitted >= may_permit and not (fence or deaf):
        yield "the plugin is linked and enabled already"
        return
    first = not (ours or enabled)
    if first:
        yield from _keep(paths, config, dry_run)
    run = partial(_run, openclaw, dry_run)
    if not alone:
        yield from run("config", "set", PATHS, json.dumps([*others, *([plugin] * linked)]))
    if not linked:
        new = openclaw.takes("plugins install", "--accept-capabilities")
        more = ["--force", "--accept-capabilities"] if new else []
        try:
            yield from run("plugins", "install", "--link", plugin, *more)
        except ClawstopError as error:
            scanned = SCANNED in str(error) and openclaw.takes("plugins install", UNSAFE)
            if not scanned:
                raise
            yield "OpenClaw has seen that the plugin starts a process; so it does: our engine"
            yield from run("plugins", "install", "--link", plugin, UNSAFE)
    # Linking may have enabled it, in releases that would refuse to where plugins are an include.
    now = config if dry_run else agents.read(paths)
    if now.entry().get("enabled") is not True:
        yield from run("plugins", "enable", "clawstop")
    if not permitted and may_permit:
        yield from _try(run, PERMISSION)
    if deaf:
        yield from _try(run, DIAGNOSTICS)
    if fence:
        yield from run("config", "set", FENCE, fence)
    if first and not dry_run:
        for file in filter(Path.is_file, config.files):
            agentsmd.back_up(paths.root / INSTALLED, file, file.read_bytes())


def _diagnostics(config: Any) -> Any:
    """What is said about them, if anything."""
    part = config.get("diagnostics") if isinstance(config, dict) else None
    return part.get("enabled") if isinstance(part, dict) else None


def _run(openclaw: OpenClaw, dry_run: bool, *step: str) -> Iterator[str]:
    yield f"run openclaw {shlex.join(step)}"
    if not dry_run:
        openclaw.run(*step)


def _try(run: Callable[..., Iterator[str]], key: str) -> Iterator[str]:
    """A setting that this release may refuse; doctor says what is lost without it."""
    try:
        yield from run("config", "set", key, "true")
    except ClawstopError as error:
        yield f"this OpenClaw does not take {key}, so it goes on without: {error}"


def _keep(paths: Paths, config: Config, dry_run: bool) -> Iterator[str]:
    """Every file of the config: the host writes to the one that has the key, without comments."""
    folder = paths.root / agentsmd.BACKUPS
    for file in config.files:
        if file.is_file():
            yield f"keep a copy of {file} in {folder}"
            if not dry_run:
                agentsmd.back_up(folder, file, file.read_bytes())


def _ours(config: Config) -> tuple[list[str], list[str]]:
    """The folders that plugins are loaded from: those with our plugin, resolved, whichever copy of
    clawstop linked them, and the others, as they are."""
    found: Any = config.raw
    for key in PATHS.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    listed = found if isinstance(found, list) else []
    ours = [one for one in listed if _is_our_plugin(one)]
    others = [one for one in listed if one not in ours]
    return [os.path.realpath(os.path.expanduser(one)) for one in ours], others


def is_linked(config: Config) -> bool:
    """Whether a gateway would load the plugin of this very copy: the first of several."""
    return _ours(config)[0][:1] == [str(_plugin())]


def _is_our_plugin(named: Any) -> bool:
    if not isinstance(named, str) or "\0" in named:
        return False
    folder = Path(os.path.realpath(os.path.expanduser(named)))
    if not folder.exists():  # the download that it came with is gone
        return folder.parts[-2:] == ("hooks", "openclaw")
    return (read_object(folder / MANIFEST) or {}).get("id") == "clawstop"


def chosen_fence(config: Config) -> str:
    """What the person has chosen before, if they have."""
    return str(config.entry("config").get("fence") or "")


def verify(openclaw: OpenClaw, folder: Path) -> None:
    """The host's own word that the plugin is there, loads, and is the one in this folder."""
    deep = ["--runtime"] if openclaw.takes("plugins inspect", "--runtime") else []
    told = openclaw.json("plugins", "inspect", "clawstop", *deep, "--json")
    plugin = told.get("plugin") or {}
    if plugin.get("status") != "loaded" or not plugin.get("enabled", True):
        wrong = [str(row.get("message")) for row in told.get("diagnostics") or ()]
        raise ClawstopError(
            f"OpenClaw does not load the plugin ({plugin.get('status')}): {'; '.join(wrong)}"
        )
    loaded = plugin.get("rootDir")  # some releases do not say
    if isinstance(loaded, str) and os.path.realpath(loaded) != str(folder):
        raise ClawstopError(
            f"OpenClaw loads another copy of clawstop, {loaded}: run `openclaw plugins uninstall "
            "clawstop --force`, then this command again"
        )


def write_blocks(paths: Paths, config: Config, *, dry_run: bool) -> Iterator[str]:
    """A line for every AGENTS.md that is changed, or that cannot be."""
    for report in agentsmd.sync(
        config.agents, config.protocol, paths.root, dry_run=dry_run, again=True
    ):
        if report.did not in ("same", "none"):
            yield told_of(report)


def told_of(report: agentsmd.Report) -> str:
    why = f": {report.why}" if report.why else ""
    return f"{report.did} {report.file} ({', '.join(report.agents)}){why}"


# -- out again


def uninstall(
    paths: Paths, binary: str | None, *, purge: bool = False, dry_run: bool
) -> Iterator[str]:
    refuse_agents(paths, "uninstall")
    config = agents.read(paths)
    if not dry_run:  # a gateway that runs would put the blocks back
        private_folder(paths.root)
        write_private(paths.left, "")
    for report in agentsmd.sync(config.agents, "off", paths.root, dry_run=dry_run):
        if report.did != "none":
            yield told_of(report)
    if config.problem:
        raise ClawstopError(f"{config.problem}; mend it, and run the same command again")
    theirs = bool(config.entry() or _ours(config)[0])
    if theirs:
        yield from _unlink(paths, OpenClaw(paths, binary), config, dry_run)
    back = False
    if theirs or paths.command.exists():  # also after the host's own uninstall
        back = yield from _put_config_back(paths, config, dry_run)
    # Where a file was put back, an entry in it is older than we are, and the person's.
    if theirs and not back and not dry_run:
        yield from _unset(paths, OpenClaw(paths, binary))
    if paths.command.exists():
        yield f"remove {paths.command}"
        if not dry_run:
            paths.command.unlink()
    yield from _remove_launcher(paths.openclaw, dry_run)
    yield from service.remove(paths, Path.home(), dry_run=dry_run)
    aside = paths.root / agentsmd.BACKUPS / LEFTOVERS
    if aside.is_dir() and any(aside.iterdir()):
        yield f"what `install --replace` took away is in {aside}; put it back if you want it"
    if purge:
        yield from _purge(paths, dry_run)
        own = Path(sys.prefix).parent  # this very command runs in it
        if own.name == "clawstop":
            yield f"its own environment stays: remove {own} when no other OpenClaw has clawstop"
    elif paths.root.exists():
        yield f"receipts and backups stay in {paths.root}; --purge removes them"


def _unlink(paths: Paths, openclaw: OpenClaw, config: Config, dry_run: bool) -> Iterator[str]:
    """With the host's own command. That one fails while another copy is linked, and where its part
    of the config is an include; then what it would take out is taken out first."""
    run = partial(_run, openclaw, dry_run)
    whole = ("plugins", "uninstall", "clawstop", "--force")
    ours, others = _ours(config)
    if len(ours) < 2:
        try:
            yield from run(*whole)
            return
        except ClawstopError as error:
            yield f"{error}; so piece by piece"
    if ours:
        yield from run("config", "set", PATHS, json.dumps(others))
    if config.entry():
        yield from run("config", "unset", ENTRY)
    allowed = config.raw["plugins"].get("allow")
    if isinstance(allowed, list) and "clawstop" in allowed:
        rest = [id for id in allowed if id != "clawstop"]
        yield from run("config", "set", ALLOWED, json.dumps(rest))
    yield from run(*whole)


def _put_config_back(paths: Paths, config: Config, dry_run: bool) -> Generator[str, None, bool]:
    """Each file byte for byte where nothing but ours has changed since; whether any was."""
    folder, back = paths.root / agentsmd.BACKUPS, False
    for file in config.files:
        there = agentsmd.copies(folder, file)
        if not there or not file.is_file():
            continue
        kept, now = there[-1], file.read_bytes()
        # Some releases write defaults of their own beside us: those are not the person's.
        same = [kept, *agentsmd.copies(paths.root / INSTALLED, file)[-1:]]
        bare = partial(_without_ours, diagnostics=_set_diagnostics(paths, file))
        if bare(agents.parse(file)) not in [bare(agents.parse(one)) for one in same]:
            yield f"leave {file}: more than ours has changed in it; as it was before us: {kept}"
            continue
        yield f"put {file} back as it was; as it is now is kept in {paths.root / LAST}"
        if _has_meta(file) and not _has_meta(kept):
            yield (
                "if a gateway runs now, stop it, and run this command again: some releases take a "
                f"{file.name} without their own `meta` for a damaged one, and put ours back"
            )
        if not dry_run:
            agentsmd.back_up(paths.root / LAST, file, now)  # comments since then are nowhere else
            _overwrite(file, kept.read_bytes())
            kept.unlink()
        back = True
    return back


def _unset(paths: Paths, openclaw: OpenClaw) -> Iterator[str]:
    """What the host's own uninstall leaves of us."""
    config = agents.read(paths)
    if config.entry():
        yield from _run(openclaw, False, "config", "unset", ENTRY)
    if _set_diagnostics(paths, config.files[0]) and _diagnostics(config.raw) is True:
        yield from _run(openclaw, False, "config", "unset", DIAGNOSTICS)


def _set_diagnostics(paths: Paths, file: Path) -> bool:
    """Whether it was we who turned them on."""
    folders = (paths.root / agentsmd.BACKUPS, paths.root / INSTALLED)
    found = [agentsmd.copies(folder, file)[-1:] for folder in folders]
    return [[_diagnostics(agents.parse(one)) for one in each] for each in found] == [[None], [True]]


def _has_meta(file: Path) -> bool:
    config = agents.parse(file)
    return isinstance(config, dict) and "meta" in config


def _overwrite(file: Path, content: bytes) -> None:
    """What a link leads to, with its owner and rights."""
    real = file.resolve()
    about = real.stat()
    write_private(real, content)
    real.chmod(about.st_mode & 0o777)
    if sys.platform != "win32" and os.geteuid() == 0:
        os.chown(real, about.st_uid, about.st_gid)


def _without_ours(config: Any, *, diagnostics: bool = False) -> Any:
    """What a person has said in it: not our entry, not what the host notes about itself, and not
    what is empty without those; nor the `diagnostics` that we have turned on. A file that is
    included may be the plugins' part alone."""
    own = json.loads(json.dumps(config))
    if not isinstance(own, dict):
        return own
    own.pop("meta", None)
    if diagnostics and own.get("diagnostics") == {"enabled": True}:
        del own["diagnostics"]
    plugins = own.get("plugins", own)
    if not isinstance(plugins, dict):
        return own
    for key in ("entries", "installs"):
        if isinstance(plugins.get(key), dict):
            plugins[key].pop("clawstop", None)
    if isinstance(plugins.get("allow"), list):
        plugins["allow"] = [id for id in plugins["allow"] if id != "clawstop"]
    load = plugins.get("load")
    if isinstance(load, dict) and isinstance(load.get("paths"), list):
        load["paths"] = [one for one in load["paths"] if not _is_our_plugin(one)]
        _prune(load, "paths")
    _prune(plugins, "entries", "installs", "allow", "load")
    _prune(own, "plugins")
    return own


def _prune(inside: dict[str, Any], *keys: str) -> None:
    """Take away what is empty: the host makes such places for a plugin, and leaves them."""
    for key in keys:
        if inside.get(key) in ({}, []):
            del inside[key]


def _purge(paths: Paths, dry_run: bool) -> Iterator[str]:
    """Everything that is ours, also what undoes stops. What was the person's stays."""
    if not paths.root.is_dir():
        return
    if not dry_run:
        _refuse_running(paths)
    for file in sorted((paths.openclaw / "agents").glob("*/interrupt-logs/*")):
        if BACKUP.fullmatch(file.name) and _is_our_backup(file):
            yield f"remove {file}"
            if not dry_run:
                file.unlink()
    theirs = paths.root / agentsmd.BACKUPS
    if not (theirs.is_dir() and any(theirs.iterdir())):
        yield f"remove {paths.root}"
        if not dry_run:
            shutil.rmtree(paths.root)
        return
    yield f"remove {paths.root}, but for {theirs}: what was yours before; look, and remove it"
    for inside in [] if dry_run else paths.root.iterdir():
        if inside.is_dir() and not inside.is_symlink():
            if inside != theirs:
                shutil.rmtree(inside)
        else:
            inside.unlink()


def _refuse_running(paths: Paths) -> None:
    try:
        with filelock.FileLock(paths.lock, blocking=False):
            pass
    except filelock.Timeout:
        raise ClawstopError(
            "a gateway still runs with clawstop in it, so nothing was purged; restart it and run "
            "the same command again"
        ) from None


def _is_our_backup(file: Path) -> bool:
    try:
        return read_backup(file).ours
    except (OSError, ClawstopError):  # whatever it is, it is not ours to take away
        return False


def refuse_agents(paths: Paths, what: str) -> None:
    """NotPermitted for a process that an agent's run started."""
    gateways = Bridges(paths.bridges).idents()
    callers.refuse_owned(os.getpid(), what, ownership.proofs(paths, gateways))


def _users(file: Path) -> list[str]:
    """The state folders that a launcher is there for."""
    lines = file.read_text(encoding="utf-8").splitlines() if is_ours(file) else []
    return [line.removeprefix(FOR) for line in lines if line.startswith(FOR)]


def _write_launcher(command: list[str], state: Path, dry_run: bool) -> Iterator[str]:
    file = launcher()
    if sys.platform == "win32":
        return
    if file.exists() and not is_ours(file):
        yield f"leave {file}: it is not ours"
        return
    python, skill = shlex.quote(command[0]), shlex.join(command[1:])
    users = "".join(f"{FOR}{one}\n" for one in dict.fromkeys([*_users(file), str(state)]))
    # Without its environment it still goes through the bootstrap, where a stop always works.
    text = f'#!/bin/sh\n{MARK}\n{users}[ -x {python} ] && exec {python} {skill} "$@"\n'
    text += f'exec python3 {skill} "$@"\n'
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return
    yield f"write {file}"
    if dry_run:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, text)
        file.chmod(0o755)
    except OSError as error:  # a short name for what works without it
        yield f"leave {file}: {error}"


def _remove_launcher(state: Path, dry_run: bool) -> Iterator[str]:
    """Unless another OpenClaw of this person has it too."""
    file = launcher()
    if not is_ours(file):
        return
    others = [one for one in _users(file) if one != str(state)]
    if not others:
        yield f"remove {file}"
        if not dry_run:
            file.unlink()
    elif not dry_run:
        kept = file.read_text(encoding="utf-8").replace(f"{FOR}{state}\n", "")
        write_private(file, kept)
        file.chmod(0o755)
