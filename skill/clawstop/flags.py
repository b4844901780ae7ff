"""Stop flags: a file `agent-stop-<session>.flag` that anything on this machine can write and read.

`<session>` is the host's session id, a session key, or either with its odd characters written %XX.
A flag counts while it is fresh, if it is a plain file of the same user; it never ages into a latch:
the stop that it causes is the latch. A stop of ours writes flags too, for tasks that look for them;
those name their stop and ask for none.

Standard library only, and Python 3.8 is enough, as for all that flagged.py needs: a task of an
agent's reads flags with whatever Python it has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import stat
import tempfile
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from . import leases
from .cookies import Owner
from .errors import UsageError
from .paths import private_folder, trusted_folder, user

log = logging.getLogger("clawstop.flags")

PREFIX, SUFFIX = "agent-stop-", ".flag"
MAX_AGE = 60.0  # seconds, and as long before its own time: clocks differ
ENGINE_AGE = 86400.0  # of what an engine wrote: it takes that away itself, unless it is gone
TMP = Path("/tmp")
MAX_SIZE = 16 * 1024
MAX_TIME = 1e15  # milliseconds, in the year 33658: a number beyond is none
MAX_NAME = 180  # bytes of a session in a file's name; file systems take 255 for all of it
MAX_REASON = 200
REASON, SIGNAL = "user_request", "SIGINT"  # of a flag that says nothing else
# What a stop of ours says: runs of an older generation are dead; it is of a whole agent, or of
# everything at once, so that some leases do not outlive it.
REACH = {"generation": int, "wide": bool, "hard": bool}
FOLDER, AGE = "INTERRUPT_FLAG_DIR", "INTERRUPT_FLAG_MAX_AGE"


@dataclass(frozen=True)
class Flag:
    session: str  # as it says itself, or as the file's name has it
    reason: str
    at: float
    signal: str = "TERM"  # what processes are told to leave with
    by: str = ""  # the stop of ours that wrote it
    key: str = ""  # and the session's key, where the name is the host's id
    reach: Mapping[str, Any] = field(default_factory=dict)  # whom that stop is about, see REACH
    state: str = ""  # the state folder of the engine that wrote it
    file: Path = Path()

    @property
    def name(self) -> str:
        """The session, as the file's name has it."""
        return self.file.name[len(PREFIX) : -len(SUFFIX)]

    @property
    def names(self) -> list[str]:
        """What the session may be called: as written, and with %XX decoded."""
        return list(dict.fromkeys([self.session, unquote(self.session, errors="replace")]))

    @property
    def stop(self) -> str:
        """The id of the stop that this flag asks for: the same flag seen twice is one stop."""
        text = f"{self.session} {self.at!r}"
        return "flag-" + hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """As whoever looks for one is told."""
        signal = "SIGINT" if self.signal == "INT" else "SIGTERM"
        told = {"sessionId": self.names[-1], "reason": self.reason, "signal": signal}
        return {**told, "timestamp": round(self.at * 1000)}


# -- where


def folders(private: Path, environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where flags are looked for: our own folder, the one that is configured, the temp folders."""
    named = environ.get(FOLDER)
    return list(dict.fromkeys([private, *([Path(named)] if named else []), *shared()]))


def shared() -> list[Path]:
    """Where older tools look and write: the temp folder, and /tmp, which is another on macOS."""
    places = [TMP] if os.name == "posix" else []
    with contextlib.suppress(OSError):  # on a full disk there is none
        places.append(Path(tempfile.gettempdir()))
    return list(dict.fromkeys(places))


def home(private: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Where flags are written: the folder that is configured, or our own, made if it is not there.
    StoreError when it is somebody else's."""
    named = environ.get(FOLDER)
    folder = Path(named) if named else private
    if named and folder.is_dir():
        trusted_folder(folder)
    else:
        private_folder(folder)
    return folder


def max_age(environ: Mapping[str, str] = os.environ) -> float:
    try:
        wanted = float(environ.get(AGE) or MAX_AGE)
    except ValueError:
        return MAX_AGE
    return wanted if math.isfinite(wanted) and wanted > 0 else MAX_AGE


def is_session(name: Any) -> bool:
    """Whether this can be the id or key of a session at all."""
    if not isinstance(name, str) or not name:
        return False
    return not any(unicodedata.category(c) in ("Cc", "Cs") for c in name)


def plain(words: str) -> str:
    """Words that can be written and sent."""
    return words[:MAX_REASON].encode("utf-8", "replace").decode()


def concerns(reach: Mapping[str, Any], owner: Owner | None, session: str) -> bool:
    """Whether what a stop of `session` says is for a process of `owner`: not for a run that began
    after it, nor for one whose lease outlives it. What anybody else says is for everybody."""
    if owner is None or owner.session != session or not reach:
        return True
    if reach.get("generation", math.inf) <= owner.generation:
        return False
    wide, hard = reach.get("wide") is not False, reach.get("hard") is not False
    return leases.parse(owner.lease).ends(wide=wide, hard=hard)


def encoded(session: str) -> str:
    """A session as a part of a file's name. No two sessions have the same, and none is a path."""
    plain = quote(session, safe="", errors="replace")
    if not plain.strip("."):
        plain = plain.replace(".", "%2E")  # by itself it is a way up
    if len(plain) <= MAX_NAME:
        return plain
    digest = hashlib.sha256(session.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{plain[: MAX_NAME - 40]}+{digest}"  # `+` is in no other


# -- writing and clearing


def create(
    folder: Path,
    session: str,
    reason: str = REASON,
    *,
    signal: str = SIGNAL,
    now: float | None = None,
    **more: Any,
) -> Path:
    """Write the flag of a session, 0600, in one step."""
    if not is_session(session):
        raise UsageError("a flag needs the id or key of a session")
    at = time.time() if now is None else now
    content = {"sessionId": session, "timestamp": round(at * 1000), "reason": plain(reason)}
    text = json.dumps({**content, "signal": signal, **more}, ensure_ascii=False)
    file = folder / f"{PREFIX}{encoded(session)}{SUFFIX}"
    handle, half = tempfile.mkstemp(dir=folder, prefix=f".{PREFIX}")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode("utf-8", "surrogatepass"))
        os.replace(half, file)
    except BaseException:
        os.unlink(half)
        raise
    return file


def check(
    places: Iterable[Path],
    session: str,
    age: float | None = None,
    now: float | None = None,
    *,
    owner: Owner | None = None,
    state: str = "",
) -> Flag | None:
    """The fresh flag of a session that is for a process of `owner`, or of nobody's, below the
    state folder `state`. One that is too old for anybody, or of the future, is taken away."""
    moment, standing = time.time() if now is None else now, max_age()
    limit = standing if age is None else age
    mine = owner.state if owner else state
    for flag in find(places, session):
        if abs(moment - flag.at) <= limit:
            meant = concerns(flag.reach, owner, flag.key or session)
            if meant and not is_foreign(flag, mine):
                return flag
        elif not -standing <= moment - flag.at <= (ENGINE_AGE if flag.by else standing):
            remove(flag)
    return None


def is_foreign(flag: Flag, state: str) -> bool:
    """Whether a stop of another gateway's engine wrote it, for sessions of the same name."""
    return bool(flag.by and flag.state and state) and flag.state != state


def remove(flag: Flag) -> None:
    """Take this flag away; a newer one in its place stays."""
    if _read(flag.file, flag.name) == flag:
        with contextlib.suppress(OSError):
            flag.file.unlink()


def clear(places: Iterable[Path], session: str, owner: Owner | None = None) -> int:
    """Take the flags of a session away, also old ones; how many there were. A process of a run
    (`owner`) takes only what a stop of its own session has written: another flag is an order, which
    the engine has to see."""
    gone = 0
    for flag in find(places, session):
        own = owner is None or (flag.by and owner.session in (flag.key, *flag.names))
        if not own or (owner and is_foreign(flag, owner.state)):
            continue
        flag.file.unlink(missing_ok=True)
        gone += 1
    return gone


def find(places: Iterable[Path], session: str) -> Iterator[Flag]:
    """All flags of one session, whatever it was written as."""
    if not is_session(session):
        return
    short = len(session.encode()) <= MAX_NAME and not set(session) & {"/", "\\"}
    names = dict.fromkeys([encoded(session), *([session] if short else [])])
    for place in places:
        for name in names:
            flag = _read(place / f"{PREFIX}{name}{SUFFIX}", name)
            if flag is not None:
                yield flag


# -- reading


def fresh(
    places: Iterable[Path], now: float, environ: Mapping[str, str] = os.environ
) -> list[Flag]:
    """Every flag that counts now."""
    limit = max_age(environ)
    found = []
    for place in places:
        for name in _names(place, now - 2 * limit):  # it cannot be fresh if its file is old
            flag = _read(place / name, name[len(PREFIX) : -len(SUFFIX)])
            if flag is not None and abs(now - flag.at) <= limit:
                found.append(flag)
    return found


def _names(place: Path, oldest: float) -> list[str]:
    def is_one(entry: os.DirEntry[str]) -> bool:
        # A name in another encoding is nobody's.
        named = entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX)
        try:
            fresh = named and entry.stat(follow_symlinks=False).st_mtime > oldest
        except OSError:  # gone since: nobody may hide the others by that
            return False
        return fresh and entry.name.isprintable()

    try:
        with os.scandir(place) as entries:
            return [entry.name for entry in entries if is_one(entry)]
    except OSError:
        return []


def _read(file: Path, name: str) -> Flag | None:
    """The flag, or None for anything that is not one: a link, another user's, half written."""
    no_link = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor wait for a pipe
    try:
        fd = os.open(file, os.O_RDONLY | no_link)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != user() or info.st_size > MAX_SIZE:
            return None
        if info.st_nlink > 1:  # a hard link: somebody else may have put one of our files there
            return None
        content: Any = json.loads(os.read(fd, MAX_SIZE))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    told = content.get("sessionId", name) if isinstance(content, dict) else None
    if not isinstance(told, str) or not is_session(told):
        return None
    if told not in (name, unquote(name, errors="replace")) and encoded(told) != name:
        return None  # it is somebody else's
    written = content.get("timestamp")
    at = info.st_mtime
    if type(written) in (int, float):
        at = max(0, min(written, MAX_TIME)) / 1000
    return Flag(
        told,
        plain(str(content.get("reason") or "")),
        at,
        "INT" if content.get("signal") in ("SIGINT", "INT") else "TERM",
        str(content.get("stop") or ""),
        str(content.get("sessionKey") or ""),
        {key: content[key] for key in REACH if type(content.get(key)) is REACH[key]},
        str(content.get("state") or ""),
        file,
    )
