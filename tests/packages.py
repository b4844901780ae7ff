"""The Debian packages that some tests use: strace for crashes, a browser for the host's page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NEEDED = ("strace", "chromium")  # each is a package and a command of the same name


def main() -> int:
    """Install what is missing, where that may be done; else say who needs it."""
    missing = [name for name in NEEDED if not shutil.which(name)]
    if not missing:
        return 0
    if os.name == "posix" and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
        for command in (["apt-get", "update", "-qq"], *([*install, name] for name in missing)):
            subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False)
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        print(f"SKIPPED: tests that need {', '.join(missing)}: install with apt-get", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
