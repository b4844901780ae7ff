"""The engine as a process: one per state folder, on a private socket.

`serve` is startup, main loop, shutdown. With a `job` it is the engine for that one command: bridges
can connect while the job runs, and it leaves when the job is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import filelock

from .engine import Engine
from .errors import ClawstopError
from .paths import Paths, user, write_private
from .processes import ident_of
from .protocol import MAX_LINE, PROTOCOL, Peer

log = logging.getLogger("clawstop.server")

IDLE_SECONDS = 30.0  # without connections and stops: longer than a gateway takes to restart
SETTLE_SECONDS = 15.0  # a stop under way may finish; one that cannot is resumed at the next start

T = TypeVar("T")


class EngineRunning(ClawstopError):
    """Another engine holds the lock of this state folder."""


class Server:
    def __init__(self, paths: Paths, *, portable: bool = not hasattr(socket, "AF_UNIX")) -> None:
        self._paths = paths
        self._portable = portable  # loopback TCP, where there are no Unix sockets
        self._lock = filelock.FileLock(paths.lock, blocking=False, mode=0o600)
        self._leave = asyncio.Event()

    async def startup(self) -> None:
        self._paths.prepare()
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise EngineRunning(f"another engine serves {self._paths.root}") from None
        self.engine = Engine(self._paths)
        await self.engine.startup()
        endpoint = await self._listen()
        ident = ident_of(os.getpid())
        endpoint |= {
            "protocol": PROTOCOL,
            "token": self.engine.token,
            "pid": os.getpid(),
            "start": ident.start if ident else None,
        }
        write_private(self._paths.endpoint, json.dumps(endpoint))
        log.info("engine ready: %s", self._paths.root)

    async def _listen(self) -> dict[str, object]:
        if sys.platform == "win32" or self._portable:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MAX_LINE)
            return {"port": self._server.sockets[0].getsockname()[1]}
        path = self._paths.socket
        path.unlink(missing_ok=True)  # left by an engine that died: we hold the lock
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._accept, path, limit=MAX_LINE)
        finally:
            os.umask(mask)
        return {"socket": str(path)}

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer, self.engine.dispatch)
        if sys.platform == "linux" and not self._portable:
            # The folder is 0700 already; this holds also when somebody opened it up by mistake.
            peer.pid, uid = _credentials(peer.socket)
            if uid not in (user(), 0):
                log.warning("refused a connection of user %s", uid)
                peer.close()
                return
        try:
            await peer.run()
        finally:
            self.engine.gone(peer)

    async def main_loop(self) -> None:
        """Until told to leave, or until there has been nothing to do for a while."""
        idle = 0.0
        tick = 0.5  # also how long a stop flag may wait
        while not self._leave.is_set() and idle < IDLE_SECONDS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leave.wait(), tick)
            try:
                self.engine.tick()
            except Exception:  # nothing that lies in a folder takes the engine down
                log.exception("a look at the flags failed")
            idle = 0.0 if self.engine.busy else idle + tick

    def leave(self) -> None:
        if self._leave.is_set():  # asked twice: somebody is in a hurry
            sys.exit(1)
        self._leave.set()

    async def shutdown(self) -> None:
        try:
            if hasattr(self, "_server"):
                self._server.close()
                self._paths.endpoint.unlink(missing_ok=True)
                self._paths.socket.unlink(missing_ok=True)
            if hasattr(self, "engine"):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.engine.stops.settle(), SETTLE_SECONDS)
                self.engine.close()
        finally:
            self._lock.release()


async def serve(paths: Paths, job: Callable[[Engine], Awaitable[T]] | None = None) -> T | None:
    """Be the engine of `paths`: for good, or until `job` is done. Raises EngineRunning."""
    server = Server(paths)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises instead
            loop.add_signal_handler(number, server.leave)
    try:
        await server.startup()
        await server.engine.resume()
        if job is not None:
            return await job(server.engine)
        await server.main_loop()
        return None
    finally:
        await server.shutdown()


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of whoever connected, as the kernel saw it."""
    if sys.platform != "linux":
        raise NotImplementedError
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid
