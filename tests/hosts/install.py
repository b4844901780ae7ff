"""Owns the host installs: an OpenClaw release and its Node, from the npm registry, in a cache.

Two steps, because openclaw's preinstall refuses an old Node on PATH: the `node` package first, in a
folder of its own, then openclaw with that Node first on PATH. A marker file, written last, says
that an install was verified; a folder without it is made again.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEFAULT_VERSION = os.environ.get("CLAWSTOP_TEST_HOST") or "2026.9.6"
NODE_MAJOR = "26"  # 2026.9.6 asks for >= 24.16; 26 serves the older releases too
NPM_FLAGS = ("--no-audit", "--no-fund", "--loglevel=error")
NPM_TIMEOUT = 900.0  # ~800 MB: a minute on a good line, many on a slow one
CHECK_TIMEOUT = 60.0  # `--version` takes about a second; a cold disk takes longer
TAIL_LINES = 20  # holds npm's own error block
MARKER = ".complete"
VERSION = re.compile(r"\d+\.\d+\.\d+(-[\w.]+)?")
OVERRIDES = {"linkedom": "0.18.12"}  # later ones break older openclaw releases


class HostUnavailable(Exception):
    """No host can be had here: npm is missing, or an install failed. The message says which."""


@dataclass(frozen=True)
class Host:
    """One installed release: run `node entry ...` or `node clawhub ...`."""

    version: str
    node: Path
    entry: Path
    clawhub: Path

    def before(self, version: str) -> bool:
        """Whether this release is older than that one."""
        return _parts(self.version) < _parts(version)

    @property
    def package(self) -> Path:
        """The openclaw package folder; the host's own docs are in it."""
        return self.entry.parent


def host(version: str = DEFAULT_VERSION) -> Host:
    """The release `version`, installed first if it is not there."""
    if not VERSION.fullmatch(version):  # it names a folder that may be deleted
        raise HostUnavailable(f"{version!r} is not an openclaw version such as {DEFAULT_VERSION}")
    root = cache_root()
    node_folder, folder = root / f"node-{NODE_MAJOR}", root / version
    if not (_complete(node_folder) and _complete(folder)):
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / ".lock"):  # only who installs waits for who installs
            _install_node(node_folder)
            _install_openclaw(folder, version, _node_binary(node_folder))
    return _host(folder, version, _node_binary(node_folder))


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.partition("-")[0].split(".")]


def main() -> None:
    """Install hosts before any test waits for them, with a word on what is going on."""
    for version in sys.argv[1:]:
        print(
            f"OpenClaw {version} in {cache_root()} (the first time takes minutes) ...", flush=True
        )
        try:
            print(f"Node: {host(version).node}", flush=True)
        except HostUnavailable as missing:
            sys.exit(f"no real gateway: {missing}")


def cache_root() -> Path:
    """Where installs live: CLAWSTOP_TEST_CACHE, or the user's cache folder."""
    chosen = os.environ.get("CLAWSTOP_TEST_CACHE")
    return Path(chosen).absolute() if chosen else Path.home() / ".cache" / "clawstop" / "hosts"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # the other run's npm is bounded, so this is
        yield


def _host(folder: Path, version: str, node: Path) -> Host:
    modules = folder / "node_modules"
    return Host(
        version=version,
        node=node,
        entry=modules / "openclaw" / "openclaw.mjs",
        clawhub=modules / "clawhub" / "bin" / "clawdhub.js",
    )


def _complete(folder: Path) -> bool:
    return (folder / MARKER).is_file()


def _install_node(folder: Path) -> None:
    if _complete(folder):
        return
    _fresh(folder, {"private": True})
    _npm(folder, [f"node@{NODE_MAJOR}"])
    if not _node_binary(folder).is_file():
        # The binary comes from an install script, which npm may gate; this package has none.
        _npm(folder, [f"{_arch_package()}@{NODE_MAJOR}"])
    _expect(f"v{NODE_MAJOR}.", [_node_binary(folder), "--version"], home=folder)
    (folder / MARKER).touch()


def _install_openclaw(folder: Path, version: str, node: Path) -> None:
    if _complete(folder):
        return
    found = _host(folder, version, node)
    _fresh(folder, {"private": True, "overrides": OVERRIDES})
    _npm(folder, [f"openclaw@{version}", "clawhub"], node)
    _expect(version, [node, found.entry, "--version"], home=folder)
    _expect("", [node, found.clawhub, "--help"], home=folder)
    (folder / MARKER).touch()


def _fresh(folder: Path, manifest: Mapping[str, object]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # npm does not repair a half install
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps(manifest))


def _arch_package() -> str:
    arch = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    prefix = "node-bin" if (sys.platform, arch) == ("darwin", "arm64") else "node"
    return f"{prefix}-{sys.platform}-{arch}"


def _node_binary(folder: Path) -> Path:
    usual = folder / "node_modules" / "node" / "bin" / "node"
    bare = folder / "node_modules" / _arch_package() / "bin" / "node"
    return bare if bare.is_file() and not usual.is_file() else usual


def _npm(folder: Path, packages: Sequence[str], node: Path | None = None) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise HostUnavailable("npm is not on PATH: install Node.js to run tests on a real gateway")
    env = dict(os.environ)
    if node is not None:
        env["PATH"] = f"{node.parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    _run([npm, "install", *NPM_FLAGS, *packages], folder, env, NPM_TIMEOUT)


def _expect(text: str, command: Sequence[str | Path], home: Path) -> None:
    output = _run(command, home, {**os.environ, "HOME": str(home)}, CHECK_TIMEOUT)
    if text not in output:
        raise HostUnavailable(f"{_words(command)} answered without {text!r}:\n{_tail(output)}")


def _run(command: Sequence[str | Path], cwd: Path, env: Mapping[str, str], timeout: float) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=env,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as late:
        raise HostUnavailable(f"{_words(command)} was not done in {timeout:.0f} s") from late
    except OSError as broken:
        raise HostUnavailable(f"{_words(command)} does not run: {broken}") from broken
    if done.returncode:
        raise HostUnavailable(
            f"{_words(command)} failed with {done.returncode}:\n{_tail(done.stdout)}"
        )
    return done.stdout


def _words(command: Sequence[str | Path]) -> str:
    return " ".join(str(word) for word in command)


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-TAIL_LINES:])


if __name__ == "__main__":
    main()
