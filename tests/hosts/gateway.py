"""Owns one real gateway process: its config, its start and end, and what it leaves behind."""

from __future__ import annotations

import atexit
import json
import secrets
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import config, processes
from .client import IDENTITY, MAIN, TERMINAL, Client, RpcError
from .install import Host
from .model import Model
from .telegram import Telegram

START_TIMEOUT = 120.0  # seconds; 10-25 on an idle machine, and tests share two cores
START_POLL = 0.2  # seconds between two attempts to connect
HALT_TIMEOUT = 30.0  # seconds after SIGTERM, then SIGKILL; idle takes 1-7, a live run holds it
STOP_TIMEOUT = 10.0  # the same for stop(): the host would wait 315 s for live runs, no test does
SETTLE = 1.0  # seconds for what is ending anyway, before it counts as left over
HELPER_SETTLE = (
    8.0  # seconds for the host's own helpers: its spawn broker stays 5.4 after a SIGKILL
)
CRASHES_APART = 31.0  # seconds: host and clawstop stand back from three crashes within a minute
CLI_TIMEOUT = 120.0  # seconds; a command loads the plugins, about 5 s
TAIL = 3000  # characters of log in an error


class GatewayError(Exception):
    """The gateway did not do as told; the message ends with the tail of its log."""


class Gateway:
    """A gateway under `root`. Use it as a context manager, or `start()` and `close()` it."""

    def __init__(
        self,
        root: Path,
        host: Host,
        *,
        plugin: Path | None = None,
        agents: Sequence[str] = ("main",),
        telegram: Telegram | None = None,
        plugin_hooks: bool = True,
        plugin_config: Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        env: Mapping[str, str | None] | None = None,
        model: Model | None = None,
    ) -> None:
        self.root = root.absolute()
        self.host = host
        self.agents = tuple(agents)
        self.telegram = telegram
        self.model = model or Model()
        self.port = _free_port()
        self.token = secrets.token_hex(16)
        self._folders = config.Folders(self.root)
        self._folders.make(self.agents)
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: processes.Guard | None = None
        self._left: list[tuple[int, str]] | None = None
        self._identity = TERMINAL if host.before(config.OPEN) else IDENTITY
        self._crashed = False
        self._ready = 0.0
        whole = config.merge(
            config.base(self._folders, self.port, self.token, self.model.url),
            config.roster(self._folders, self.agents),
            config.plugins(plugin, plugin_hooks, plugin_config or {}, telegram is not None),
            config.channel(telegram.config(), self.agents[0]) if telegram else {},
            overrides or {},
        )
        self.config_path.write_text(json.dumps(config.fitting(whole, host), indent=1))

    def __enter__(self) -> Self:
        return self if self.pid else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def state_dir(self) -> Path:
        return self._folders.state

    @property
    def config_path(self) -> Path:
        return self._folders.config

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The living gateway process."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def workspace(self, agent: str = "main") -> Path:
        return self._folders.workspace(agent)

    def env(self) -> dict[str, str]:
        """The environment of the gateway and of `cli`."""
        return config.environment(self._folders, self.host, self._env)

    def start(self, timeout: float = START_TIMEOUT) -> Self:
        """Start it and wait until a client can connect; after a crash not before its time."""
        if self.pid:
            raise GatewayError(f"the gateway runs already, pid {self.pid}")
        if self._crashed:
            time.sleep(max(0.0, self._ready + CRASHES_APART - time.monotonic()))
        self._crashed = False
        self._left = None
        self._guard = self._guard or processes.Guard(self.state_dir)
        with self._folders.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command("gateway", "run", "--port", str(self.port)),
                env=self.env(),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the test run is not the gateway's
            )
        atexit.register(self.close)
        try:
            self._await_ready(self._process, timeout)
            self._ready = time.monotonic()
        except BaseException:
            self.stop()
            raise
        return self

    def halt(self, timeout: float = HALT_TIMEOUT) -> None:
        """End the gateway gently and touch nothing else."""
        process = self._process
        if process is None:
            return
        process.terminate()  # nothing when it is gone: an unreaped child keeps its pid
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL the gateway process alone, as a crash would."""
        if self._process is None:
            raise GatewayError("the gateway was never started")
        self._crashed = True
        self._process.kill()
        self._process.wait(HALT_TIMEOUT)

    def restart(self, timeout: float = START_TIMEOUT) -> Self:
        """Halt it if it lives, and start it again; what it left over stays alive."""
        self.halt()
        return self.start(timeout)

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Halt it, take note of what is left over, and end that too."""
        self.halt(timeout)
        if self._left is None:
            self._left = self._settled()
        processes.sweep(self.state_dir)
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def close(self) -> None:
        """Stop it for good, with its model."""
        atexit.unregister(self.close)
        self.stop()
        self.model.close()

    def leftovers(self) -> list[tuple[int, str]]:
        """(pid, command line) of this gateway's other processes: now, or when `stop` found them."""
        if self._left is not None:
            return self._left
        found = processes.carrying(self.state_dir)
        return [(process.pid, process.command) for process in found if process.pid != self.pid]

    def client(self, session: str | None = None, **options: Any) -> Client:
        """A new connection, by default to the first agent's main session; `options` of Client."""
        default = MAIN.replace(":main:", f":{self.agents[0]}:", 1)
        try:
            return Client(
                self.url, self.token, session or default, identity=self._identity, **options
            )
        except (OSError, RpcError) as error:
            raise GatewayError(f"cannot connect: {error}\n{self._tail()}") from error

    def cli(self, *args: str, timeout: float = CLI_TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Run the host's own command line on this gateway's state and config."""
        return subprocess.run(
            self._command(*args),
            env=self.env(),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def log_text(self) -> str:
        log = self._folders.log
        return log.read_text(errors="replace") if log.is_file() else ""

    def _command(self, *args: str) -> list[str]:
        return [str(self.host.node), str(self.host.entry), *args]

    def _await_ready(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        last: Exception | None = None
        while time.monotonic() < deadline:
            if process.poll() is not None:
                code = process.returncode
                raise GatewayError(f"the gateway left with {code} at its start\n{self._tail()}")
            try:
                self.client().close()
                return
            except GatewayError as error:  # not listening yet, or listening but not ready
                last = error
                time.sleep(START_POLL)
        raise GatewayError(f"not ready in {timeout:g} s: {last}")

    def _settled(self) -> list[tuple[int, str]]:
        begin = time.monotonic()
        while found := self.leftovers():
            helpers = any(str(self.host.package) in command for _, command in found)
            if time.monotonic() - begin > (HELPER_SETTLE if helpers else SETTLE):
                break
            time.sleep(processes.SWEEP_POLL)
        return found

    def _tail(self) -> str:
        return f"--- tail of {self._folders.log}\n{self.log_text()[-TAIL:]}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
