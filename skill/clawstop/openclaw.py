"""The host's own command line, `openclaw`: how it is found and asked. A call takes 3 to 10 s."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import ClawstopError, UsageError
from .paths import Paths

SECONDS = 180.0  # it takes 3-10 s to start, and longer on a small machine
FAILED = 20  # lines of what it said


class OpenClaw:
    def __init__(self, paths: Paths, binary: str | None = None) -> None:
        found = shutil.which(binary or "openclaw")
        if not found:
            raise UsageError(
                f"{binary or 'openclaw'} was not found; install OpenClaw first, or say where it "
                "is with --openclaw"
            )
        self.binary = str(Path(found).absolute())
        self._paths = paths

    @cached_property
    def version(self) -> str:
        """As it says itself: `2026.9.6`; empty when it says something else."""
        found = re.search(r"\d{4}\.\d+\.\d+(?:-[\w.]+)?", self.run("--version"))
        return found[0] if found else ""

    def run(self, *arguments: str) -> str:
        """What it prints; ClawstopError with its own words when it fails."""
        try:
            result = subprocess.run(
                [self.binary, *arguments],
                env={**os.environ, "OPENCLAW_STATE_DIR": str(self._paths.openclaw)},
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                stdin=subprocess.DEVNULL,
                timeout=SECONDS,
                check=False,
            )
        except OSError as error:
            raise ClawstopError(f"{self.binary} cannot be run: {error}") from None
        except subprocess.TimeoutExpired:
            told = f"openclaw {' '.join(arguments)} did not end within {SECONDS:g} s"
            raise ClawstopError(told) from None
        if result.returncode:
            said = (result.stdout + result.stderr).strip().splitlines()[-FAILED:]
            raise ClawstopError("\n".join([f"openclaw {' '.join(arguments)} failed:", *said]))
        return result.stdout

    def json(self, *arguments: str) -> Any:
        """The JSON it prints, behind whatever it says before it."""
        said = self.run(*arguments)
        try:
            return json.loads(said[said.index("{") :])
        except ValueError:
            told = f"openclaw {' '.join(arguments)} printed no JSON: {said[:200]!r}"
            raise ClawstopError(told) from None

    def knows(self, *key: str) -> bool | None:
        """Whether this release's config may have this key; `*` stands for any name. None of one
        that cannot be asked."""
        try:
            about: Any = self._schema
        except ClawstopError:
            return None
        for part in key:
            inside = about.get("properties") if isinstance(about, dict) else None
            more = about.get("additionalProperties") if isinstance(about, dict) else None
            about = (inside or {}).get(part) or (more if part == "*" else None)
        return about is not None

    @cached_property
    def _schema(self) -> Any:
        return self.json("config", "schema")

    def takes(self, command: str, option: str) -> bool:
        """Whether a command of this release has this option."""
        try:
            return option in self.run(*command.split(), "--help")
        except ClawstopError:
            return False
