"""An agent's conversations, wherever its host keeps them: one interface, two stores.

Newer hosts keep them in a database that is theirs alone: there the gateway is asked (`Hosted`).
Older ones keep a file for each: there the file is cut, by the host's own lock (`Files`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

from . import backups, evidence, jsonl, scopes, turns
from .backups import Backup
from .bridges import Bridges
from .errors import ClawstopError, GoneOn, TranscriptError
from .paths import Paths, private_folder, read_object, write_private
from .turns import Cut, Entry

MEANWHILE = (
    "was written to meanwhile"  # as a gateway tells it: a run that was ended has last words,
)
AGAIN_TIMES, AGAIN_SECONDS = 5, 0.3  # which it writes within a second or so, on a busy machine

Move = dict[str, Any]  # one change of a conversation, as a receipt tells it and `restore` reads it


class Transcripts(Protocol):
    async def find(self, session: str, cut: Cut) -> Entry | None:
        """The first entry that a rollback would take away."""

    async def remove(self, session: str, cut: Cut, about: dict[str, Any]) -> Move | None:
        """Roll back, with a backup; None when there is nothing to take away."""

    async def prepare(self, move: Move, *, force: bool) -> Move:
        """What a restore of this move would be. GoneOn when something else has been said since,
        unless forced."""

    async def carry_out(self, move: Move) -> None:
        """Do what was prepared. Done again, it goes on."""


class Agents:
    """The folders of agents in the host's state folder."""

    def __init__(self, paths: Paths) -> None:
        self._all = paths.openclaw / "agents"

    def folder(self, session: str) -> Path:
        """An agent's folder: a name that is there, never one that was only told."""
        agent = scopes.agent_of(session)
        names = {folder.name for folder in self._all.iterdir()} if self._all.is_dir() else ()
        if agent not in names:
            raise TranscriptError(f"there is no folder of an agent {agent[:80]!r}")
        return self._all / agent

    def backups(self) -> list[Path]:
        """Where backups are, of every agent."""
        return [one for one in map(backups.folder, self._all.glob("*")) if one.is_dir()]

    def hosted(self, session: str) -> bool:
        """Whether the host keeps this agent's conversations in its database."""
        try:
            return evidence.is_hosted(self.folder(session))
        except TranscriptError:
            return False


class Hosted:
    """In the host's database. Nothing is ever removed there: the host's own pointer to the newest
    entry is moved, by the gateway."""

    def __init__(self, agents: Agents, bridges: Bridges) -> None:
        self._agents = agents
        self._bridges = bridges

    async def find(self, session: str, cut: Cut) -> Entry | None:
        return (await self._find(session, cut))[0]

    async def _find(self, session: str, cut: Cut) -> tuple[Entry | None, str | None]:
        """The first entry that goes, and the newest one."""
        first, entries = None, []
        async for entries in self._read(session):
            walk = iter(entries)
            first = cut.find(walk)
            if next(walk, None) is not None:  # it did not have to look at all of them
                break
        return first, entries[0].id if entries else None

    async def _read(self, session: str) -> AsyncIterator[list[Entry]]:
        """The active branch, newest first: more and more of it, until all of it was told."""
        entries: list[Entry] = []
        whole = False
        while not whole:
            before = entries[-1].id if entries else ""
            answer = await self._bridges.memory("read", session=session, before=before)
            # Of an entry here, `offset` is how many are newer.
            for value in answer["entries"]:
                if entry := turns.read(value, len(entries)):
                    entries.append(entry)
            whole = answer["whole"] or not answer["entries"]
            yield entries

    async def remove(self, session: str, cut: Cut, about: dict[str, Any]) -> Move | None:
        where = backups.folder(self._agents.folder(session))
        backup = backups.of(where, about["receipt"], session)
        for left in range(AGAIN_TIMES, -1, -1):
            if backup:
                break
            try:
                first, leaf = await self._find(session, cut)
                if first is None:
                    return None
                backup = await self._back_up(session, where, about, first, leaf)
            except ClawstopError as error:
                if MEANWHILE not in str(error) or not left:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
        assert backup
        move = self.move_of(backup, session)
        await self.carry_out(move)
        return move

    async def _back_up(
        self, session: str, where: Path, about: dict[str, Any], first: Entry, leaf: str | None
    ) -> Backup:
        """The gateway writes the entries into a file: they may be large."""
        private_folder(where)
        raw = where / f".rollback-{secrets.token_hex(8)}"
        params = {"first": first.id, "leaf": leaf, "file": str(raw), "count": first.offset}
        try:
            before = await self._bridges.memory("dump", session=session, **params)
            branch = {"from": leaf, "to": before["parent"], "entry": first.id}
            header = {**about, "branch": branch}
            return await asyncio.to_thread(backups.write, where, header, lambda: _chunks(raw))
        finally:
            raw.unlink(missing_ok=True)

    def move_of(self, backup: Backup, session: str) -> Move:
        branch, first = backup.header["branch"], backups.first_entry(backup)
        return {
            "session": session,
            "store": "host",
            "did": "remove",
            "from": branch["from"],
            "to": branch["to"],
            "backup": str(backup.file),
            "entries": backup.header["removed"]["lines"],
            "text": first.text if first else "",
        }

    async def prepare(self, move: Move, *, force: bool) -> Move:
        ids: list[str] = []
        async for entries in self._read(move["session"]):
            ids = [entry.id for entry in entries]
            if move["to"] in ids:
                break
        leaf = ids[0] if ids else None
        since = entries[: ids.index(move["to"]) if move["to"] in ids else len(ids)]
        done = leaf == move["from"]
        if not (force or done) and (
            any(one.said for one in since) or move["to"] not in (*ids, None)
        ):
            raise GoneOn(f"the conversation in {move['session']} has gone on since")
        did = "restore" if move["did"] == "remove" else "remove"
        return {**move, "did": did, "from": leaf, "to": move["from"]}

    async def carry_out(self, move: Move) -> None:
        params = {"from": move["from"], "to": move["to"]}
        answer = await self._bridges.memory("move", session=move["session"], **params)
        if answer["leaf"] != move["to"]:
            raise GoneOn(f"the conversation in {move['session']} has gone on since")


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as data:
        while chunk := data.read(backups.CHUNK):
            yield chunk


class Files:
    """One file a session, in `agents/<id>/sessions/`."""

    def __init__(self, agents: Agents, bridges: Bridges) -> None:
        self._agents = agents
        self._bridges = bridges

    async def find(self, session: str, cut: Cut) -> Entry | None:
        if not self._exists(session):
            return None
        part = await asyncio.to_thread(jsonl.find, self.file(session), cut)
        return part.first if part else None

    async def remove(self, session: str, cut: Cut, about: dict[str, Any]) -> Move | None:
        if not self._exists(session):  # a first turn may not have one yet
            return None
        file = self.file(session)
        where = backups.folder(self._agents.folder(session))
        backup = await asyncio.to_thread(jsonl.remove, file, cut, where, about)
        if backup is None:
            return None
        await self._forget_abort(session)
        return self.move_of(backup, session)

    def move_of(self, backup: Backup, session: str) -> Move:
        first = backups.first_entry(backup)
        told = backup.header.get("removed", {}).get("lines")
        lines = told or sum(chunk.count(b"\n") for chunk in backup.chunks())
        return {
            "session": session,
            "store": "file",
            "did": "remove",
            "file": str(self.file(session)),
            "backup": str(backup.file),
            "entries": lines,
            "text": first.text if first else "",
        }

    async def prepare(self, move: Move, *, force: bool) -> Move:
        if move["did"] == "restore":  # taken away again
            return {**move, "did": "remove"}
        file, backup = self.file(move["session"]), backups.read(Path(move["backup"]))
        if backup.ours and backup.header.get("session") != move["session"]:
            raise TranscriptError(f"{backup.file.name} is not a backup of {move['session']}")
        if str(file) != move["file"]:
            raise GoneOn(f"{move['session']} was begun anew; its old transcript is {move['file']}")
        base = await asyncio.to_thread(jsonl.place, file, backup, force=force)
        return {**move, "did": "restore", "base": base}

    async def carry_out(self, move: Move) -> None:
        work = jsonl.put_back if move["did"] == "restore" else jsonl.take_again
        backup = backups.read(Path(move["backup"]))
        await asyncio.to_thread(work, Path(move["file"]), backup, move["base"])

    async def _forget_abort(self, session: str) -> None:
        """The host would tell the agent that something was aborted."""
        if list(self._bridges):
            await self._bridges.forget_abort(session)
        elif not self._bridges.idents():  # nobody else writes that file
            listed = self._index(session)
            if listed[session].get("abortedLastRun"):
                listed[session]["abortedLastRun"] = False
                file = self._agents.folder(session) / "sessions" / "sessions.json"
                write_private(file.resolve(), json.dumps(listed, indent=2))

    def whose(self, backup: Backup) -> str:
        """The session that a backup of somebody else's is of; empty when that cannot be told."""
        agent = backup.file.resolve().parent.parent.name
        told, first = backup.header.get("transcript"), backups.first_entry(backup)
        for key in self.keys(f"agent:{agent}:"):
            file = self.file(key)
            if told and Path(str(told)).resolve() == file.resolve():
                return key
            last = jsonl.last(file) if first and not told else None
            if first and last and first.parent == last.id:
                return key
        return ""

    def newest(self, session: str) -> str | None:
        """The session of the same agent that was last written to."""
        written: dict[str, float] = {}
        for key in self.keys(session):
            with contextlib.suppress(OSError):
                written[key] = os.lstat(self.file(key)).st_mtime
        return max(written, key=written.__getitem__, default=None)

    def keys(self, session: str) -> list[str]:
        """Every session of the same agent that has a file."""
        found = []
        for key in self._index(session):
            with contextlib.suppress(TranscriptError):
                if self._exists(key):
                    found.append(key)
        return found

    def file(self, session: str) -> Path:
        """Where the host says it is, inside the agent's own folder."""
        entry = self._index(session).get(session)
        if not isinstance(entry, dict):
            raise TranscriptError(f"there is no transcript of {session}")
        folder = self._agents.folder(session) / "sessions"
        name = entry.get("sessionFile") or f"{entry.get('sessionId')}.jsonl"
        file = folder / str(name)
        inside = "\0" not in str(name) and file.parent.resolve() == folder.resolve()
        if not inside or not file.name.endswith(".jsonl"):
            raise TranscriptError(f"the transcript of {session} is not in {folder}; left alone")
        return file

    def _exists(self, session: str) -> bool:
        return session in self._index(session) and os.path.lexists(self.file(session))

    def _index(self, session: str) -> dict[str, Any]:
        """What the host's list says of the agent's sessions."""
        try:
            folder = self._agents.folder(session)
        except TranscriptError:
            return {}
        return read_object(folder / "sessions" / "sessions.json") or {}
