"""Waits until one of some files changes. The system tells, where it can; else they are looked at
once a second."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import watchfiles

log = logging.getLogger("clawstop.filewatch")

STEP_MS = 200  # a file is often written in several steps
LOOK_MS = 1000  # between looks, where the system does not tell
AGAIN_SECONDS = 5.0  # after the system refused to watch


async def changes(files: Callable[[], Iterable[Path]]) -> AsyncGenerator[None, None]:
    """Yields at once, and then after each change of one of `files`, which are asked for each time.
    No change is missed between two looks."""
    try:
        import watchfiles
    except ImportError:  # an engine without it notices changes a little later
        async for _ in _looking(files):
            yield
    polling = False
    while True:
        wanted, folders = _places(files())
        told = watchfiles.awatch(
            *folders,
            watch_filter=partial(_concerns, wanted),
            step=STEP_MS,
            recursive=False,
            force_polling=polling,
            poll_delay_ms=LOOK_MS,
            ignore_permission_denied=True,
        )
        change = asyncio.ensure_future(anext(told))
        try:
            await asyncio.sleep(0)  # from here on it watches
            while True:
                yield
                if _places(files()) != (wanted, folders):
                    break
                await change
                change = asyncio.ensure_future(anext(told))
        except (OSError, RuntimeError) as error:  # a folder that went, or no watches are left
            log.warning("not told of changes: %s", error)
            polling = not isinstance(error, FileNotFoundError)
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            change.cancel()
            await asyncio.wait({change})


async def _looking(files: Callable[[], Iterable[Path]]) -> AsyncGenerator[None, None]:
    last: object = None
    while True:
        now = [(file, _stamp(file)) for file in files()]
        if now != last:
            yield
        last = now
        await asyncio.sleep(LOOK_MS / 1000)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        about = file.stat()
    except (OSError, ValueError):
        return None
    return about.st_mtime_ns, about.st_ino


def _concerns(wanted: set[str], _: watchfiles.Change, path: str) -> bool:
    return path in wanted


def _places(files: Iterable[Path]) -> tuple[set[str], set[Path]]:
    """The names that count, and what is watched for them: a file, what it is a link to, and the
    folders above, which may come with the file in them."""
    names: set[str] = set()
    folders: set[Path] = set()
    for file in files:
        for one in {file, Path(os.path.realpath(file))}:
            names.update(map(str, (one, *one.parents)))
            folders.add(_watched(one.parent))
    return names, folders


def _watched(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(one for one in (folder, *folder.parents) if _is_folder(one))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or somebody else's folder
        return False
