"""Suspects: processes in a stopped agent's workspace that nothing proves to be the agent's.

It may be the agent's server, or the editor of the person who looks at the same files. So they are
shown, and ended only when a person asks for that. Linux; elsewhere psutil tells the folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from . import processes
from .paths import user
from .processes import LINUX, Found, Ident, Stat


def find(
    workspaces: Iterable[Path],
    known: Collection[int],
    gateways: Collection[Ident],
    spare: Collection[Ident],
) -> list[Found]:
    """Who works in one of these folders, is this user's, and is nobody's so far.

    `known` are all owned processes, of whomever. Neither who started a gateway or us, nor what a
    gateway started, is ever meant; nor are the spared.
    """
    inside = [str(folder.resolve()) for folder in workspaces]
    if not inside:
        return []
    never = {0, 1, *known, *(ident.pid for ident in spare)}
    never |= {ident.pid for ident in processes.ancestors(os.getpid())}
    for gateway in gateways:
        never |= {ident.pid for ident in processes.ancestors(gateway.pid)}
        never |= {*processes.descendants(gateway.pid)}
    look = _linux if LINUX else _portable
    return [found for found in look(inside, never) if found.ident and not found.owners]


def _within(folder: str, inside: list[str]) -> bool:
    return any(folder == one or folder.startswith(one + os.sep) for one in inside)


def _linux(inside: list[str], never: set[int]) -> Iterator[Found]:
    def works_there(folder: int, stat: Stat, owners: object) -> bool:
        try:
            return _within(os.readlink("cwd", dir_fd=folder), inside)
        except OSError:  # another user's, or gone
            return False

    for pid in processes.everybody():
        try:
            ours = pid not in never and os.stat(f"/proc/{pid}").st_uid == user()
        except OSError:
            continue
        if ours and (found := processes.look_at(pid, set(), works_there)):
            yield found


def _portable(inside: list[str], never: set[int]) -> Iterator[Found]:
    import psutil

    me = psutil.Process().username()
    for process in psutil.process_iter(["cwd", "username"]):
        about = process.info
        if process.pid in never or about["username"] != me or not about["cwd"]:
            continue
        found = processes.look_portably(process.pid, set())
        if _within(about["cwd"], inside) and found:
            yield found
