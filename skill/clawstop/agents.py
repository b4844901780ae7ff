"""The agents of an OpenClaw, read from its config as the host reads it.

JSON5; `$include` beside or below the config, deep-merged, arrays joined; `${VAR}` in values from
the environment, the state folder's `.env` and the config's own `env`; `agents.entries` or
`agents.list`. What a running gateway says goes before this: see roster.py.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import scopes
from .paths import Paths, default_folder, home, read_plain
from .settings import Settings

NAMES = ("openclaw.json", "clawdbot.json")
DEEPEST = 10  # includes in includes, as the host has it
LARGEST = 2 * 1024 * 1024  # bytes of a file, as the host has it
LONGEST_NAME = 100  # characters
VARIABLE = re.compile(r"\$?\$\{([A-Z_][A-Z0-9_]*)\}")
SIMPLE = re.compile("[a-z0-9][a-z0-9_-]{0,63}", re.IGNORECASE)
CALLED = re.compile(
    r"^[ \t]*-[ \t]*[*_`]*name[*_`]*[ \t]*:[*_`]*[ \t]*(.+?)[ \t\r]*$", re.IGNORECASE | re.MULTILINE
)
DEFAULT_ID = "main"


@dataclass(frozen=True)
class Agent:
    id: str
    name: str = ""
    identity: str = ""  # what it calls itself
    workspace: Path | None = None

    @property
    def called(self) -> str:
        """As a person knows it: `zero_dev1 (Anna)`."""
        other = self.name or self.identity
        return f"{self.id} ({other})" if other and other != self.id else self.id


@dataclass
class Config:
    agents: list[Agent] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)  # what it was read from
    problem: str = ""  # why there are no agents in it
    raw: dict[str, Any] = field(default_factory=dict)  # all that it says

    def entry(self, *inside: str) -> dict[str, Any]:
        """What it says of our own plugin."""
        found: Any = self.raw
        for key in ("plugins", "entries", "clawstop", *inside):
            found = _dict(found).get(key)
        return _dict(found)

    @property
    def protocol(self) -> str:
        """As the engine has it."""
        return Settings.protocol_of(self.entry("config"))


class Unreadable(ValueError):
    """A sentence that names the file, and where in it."""


def read(paths: Paths, environ: Mapping[str, str] = os.environ) -> Config:
    """Never raises: a config that cannot be read is a Config with a problem."""
    main = config_file(paths, environ)
    config = Config(files=[main])
    try:
        loaded = _Loader(main, config.files, environ).load(main, 0)
        config.raw = _with_variables(loaded, paths, environ)
        config.agents = _agents(config.raw, paths, environ)
    except FileNotFoundError:  # then the host has its one agent
        config.agents = _agents({}, paths, environ)
    except (OSError, ValueError) as error:
        config.problem = str(error)
    except RecursionError:
        config.problem = f"{main} is nested too deeply"
    return config


def parse(file: Path) -> Any:
    """What a config file says by itself."""
    return _parse(file, read_plain(file, LARGEST).decode("utf-8-sig", "replace"))


def config_file(paths: Paths, environ: Mapping[str, str] = os.environ) -> Path:
    if named := environ.get("OPENCLAW_CONFIG_PATH", "").strip():
        return _path(named, environ)
    there = (paths.openclaw / name for name in NAMES)
    return next((file for file in there if file.is_file()), paths.openclaw / NAMES[0])


def normal_id(id: str) -> str:
    """As the host writes it."""
    plain = id.strip()
    if SIMPLE.fullmatch(plain):
        return plain.lower()
    return re.sub("[^a-z0-9_-]+", "-", plain.lower()).strip("-")[:64] or DEFAULT_ID


def left_behind(paths: Paths, sessions: Iterable[str]) -> list[Agent]:
    """Who has left something, a folder or a session, whether there is such an agent or not."""
    try:
        with os.scandir(paths.openclaw / "agents") as entries:
            folders = [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        folders = []
    ids = {*folders, *map(scopes.agent_of, sessions)}
    return [Agent(id) for id in sorted(ids) if normal_id(id) == id]


# -- the file, with what it includes


class _Loader:
    def __init__(self, main: Path, files: list[Path], environ: Mapping[str, str]) -> None:
        self._files = files
        extra = environ.get("OPENCLAW_INCLUDE_ROOTS", "").split(os.pathsep)
        roots = [main.parent, *(_path(root.strip(), environ) for root in extra if root.strip())]
        self._roots = [root.resolve() for root in roots]

    def load(self, file: Path, depth: int) -> Any:
        if depth >= DEEPEST:
            raise Unreadable(f"{file}: includes are nested more than {DEEPEST} deep")
        data = read_plain(file, LARGEST)
        if len(data) > LARGEST:
            raise Unreadable(f"{file} is larger than {LARGEST} bytes")
        return self._resolved(_parse(file, data.decode("utf-8-sig", "replace")), file, depth)

    def _resolved(self, value: Any, file: Path, depth: int) -> Any:
        if isinstance(value, list):
            return [self._resolved(one, file, depth) for one in value]
        if not isinstance(value, dict):
            return value
        rest = {k: self._resolved(v, file, depth) for k, v in value.items() if k != "$include"}
        if "$include" not in value:
            return rest
        named = value["$include"]
        merged: Any = {}
        for name in named if isinstance(named, list) else [named]:
            merged = _merge(merged, self._include(name, file, depth))
        return _merge(merged, rest) if rest else merged

    def _include(self, name: Any, file: Path, depth: int) -> Any:
        if not isinstance(name, str) or "\0" in name:
            raise Unreadable(f"{file}: $include needs the name of a file")
        included = (file.parent / name).resolve()
        if not any(included.is_relative_to(root) for root in self._roots):
            raise Unreadable(f"{file}: $include of {included}, which is outside its folder")
        self._files.append(included)
        try:
            return self.load(included, depth + 1)
        except FileNotFoundError:
            raise Unreadable(f"{file}: $include of {included}, which does not exist") from None


def _parse(file: Path, text: str) -> Any:
    """Plain JSON, which is what the host writes, is read a thousand times faster."""
    if not text.strip():
        raise Unreadable(f"{file} is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
    except ValueError as error:  # a number of five thousand digits
        raise Unreadable(f"{file}: {error}") from None
    try:
        import json5
    except ImportError:  # the environment is broken, and somebody wants to stop an agent
        raise Unreadable(f"{file}, {place}: not JSON") from None
    try:
        return json5.loads(text)
    except ValueError as error:
        found = re.match(r"<string>:(\d+) (.*) at column (\d+)", str(error))
        where = f"line {found[1]}, column {found[3]}: {found[2]}" if found else str(error)
        raise Unreadable(f"{file}, {where}") from None


def _merge(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        both = {key: _merge(under[key], over[key]) for key in under if key in over}
        return {**under, **over, **both}
    return [*under, *over] if isinstance(under, list) and isinstance(over, list) else over


# -- variables


def _with_variables(config: Any, paths: Paths, environ: Mapping[str, str]) -> Any:
    if not isinstance(config, dict):
        return {}
    own = config.get("env")
    own = own if isinstance(own, dict) else {}
    inner = own.get("vars")
    told = {**(inner if isinstance(inner, dict) else {}), **own}
    values = {key: value for key, value in told.items() if isinstance(value, str)}
    for more in (_dotenv(paths.openclaw / ".env"), environ):
        values.update({key: value for key, value in more.items() if value})
    return _substituted(config, values)


def _substituted(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _substituted(one, values) for key, one in value.items()}
    if isinstance(value, list):
        return [_substituted(one, values) for one in value]
    if not isinstance(value, str) or "${" not in value:
        return value

    def put(found: re.Match[str]) -> str:
        if found[0].startswith("$$"):
            return found[0][1:]
        return values.get(found[1]) or found[0]  # the host leaves what it does not know

    return VARIABLE.sub(put, value)


def _dotenv(file: Path) -> dict[str, str]:
    try:
        text = read_plain(file, LARGEST).decode("utf-8", "replace")
    except OSError:
        return {}
    line = r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*=[ \t]*(.*?)[ \t\r]*$"
    pairs = re.findall(line, text, re.MULTILINE)
    return {key: _unquoted(value) for key, value in pairs}


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return re.sub(r"\s+#.*", "", value)


# -- the agents


def _agents(config: Any, paths: Paths, environ: Mapping[str, str]) -> list[Agent]:
    about = _dict(config.get("agents"))
    defaults = _dict(about.get("defaults"))
    if isinstance(about.get("entries"), dict):
        rows = [(str(id), _dict(entry)) for id, entry in about["entries"].items()]
        fallback = rows if len(rows) == 1 else []
    else:
        listed = about.get("list")
        entries = [_dict(entry) for entry in listed] if isinstance(listed, list) else []
        rows = [(entry["id"], entry) for entry in entries if _text(entry.get("id"))]
        fallback = rows[:1]
    if not rows:
        rows = fallback = [(DEFAULT_ID, {})]
    flagged = [row for row in rows if row[1].get("default") is True]
    owner = next((entry for _, entry in flagged or fallback), None)  # of the common workspace
    base = _text(defaults.get("workspace"))
    found: dict[str, Agent] = {}
    for raw, entry in rows:
        id = normal_id(raw)
        if named := _text(entry.get("workspace")):
            workspace = _workspace(named, environ)
        elif entry is owner:
            common = _workspace(base, environ) if base else None
            workspace = common if base else _default_workspace(paths, environ)
        else:
            common = _workspace(base, environ) if base else None
            workspace = common / id if common else paths.openclaw / f"workspace-{id}"
            workspace = None if base and not common else workspace
        calls = shown(_text(_dict(entry.get("identity")).get("name")))
        if not calls and workspace:
            calls = name_in(workspace / "IDENTITY.md")
        found.setdefault(id, Agent(id, shown(_text(entry.get("name"))), calls, workspace))
    return list(found.values())


def _workspace(text: str, environ: Mapping[str, str]) -> Path | None:
    """One that is named from the gateway's own folder is known only to the gateway."""
    path = _path(text, environ)
    return path if text.startswith("~") or Path(text).is_absolute() else None


def name_in(file: Path) -> str:
    """What an agent calls itself in its IDENTITY.md; what is still to be filled in is no name."""
    try:
        found = CALLED.search(read_plain(file, 4096).decode("utf-8", "replace"))
    except OSError:
        return ""
    name = found[1].strip("*_` ") if found else ""
    return "" if name.startswith(("(", "[", "<")) else shown(name)


def shown(name: str) -> str:
    """A name as it may be shown to a person: what would move their cursor is not a part of it."""
    plain = (c for c in name if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    return "".join(plain).strip()[:LONGEST_NAME]


def _default_workspace(paths: Paths, environ: Mapping[str, str]) -> Path:
    if named := environ.get("OPENCLAW_WORKSPACE_DIR", "").strip():
        return _path(named, environ)
    profile, folder = environ.get("OPENCLAW_PROFILE", "").strip(), paths.openclaw
    apart = SIMPLE.fullmatch(profile) and profile.lower() != "default"
    if apart and folder == default_folder(environ):  # the host moves only this with it
        folder = folder.with_name(f"{folder.name}-{profile}")
    return folder / "workspace"


def _path(text: str, environ: Mapping[str, str]) -> Path:
    """Only one's own `~` means anything, as the host has it."""
    own = text == "~" or text.startswith(("~/", "~\\"))
    return home(environ) / text[2:] if own else Path(text).absolute()


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    """What can be a name or a path; else nothing."""
    if not isinstance(value, str) or "\0" in value or any("\ud800" <= c < "\ue000" for c in value):
        return ""
    return value.strip()
