"""`python3 skill <command>`: set clawstop up on first use, then run it. Standard library only.

Makes a private virtual environment once, from locked versions, in the user's data folder; later
starts only look that it is there, and need no network. One that is damaged is made anew. What needs
the test tools (`test`, `demo --gateway`) has an environment of its own.

`stop` waits for none of this: without an environment that works, `clawstop.emergency` acts first.

This file parses on Python 3.6, so that an old Python gets a sentence and not a SyntaxError.
"""

import importlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType

SKILL = Path(__file__).resolve().parent
ROOT = SKILL.parent
OLDEST = (3, 11)
COMPLETE = "clawstop-complete"  # written into an environment last: without it, it is half made
FRESH = "clawstop_fresh"  # a -X option: the environment was made a moment ago, once is enough
ONCE = ("restore",)  # commands that may have done their work, and would do it twice
OURS = ("clawstop", "clawstop_hooks", "hosts")  # what no environment holds
DOT = 1.0  # seconds: what moves this often is seen to be alive
LOOK = 0.1  # how often another set-up is looked at; it takes seconds


class Broken(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def main() -> None:
    speak_utf8()
    if sys.version_info < OLDEST:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"clawstop: needs Python 3.11 or newer, this is {found}; run it with a newer one")
    keep_the_folder_clean()
    try:
        if inside():
            run(sys.argv[1:])
        else:
            start(sys.argv[1:])
    except Broken as broken:
        sys.exit(f"clawstop: {broken}")
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell counts Ctrl-C


def keep_the_folder_clean() -> None:
    """Whoever updates a skill takes a folder with more in it for an edited one. So compiled code
    goes elsewhere; this very file Python has compiled already, before it ran."""
    if sys.pycache_prefix is not None:
        return
    sys.pycache_prefix = str(data_folder() / "pycache")
    try:
        for file in (SKILL / "__pycache__").glob("__main__.*"):
            file.unlink()
        (SKILL / "__pycache__").rmdir()
    except OSError:  # there is none, or it has more in it, or it is not ours to change
        pass


def speak_utf8() -> None:
    """UTF-8 in and out, whatever the console's code page or PYTHONIOENCODING say."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # no stream at all under pythonw
        if reconfigure:
            # what is no UTF-8 at all is shown escaped: no word of ours ends in a traceback
            reconfigure(encoding="utf-8", errors="backslashreplace")


def say(text: str) -> None:
    print(f"clawstop: {text}", file=sys.stderr, flush=True)


def inside() -> bool:
    """True when an environment's Python runs this; HOME may be another one by now."""
    return (Path(sys.prefix) / COMPLETE).is_file()


# -- outside: find the environment, or make it, and go on in it


def start(arguments: "list[str]") -> None:
    """Go on as the environment's Python, with the same code."""
    command = command_of(arguments)
    if command == "run":
        launch(arguments)
    gateway = any(word.split("=")[0] == "--gateway" for word in arguments)
    measured = command == "bench" and not {"rewind", "takeover"}.isdisjoint(arguments)
    harness = (command == "demo" and gateway) or measured
    testing = command == "test" or harness
    lock = ROOT / "tests" / "requirements.txt" if testing else SKILL / "requirements.txt"
    if testing and not lock.is_file():
        what = "the tests are" if command == "test" else "the test gateway is"
        raise Broken(f"{what} not part of this download; clone the repository to run this")
    target = [str(SKILL), *arguments]
    if command == "test":
        target = [str(ROOT / "tests" / "run.py"), *arguments[1:]]
    folder = environment(lock)
    python = str(python_of(folder))
    fresh = False
    while True:
        if not ready(folder):
            set_up_for(arguments, folder, lock)
            fresh = True
        try:
            go_on([python, *(["-X", FRESH] if fresh else []), "-X", "utf8", *target], folder)
        except OSError as error:
            if fresh:
                raise Broken(f"{python} was just made and cannot be run: {error}") from None
            say(f"its environment is damaged ({error})")
            unmark(folder)


def launch(arguments: "list[str]") -> None:
    """`run` needs no environment, and every long command of an agent waits for it."""
    at = arguments.index("run")
    for number, word in enumerate(arguments[:at]):
        if word.split("=")[0] == "--state-dir":
            value = word.partition("=")[2] or arguments[number + 1]
            os.environ["OPENCLAW_STATE_DIR"] = value
    script = str(SKILL / "clawstop" / "launch.py")
    command = [sys.executable, "-I", "-S", script, *arguments[at + 1 :]]
    if os.name != "nt":
        os.execv(command[0], command)
    import subprocess

    sys.exit(subprocess.run(command, check=False).returncode)


def command_of(arguments: "list[str]") -> str:
    """The command's name. One option before it takes a value: --state-dir."""
    words = iter(arguments)
    for word in words:
        if word == "--state-dir":
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


def go_on(command: "list[str]", folder: Path) -> None:
    """Become the command; returns only when it found its environment damaged."""
    if os.name != "nt":
        os.execv(command[0], command)
    import subprocess  # exec there returns to the shell before the program has ended

    code = subprocess.run(command, check=False).returncode
    if ready(folder) or FRESH in command:
        sys.exit(code)


def data_folder() -> Path:
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "clawstop"


def environment(lock: Path) -> Path:
    """The folder of the environment for this lock file and this Python."""
    import hashlib

    locks = {SKILL / "requirements.txt", lock}
    text = b"".join(file.read_bytes() for file in sorted(locks)) + sys.version.encode()
    return data_folder() / f"env-{hashlib.sha256(text).hexdigest()[:12]}"


def python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def ready(folder: Path) -> bool:
    try:
        return (folder / COMPLETE).is_file() and python_of(folder).exists()
    except OSError:  # a folder that cannot be looked into
        return False


def unmark(folder: Path) -> None:
    """Let the next start make this environment anew."""
    try:
        (folder / COMPLETE).unlink(missing_ok=True)
    except OSError as error:
        raise Broken(
            f"its environment is damaged and cannot be changed ({error}); "
            f"make {folder} writable, or delete it"
        ) from None


def set_up_for(arguments: "list[str]", folder: Path, lock: Path) -> None:
    """Make the environment; a stop is carried out first, as far as that goes without it."""
    if not urgent(arguments):
        set_up(folder, lock)
        return
    answer = emergency().stop(arguments)
    if not answer.final:
        if answer.headline:
            say(f"{answer.headline}; setting up to finish it, Ctrl-C leaves it at that")
        try:
            set_up(folder, lock)
            return
        except Broken as broken:
            say(str(broken))
        except KeyboardInterrupt:
            say("set-up was interrupted")
    answer.show()
    sys.exit(answer.exit_code)


def urgent(arguments: "list[str]") -> bool:
    return command_of(arguments) in ("stop", "kill") and not {"-h", "--help"} & set(arguments)


# -- making an environment


def set_up(folder: Path, lock: Path) -> None:
    """Make the environment, unless somebody else does it meanwhile."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with alone(folder.parent / "set-up.lock"):
            if ready(folder):
                return
            if not folder.exists():
                say(f"setting up once, in {folder}")
            elif (folder / COMPLETE).exists():
                say(f"the Python in its environment is gone; making it anew, in {folder}")
            else:
                say(f"its environment is damaged or half made; making it anew, in {folder}")
            build(folder, lock)
            (folder / COMPLETE).touch()
            say("ready")
    except OSError as error:
        raise Broken(
            f"cannot write to {folder.parent}: {error}; make it writable, or name another folder "
            "in XDG_DATA_HOME (LOCALAPPDATA on Windows)"
        ) from None


@contextmanager
def alone(file: Path) -> "Iterator[None]":
    """One set-up at a time. SQLite's lock is the same on all systems and dies with its holder."""
    try:
        import sqlite3
    except ImportError:
        raise Broken(
            "this Python has no sqlite3 module, which clawstop keeps its state in; "
            "run it with a Python that has"
        ) from None
    try:
        with closing(sqlite3.connect(str(file), timeout=0, isolation_level=None)) as connection:
            with Dots("waiting for another set-up") as dots:
                while True:
                    try:
                        connection.execute("BEGIN EXCLUSIVE")
                        break
                    except sqlite3.OperationalError as error:
                        if "locked" not in str(error):
                            raise
                    dots.tick()
                    time.sleep(LOOK)
            yield
    except sqlite3.Error as error:
        raise OSError(f"{file.name}: {error}") from None


def build(folder: Path, lock: Path) -> None:
    """Make the environment with uv, or, without it or when it fails, with venv and pip."""
    import shutil

    base = base_python()
    python = str(python_of(folder))
    uv = shutil.which("uv")
    if uv:
        shutil.rmtree(str(folder), ignore_errors=True)
        uv = os.path.abspath(uv)
        problem = step("making an environment", [uv, "venv", "--python", base, str(folder)])
        problem = problem or step(
            "installing packages", [uv, "pip", "install", "--python", python, "-r", str(lock)]
        )
        if not problem:
            return
        say(f"uv could not do it ({problem}); trying pip")
    shutil.rmtree(str(folder), ignore_errors=True)
    problem = step("making an environment", [base, "-m", "venv", str(folder)])
    if problem:
        raise Broken(
            f"this Python cannot make a virtual environment ({problem}); install its venv module "
            "(Debian and Ubuntu: apt-get install python3-venv), or uv"
        )
    problem = step(
        "installing packages", [python, "-m", "pip", "install", "--quiet", "-r", str(lock)]
    )
    if problem:
        raise Broken(
            f"packages could not be installed ({problem}); the first set-up needs the network, "
            "so connect and run the same command again"
        )


def step(label: str, command: "list[str]") -> str:
    """Run a command with dots; returns "" or what went wrong."""
    import subprocess
    import tempfile

    with tempfile.TemporaryFile() as output, Dots(label) as dots:
        try:
            process = subprocess.Popen(
                command,
                cwd=str(data_folder()),  # a project's own uv, pip and Python files are not for us
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            return str(error)
        try:
            while True:
                dots.tick()
                try:
                    code = process.wait(LOOK)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.kill()
            process.wait()
            raise
        if not code:
            return ""
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    lines = [line.strip() for line in lines if line.strip()] or [f"exit code {code}"]
    errors = [line for line in lines if "error" in line.lower() or "no module" in line.lower()]
    return (errors or lines)[-1].rstrip(".")[:200]


def base_python() -> str:
    """The Python that environments are made of: this one may live in one that is about to go."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def clean_environment() -> "dict[str, str]":
    """What would lead pip or uv to another place, or to believe that all is installed, is out."""
    unwanted = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "UV_TARGET")
    kept = {key: value for key, value in os.environ.items() if key not in unwanted}
    kept.update(PYTHONUTF8="1", PYTHONIOENCODING="utf-8", PIP_USER="0", PIP_NO_INPUT="1")
    kept.update(PIP_DISABLE_PIP_VERSION_CHECK="1")
    return kept


class Dots:
    """A line on stderr that grows a dot a second and ends with the seconds it took."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begun = self._last = time.monotonic()
        self._open = False

    def tick(self) -> None:
        if not self._open:
            print(f"clawstop: {self._label} ", end="", file=sys.stderr, flush=True)
            self._open = True
        if time.monotonic() - self._last >= DOT:
            self._last += DOT
            print(".", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._open:
            print(f" {time.monotonic() - self._begun:.0f} s", file=sys.stderr, flush=True)
            self._open = False

    def __enter__(self) -> "Dots":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


# -- inside: the real command


def run(arguments: "list[str]") -> None:
    sys.path.insert(1, str(ROOT / "hooks"))
    try:
        cli = importlib.import_module("clawstop.cli")
    except Exception as error:  # a file cut short fails in ways of its own
        heal(error, arguments)
    else:
        try:
            cli.main(prog_name="clawstop")
        except (ImportError, SyntaxError) as error:  # what only this command imports
            heal(error, arguments, again=command_of(arguments) not in ONCE)


def heal(error: Exception, arguments: "list[str]", again: bool = True) -> None:
    """Something cannot be imported: start again as the Python outside, which makes it anew."""
    what = f"{type(error).__name__}: {error}"
    if ours(error):
        leave(copy_damaged(error), arguments)
    unmark_or_leave(arguments)
    if FRESH in sys._xoptions:
        fix = "run it with another Python, or report this"
        leave(Broken(f"its environment was just made and does not work ({what}); {fix}"), arguments)
    if not again:
        fix = "run the same command again and it is made anew"
        raise Broken(f"its environment is damaged ({what}); {fix}")
    say(f"its environment is damaged ({what})")
    if os.name == "nt":  # the Python outside waits for us, and sees what is to be done
        sys.exit(1)
    base = base_python()
    os.execv(base, [base, "-X", "utf8", str(SKILL), *arguments])


def unmark_or_leave(arguments: "list[str]") -> None:
    try:
        unmark(Path(sys.prefix))
    except Broken as broken:
        leave(broken, arguments)


def leave(broken: Broken, arguments: "list[str]") -> None:
    """Give up; a stop that is wanted is carried out with the standard library alone."""
    if not urgent(arguments):
        raise broken
    say(str(broken))
    answer = emergency().stop(arguments)
    answer.show()
    sys.exit(answer.exit_code)


def emergency() -> "ModuleType":
    try:
        return importlib.import_module("clawstop.emergency")
    except Exception as error:
        raise copy_damaged(error) from None


def copy_damaged(error: Exception) -> Broken:
    what = f"{type(error).__name__}: {error}"
    return Broken(f"this copy of clawstop is damaged ({what}); download it again")


def ours(error: BaseException) -> bool:
    """Whether the failure lies in clawstop's own files, so that a new environment is no help."""
    if isinstance(error, ImportError):
        return (error.name or "").split(".")[0] in OURS
    if isinstance(error, SyntaxError):
        file = error.filename or ""
    else:
        trace = error.__traceback__
        while trace and trace.tb_next:
            trace = trace.tb_next
        file = trace.tb_frame.f_code.co_filename if trace else ""
    return ROOT in Path(file).parents


if __name__ == "__main__":
    main()
