"""`flag create | check | clear` for scripts: `python3 -I -S flagged.py check SESSION [MAX_AGE]`.

Needs no engine and nothing installed, and starts fast: a shell asks again and again. Exit code 0:
there and fresh, or done; 1: not there; 2: wrong use, or it cannot be told; 5: not permitted. An
older Python must get as far as the line that refuses it."""

import io
import math
import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    if sys.version_info < (3, 8):  # noqa: UP036 a shell runs this with whatever python3 there is
        print("clawstop: flags need Python 3.8 or newer", file=sys.stderr)
        sys.exit(2)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clawstop import cookies, flags
from clawstop.cookies import Owner
from clawstop.errors import ClawstopError, NotPermitted, UsageError
from clawstop.paths import Paths, default_paths

USAGE = (
    "usage: flag create SESSION [REASON] | check SESSION [MAX_AGE] | clear SESSION; "
    "SESSION may be left out inside a tool"
)


def main(arguments: "list[str]", paths: "Paths | None" = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a reason that a terminal cannot show is no error
            stream.reconfigure(errors="replace")
    try:
        return _main(arguments, paths or default_paths())
    except ClawstopError as error:
        print(f"clawstop: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # never 1: a script would go on
        print(f"clawstop: {error!r}", file=sys.stderr)
        return 2


def _main(arguments: "list[str]", paths: Paths) -> int:
    owner = cookies.parse(os.environ.get(cookies.VARIABLE, ""))
    if len(arguments) == 1 and owner:  # inside a tool: its own session
        arguments = [*arguments, owner.session]
    if len(arguments) not in (2, 3) or arguments[0] not in ("create", "check", "clear"):
        raise UsageError(USAGE)
    act, session, *more = arguments
    if not flags.is_session(session):
        raise UsageError(f"{session[:40]!r} is no id or key of a session")
    places = flags.folders(paths.flags)
    if act == "create":
        file = flags.create(flags.home(paths.flags), session, *more)
        print(f"stop flag for {session}: {file}")
        return 0
    if act == "clear":
        may_clear(session, owner, places)
        print(f"{flags.clear(places, session, owner)} flags of {session} taken away")
        return 0
    found = flags.check(places, session, _seconds(*more), owner=owner, state=paths.known_state)
    if found is None:
        print(f"no stop flag for {session}")
        return 1
    age = max(0, round(time.time() - found.at))
    print(f"stop flag for {session}: {found.reason or 'no reason'}, {age} s old")
    return 0


def _seconds(words: str = "") -> "float | None":
    try:
        seconds = float(words) if words else None
    except ValueError:
        seconds = math.nan
    if seconds is not None and not math.isfinite(seconds):
        raise UsageError(f"an age is a number of seconds, not {words[:40]!r}")
    return seconds


def may_clear(session: str, owner: "Owner | None", places: "list[Path]") -> None:
    """A process of a run clears flags of its own session, and nobody else's."""
    if owner is None or session == owner.session:
        return
    if not any(flag.key == owner.session for flag in flags.find(places, session)):
        raise NotPermitted(f"only flags of {owner.session} may be cleared from inside its run")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
