"""`python3 skill <command>`: set clawstop up on first use, then run it. Standard library only.

Makes a private virtual environment once, from locked versions, in the user's data folder; later
starts only look that it is there, and need no network. `python3 skill test` has an environment of
its own, with the test tools in it.
"""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

SKILL = Path(__file__).resolve().parent
ROOT = SKILL.parent
OLDEST = (3, 11)
COMPLETE = "clawstop-complete"  # written into an environment last: without it, it is half made


class Broken(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def data_folder() -> Path:
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "clawstop"


def environment(lock: Path) -> Path:
    """The folder of the environment for this lock file and this Python."""
    locks = {SKILL / "requirements.txt", lock}
    text = b"".join(file.read_bytes() for file in sorted(locks)) + sys.version.encode()
    return data_folder() / f"env-{hashlib.sha256(text).hexdigest()[:12]}"


def python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def say(text: str) -> None:
    print(f"clawstop: {text}", file=sys.stderr, flush=True)


def build(folder: Path, lock: Path) -> None:
    """Make the environment anew."""
    say(f"setting up once, in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Broken(f"cannot write to {folder.parent}: {error}") from None
    run(
        [sys.executable, "-m", "venv", str(folder)],
        "this Python cannot make a virtual environment; install its venv module "
        "(Debian and Ubuntu: apt-get install python3-venv)",
    )
    say("installing packages ...")
    pip = [str(python_of(folder)), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    run(
        [*pip, "install", "--quiet", "-r", str(lock)],
        "packages could not be installed; the first set-up needs the network",
    )
    (folder / COMPLETE).touch()
    say("ready")


def run(command: list[str], otherwise: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        last = (result.stdout + result.stderr).strip().splitlines()[-3:]
        raise Broken(otherwise + "".join(f"\n    {line}" for line in last))


def start(arguments: list[str]) -> None:
    """Go on as the environment's Python, with the same code."""
    testing = arguments[:1] == ["test"]
    lock = ROOT / "tests" / "requirements.txt" if testing else SKILL / "requirements.txt"
    if testing and not lock.is_file():
        raise Broken("the tests are not part of this download; clone the repository to run them")
    folder = environment(lock)
    python = python_of(folder)
    if not (folder / COMPLETE).is_file() or not python.exists():
        build(folder, lock)
    target = (
        [str(ROOT / "tests" / "run.py"), *arguments[1:]] if testing else [str(SKILL), *arguments]
    )
    command = [str(python), "-X", "utf8", *target]
    if os.name == "nt":  # exec there returns to the shell before the program has ended
        sys.exit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], command)


def inside() -> bool:
    """True when an environment's Python runs this; HOME may be another one by now."""
    return (Path(sys.prefix) / COMPLETE).is_file()


def main() -> None:
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"clawstop: needs Python 3.11 or newer; this is {found}")
    if not inside():
        try:
            start(sys.argv[1:])
        except Broken as broken:
            sys.exit(f"clawstop: {broken}")
    sys.path.insert(1, str(ROOT / "hooks"))
    try:
        cli = importlib.import_module("clawstop.cli")
    except ImportError as error:
        (Path(sys.prefix) / COMPLETE).unlink(missing_ok=True)
        sys.exit(
            f"clawstop: its environment was damaged ({error}); run the same command again and it "
            "is made anew"
        )
    cli.main(prog_name="clawstop")


if __name__ == "__main__":
    main()
