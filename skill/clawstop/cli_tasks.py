"""The commands about tasks that cooperate: their flags, where they were, and their last wills."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from . import checkpoints as saved
from . import cookies, flagged, wills
from .errors import UsageError
from .paths import Paths
from .words import say


@click.group()
def flag() -> None:
    """Stop flags: files that tell a task to stop. A fresh one stops its session for real. Inside a
    tool of an agent's its own session is meant, where none is named.

    \b
    clawstop flag create agent:dev1:main "taking too long"
    clawstop flag check agent:dev1:main 60
    clawstop flag clear agent:dev1:main
    """


@flag.command()
@click.argument("session", required=False)
@click.argument("reason", default="")
@click.pass_obj
def create(paths: Paths, session: str | None, reason: str) -> None:
    """Leave a flag for SESSION: the host's id of it, or its key.

    \b
    clawstop flag create abc123 "taking too long"
    """
    sys.exit(flagged.main(_words("create", session, reason), paths))


@flag.command()
@click.argument("session", required=False)
@click.argument("max_age", default="")
@click.pass_obj
def check(paths: Paths, session: str | None, max_age: str) -> None:
    """Exit code 0: there is a flag, younger than MAX_AGE seconds [default: 60]; 1: there is none.

    \b
    clawstop flag check abc123 60 && exit
    """
    sys.exit(flagged.main(_words("check", session, max_age), paths))


@flag.command()
@click.argument("session", required=False)
@click.pass_obj
def clear(paths: Paths, session: str | None) -> None:
    """Take the flags of SESSION away. Its stop holds, if there was one: see `release`.

    \b
    clawstop flag clear abc123
    """
    sys.exit(flagged.main(_words("clear", session), paths))


def _words(act: str, session: str | None, more: str = "") -> list[str]:
    """An empty name is one, and is refused: somebody's variable was not set."""
    return [act, *([] if session is None else [session]), *([more] if more else [])]


@click.command()
@click.option("--session", help="Only of this one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def checkpoints(paths: Paths, session: str | None, as_json: bool) -> None:
    """Where tasks were that cooperate: what they saved, kept for a week.

    \b
    clawstop checkpoints --session agent:dev1:main --json
    """
    found = saved.listing(saved.folder(paths.checkpoints))
    found = [one for one in found if session in (None, one.session)]
    if as_json:
        from .cli import show

        show([one.as_dict() for one in found])
        return
    for one in found:
        last = one.last
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.at))
        word = say("checkpoint_done" if one.finished else "checkpoint_open")
        name = last["name"] if last else "-"
        click.echo(f"{when}  {word}  {one.session}  {one.task or '-'}  {name}")
    if not found:
        click.echo(say("no_checkpoints"))


@click.group()
def will() -> None:
    """A last will: what a session wants known if a crash cuts it off. Never needed, quoted when it
    is there. Inside a tool of an agent's its own session is meant, where none is named.

    \b
    clawstop will set --progress "12 of 15 done" --note "the third source is down"
    clawstop will show
    """


@will.command(name="set")
@click.option("--session", help="Whose [default: the one whose tool this is].")
@click.option("--task", help="What it is about.")
@click.option("--progress", help="How far it is.")
@click.option("--last-action", help="What it did last.")
@click.option("--note", help="What whoever goes on should know.")
@click.option("--ask", is_flag=True, help="Do not go on without asking the person.")
@click.option("--json", "more", help="Fields of your own, as a JSON object.")
@click.pass_obj
def set_will(
    paths: Paths,
    session: str | None,
    task: str | None,
    progress: str | None,
    last_action: str | None,
    note: str | None,
    ask: bool,
    more: str | None,
) -> None:
    """Write it; what it says replaces what an earlier one said.

    \b
    clawstop will set --task digest --progress "12 of 15" --json '{"opening": "at 3:42 am"}'
    """
    key = _session(session)
    told: dict[str, Any] = {}
    if more is not None:
        try:
            told = json.loads(more)
        except ValueError as error:
            raise UsageError(f"--json: {error}") from None
        if not isinstance(told, dict):
            raise UsageError('--json: expected an object, such as {"opening": "at 3:42"}')
    named = {"task": task, "progress": progress, "last_action": last_action, "note_to_self": note}
    told |= {name: value for name, value in named.items() if value is not None}
    wills.write(paths.wills, key, told | ({"can_resume": False} if ask else {}))
    click.echo(say("will_kept", session=key))


@will.command(name="show")
@click.option("--session", help="Whose [default: the one whose tool this is].")
@click.pass_obj
def show_will(paths: Paths, session: str | None) -> None:
    """Print it, as JSON. Exit code 1: there is none.

    \b
    clawstop will show --session agent:dev1:main
    """
    from .cli import show

    key = _session(session)
    found = wills.read(paths.wills, key)
    if found is None:
        click.echo(say("no_will", session=key), err=True)
        sys.exit(1)
    show(found)


def _session(named: str | None) -> str:
    owner = cookies.parse(os.environ.get(cookies.VARIABLE, ""))
    if not (named or owner):
        raise UsageError("whose? Name it: --session agent:dev1:main")
    if owner and named and named != owner.session:
        raise UsageError(f"this is a tool of {owner.session}: its will is its own")
    return named or (owner.session if owner else "")
