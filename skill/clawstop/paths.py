"""Where clawstop keeps things: one private folder inside the OpenClaw state folder.

<openclaw state>/clawstop/      0700
    state.sqlite  state-id      generations, latches, runs, stops; whose cookies count
    receipts.jsonl              the hash chain of receipts
    engine.lock  endpoint.json  which engine is the one, and where it listens
    command.json                how the bridge starts it; written by `install`
    tombstones/                 stops the bridge made on its own
    flags/                      stop flags that anybody of this user may leave
    checkpoints/  wills/        where tasks were that cooperate; what sessions want known
    owned/  cages               processes on record; where the cgroups of runs are
    shell/                      what the gateway starts as its shell, see shell.js
    engine.log
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import StoreError

MOST_READ = 1 << 28  # bytes of a file of the host's; one that is larger is no JSON we know
# sun_path is 108 bytes on Linux and 104 on macOS, with the final NUL.
MAX_SOCKET_PATH = 100


@dataclass(frozen=True)
class Paths:
    openclaw: Path

    @property
    def root(self) -> Path:
        return self.openclaw / "clawstop"

    @property
    def database(self) -> Path:
        return self.root / "state.sqlite"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / "engine.lock"

    @property
    def endpoint(self) -> Path:
        return self.root / "endpoint.json"

    @property
    def command(self) -> Path:
        return self.root / "command.json"

    @property
    def tombstones(self) -> Path:
        return self.root / "tombstones"

    @property
    def flags(self) -> Path:
        return self.root / "flags"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def wills(self) -> Path:
        return self.root / "wills"

    @property
    def left(self) -> Path:
        """There since `uninstall`: nothing is put into an agent's file any more."""
        return self.root / "uninstalled"

    @property
    def owned(self) -> Path:
        return self.root / "owned"

    @property
    def cages(self) -> Path:
        return self.root / "cages"

    @property
    def bridges(self) -> Path:
        return self.root / "bridges"

    @property
    def log(self) -> Path:
        return self.root / "engine.log"

    @property
    def socket(self) -> Path:
        """In the private folder, or, when that is too deep, in one of ours in the temp folder."""
        wanted = self.root / "engine.sock"
        if len(os.fsencode(wanted)) <= MAX_SOCKET_PATH:
            return wanted
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"clawstop-{user()}" / f"{name}.sock"

    @property
    def state_id(self) -> str:
        """The random id of this state folder, on every cookie. In a file of its own, so that
        processes are still known when the database is lost."""
        file = self.root / "state-id"
        try:
            return file.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            write_private(file, secrets.token_hex(8) + "\n")
            return self.state_id

    @property
    def known_state(self) -> str:
        """The same; "" where there is none yet, for who only looks."""
        try:
            return (self.root / "state-id").read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    def prepare(self) -> None:
        inside = (self.tombstones, self.flags, self.owned, self.bridges)
        for folder in (self.root, *inside, self.socket.parent):
            private_folder(folder)


def default_paths(openclaw: str | os.PathLike[str] | None = None) -> Paths:
    chosen = openclaw or os.environ.get("OPENCLAW_STATE_DIR") or default_folder(os.environ)
    return Paths(Path(chosen).expanduser().absolute())


def default_folder(environ: Mapping[str, str]) -> Path:
    """The state folder where nobody names one."""
    return home(environ) / ".openclaw"


def home(environ: Mapping[str, str]) -> Path:
    """What `~` is to the host."""
    named = environ.get("OPENCLAW_HOME", "").strip()
    if named in ("", "undefined", "null"):
        return Path.home()
    return Path(named).expanduser().absolute()


def user() -> int:
    """Whose files these are. Windows has no numbers: there a profile is private by its ACL."""
    if sys.platform == "win32":
        return 0
    return os.getuid()


def _open_to(info: os.stat_result, bits: int) -> bool:
    """Whether others than the owner have any of these rights."""
    return sys.platform != "win32" and bool(stat.S_IMODE(info.st_mode) & bits)


def private_folder(folder: Path) -> None:
    """Make `folder`, ours and 0700; refuse one that somebody else put there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != user():
        raise StoreError(f"{folder} is not a folder of yours; move it away and try again")
    if _open_to(info, 0o077):
        os.chmod(folder, 0o700)


def trusted_folder(folder: Path) -> None:
    """Refuse a folder that somebody else could put anything into or take anything out of: it is
    ours, or root's as /tmp is; so is a link to it."""
    for info in (os.lstat(folder), os.stat(folder)):
        roots = info.st_uid == 0 and (stat.S_ISLNK(info.st_mode) or info.st_mode & stat.S_ISVTX)
        if info.st_uid != user() and not roots:
            raise StoreError(f"{folder} is not a folder of yours; name another")


def is_private(file: Path) -> bool:
    """A plain file of ours that nobody else can write."""
    try:
        info = os.lstat(file)
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_uid == user() and not _open_to(info, 0o022)


def write_private(file: Path, content: str | bytes) -> None:
    """Replace `file` in one step, 0600, durable: a reader sees the old content or the new."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut. Windows cannot open a folder for that."""
    if sys.platform == "win32":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_plain(file: Path, most: int) -> bytes:
    """What is in a plain file, up to so many bytes and one; OSError for anything else: a pipe would
    hang whoever reads it."""
    fd = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(fd, "rb") as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(file))
        return stream.read(most + 1)


def read_json(file: Path) -> dict[str, Any] | None:
    """A JSON object from a private file of ours, or None."""
    return read_object(file) if is_private(file) else None


def read_object(file: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or None."""
    try:
        value = json.loads(read_plain(file, MOST_READ))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
