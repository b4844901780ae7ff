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
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], install):
            if subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL).returncode:
                break
    missing = [name for name in NEEDED if not shutil.which(name)]
    if missing:
        print(f"SKIPPED: tests that need {', '.join(missing)}: install with apt-get", flush=True)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
