"""The command line. What only some commands need is imported there: a stop should start fast.

Exit codes: 0 done, 1 failed, 2 wrong use or unknown target, 3 stopped but
something is left, 4 ambiguous, 5 not permitted."""

from __future__ import annotations

import asyncio
import getpass
import importlib
import json
import logging
import os
import secrets
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__, client
from .errors import ClawstopError, GoneOn, UsageError
from .paths import Paths, default_paths
from .settings import resource
from .words import say

if TYPE_CHECKING:
    from .demo import Story

LEFT = 3
PATIENCE = 2  # seconds


class Group(click.Group):
    """`kill` is another name for `stop`, and our errors are sentences, not tracebacks."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, "stop" if name == "kill" else name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClawstopError as error:
            click.echo(f"clawstop: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The OpenClaw state folder [default: $OPENCLAW_STATE_DIR or ~/.openclaw].",
)
@click.pass_context
def main(ctx: click.Context, state_dir: Path | None) -> None:
    """The stop button for AI agents.

    \b
    clawstop stop dev1        stop an agent: its runs, tools and processes
    clawstop status           what is running, what is stopped
    clawstop doctor           what is wrong, and what to do
    """
    ctx.obj = default_paths(state_dir)


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def ask(paths: Paths, method: str, **params: Any) -> dict[str, Any]:
    return asyncio.run(patiently(client.call(paths, method, params)))


async def patiently(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Wait, and say so every two seconds: silence frightens."""
    task, seconds = asyncio.create_task(work), 0
    while not (await asyncio.wait({task}, timeout=PATIENCE))[0]:
        seconds += PATIENCE
        click.echo(say("waiting", seconds=seconds), err=True)
    return task.result()


def show(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


@main.command()
@click.argument("target")
@click.option("--dry-run", is_flag=True, help="Show what would be stopped; change nothing.")
@click.option("--now", is_flag=True, help="SIGKILL at once, without the grace period.")
@click.option("--include-main", is_flag=True, help="With `all`: stop the agent main too.")
@click.option(
    "--suspects", is_flag=True, help="End what works in its workspace too, proven or not."
)
@click.option("--no-rollback", "--keep", "keep", is_flag=True, help="Leave its memory as it is.")
@click.option(
    "--turns", type=click.IntRange(1), help="Take so many turns out of its memory, not only one."
)
@click.option("--to", help="Take everything out of its memory from this entry on.")
@as_json
@click.pass_obj
def stop(
    paths: Paths,
    target: str,
    dry_run: bool,
    now: bool,
    include_main: bool,
    suspects: bool,
    keep: bool,
    turns: int | None,
    to: str | None,
    as_json: bool,
) -> None:
    """Stop TARGET: an agent's id or a part of it, a session's key, `all` or `everything`.

    \b
    clawstop stop dev1
    clawstop stop agent:main:main --dry-run
    clawstop stop everything --now
    clawstop stop dev1 --keep           and let it remember the task

    What was being worked on is taken out of the agent's memory, once every process is dead;
    `clawstop restore` brings it back.

    Exit code 0: stopped and verified. 2: no such target. 3: stopped, but something is left (it
    says what). 4: several agents go by that name.
    """
    receipt = ask(
        paths,
        "stop",
        id=secrets.token_hex(8),
        target=target,
        dry_run=dry_run,
        include_main=include_main,
        suspects=suspects,
        who=getpass.getuser(),
        grace=0 if now else None,
        keep=keep,
        turns=turns,
        to=to or "",
    )
    if as_json:
        show(receipt)
    elif dry_run:
        _print_preview(receipt)
    else:
        _print_receipt(receipt)
    if not dry_run and not receipt["converged"]:
        sys.exit(LEFT)


def _print_preview(preview: dict[str, Any]) -> None:
    click.echo(say("would_stop", target=preview["target"], scopes=", ".join(preview["scopes"])))
    _print_found(preview)
    if preview["spared"]:
        click.echo(f"  {say('left_alone')}  {', '.join(preview['spared'])}")


def _print_found(preview: dict[str, Any]) -> None:
    from . import answers

    for run in preview["runs"]:
        click.echo(f"  {say('run')}  {run['run']}  {run['session']}")
    for line in answers.tree(preview["processes"]):
        click.echo(f"  {say('process')}  {line}")
    for process in preview.get("leased", ()):  # an older engine tells none of these
        click.echo(f"  {say('leased')}  {process['pid']}  {process['lease']}  {process['command']}")
    for process in preview.get("suspects", ()):
        click.echo(f"  {say('suspect')}  {process['pid']}  {process['command']}")
    for row in preview.get("memory", ()):
        told = row["text"] or row.get("why", "")
        click.echo(f"  {say('would_forget')}  {row['session']}  {row.get('entry', '')}  {told}")
    if "strangers" in preview:
        click.echo(f"  {say('strangers', count=preview['strangers'])}")


def _print_receipt(receipt: dict[str, Any]) -> None:
    from . import answers

    for line in answers.lines(receipt):
        click.echo(line)


@main.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS] -- COMMAND...")
@click.pass_obj
def run(paths: Paths, words: tuple[str, ...]) -> None:
    """Start COMMAND as an agent's own, so that a stop finds it: see `clawstop run --help`."""
    os.environ["OPENCLAW_STATE_DIR"] = str(paths.openclaw)
    script = str(Path(__file__).with_name("launch.py"))
    command = [sys.executable, "-I", "-S", script, *words]
    if sys.platform != "win32":
        os.execv(command[0], command)
    import subprocess

    sys.exit(subprocess.call(command))


@main.command()
@click.option("--pid", type=int, required=True, help="The process.")
@click.option("--agent", help="Whose it is: an agent's id.")
@click.option("--session", help="Whose it is: a session's key.")
@click.option("--lease", default="run", show_default=True, help="run, agent, or keep:8h.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what it is; change nothing.")
@as_json
@click.pass_obj
def mark(
    paths: Paths,
    pid: int,
    agent: str | None,
    session: str | None,
    lease: str,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a process that already runs an agent's own, with all that is below it.

    \b
    clawstop mark --pid 4242 --agent dev1
    clawstop mark --pid 4242 --session agent:dev1:main --lease keep:8h

    A stop of that agent then ends it, or leaves it alone for the time of its lease.
    """
    from . import marking

    mark = marking.prepare(paths, pid, agent, session, lease)
    if as_json:
        show(mark.as_dict())
    else:
        for line in mark.lines():
            click.echo(line)
    if dry_run:
        return
    if not yes:
        click.confirm(say("mark_ask", session=mark.owner.session), abort=True)
    marking.carry_out(paths, mark)


@main.command()
@click.argument("target")
@as_json
@click.pass_obj
def freeze(paths: Paths, target: str, as_json: bool) -> None:
    """Hold TARGET where it is: its processes stand still and its tools wait. Look, then decide.

    \b
    clawstop freeze dev1
    clawstop stop dev1          end it
    clawstop release dev1       let it go on, as if nothing had been

    Exit code 3: something goes on; it says what.
    """
    answer = ask(paths, "freeze", target=target)
    if as_json:
        show(answer)
    else:
        count = len(answer["frozen"])
        click.echo(say("frozen", target=answer["target"], count=count))
        _print_found(answer)
        for problem in answer["left"]:
            click.echo(say("problem", text=problem))
        click.echo(say("frozen_then", target=target))
    if answer["left"]:
        sys.exit(LEFT)


@main.command()
@click.argument("target")
@as_json
@click.pass_obj
def release(paths: Paths, target: str, as_json: bool) -> None:
    """Let TARGET run again. What was stopped stays dead; new messages start new runs.

    \b
    clawstop release dev1
    """
    answer = ask(paths, "release", target=target)
    if as_json:
        show(answer)
        return
    if answer["released"]:
        click.echo(say("released", scopes=", ".join(answer["released"])))
    elif not answer.get("frozen"):
        click.echo(say("not_stopped", target=answer["target"]))
    if answer.get("frozen"):
        click.echo(say("still_frozen", scopes=", ".join(answer["frozen"])))


@main.command()
@click.argument("what", required=False, metavar="[RECEIPT | BACKUP]")
@click.option("--session", help="Whose the backup is, where it does not say so itself.")
@click.option("--force", is_flag=True, help="Also when the conversation has gone on since.")
@as_json
@click.pass_obj
def restore(
    paths: Paths, what: str | None, session: str | None, force: bool, as_json: bool
) -> None:
    """Bring back what a stop took away: what the agent remembered, and its scheduled jobs.

    \b
    clawstop restore                     the last stop's
    clawstop restore 4f2a90c1d5e6b7a8    the one with this receipt; a restore's own undoes it
    clawstop restore ~/.openclaw/agents/dev1/interrupt-logs/rollback-20260101-120000.jsonl

    Runs and processes stay dead. When the conversation has gone on, nothing is changed without
    --force; with it, what was said since stays as a branch. Exit code 3: only a part came back.
    """
    from . import answers

    # A receipt's id is never a path, and a backup is always a file.
    backup = str(Path(what).absolute()) if what and Path(what).suffix == ".jsonl" else ""
    asked = {"receipt": "" if backup else what or "", "backup": backup, "session": session or ""}
    try:
        answer = ask(paths, "restore", who=getpass.getuser(), force=force, **asked)
    except GoneOn as error:
        raise GoneOn(say("gone_on", why=error)) from error
    if as_json:
        show(answer)
    for line in [] if as_json else answers.restored(answer):
        click.echo(line)
    if answer.get("left"):
        sys.exit(LEFT)


@main.command()
@as_json
@click.pass_obj
def status(paths: Paths, as_json: bool) -> None:
    """Show gateways, sessions, and what is stopped.

    \b
    clawstop status --json
    """
    answer = ask(paths, "status")
    if as_json:
        show(answer)
        return
    for problem in answer["problems"]:
        click.echo(say("problem", text=problem))
    if not answer["gateways"]:
        click.echo(say("no_gateway"))
    for gateway in answer["gateways"]:
        name = f"{gateway['host']} {gateway['version']} (pid {gateway['pid']})"
        word = "" if all(value is not False for value in gateway.values()) else say("reduced")
        click.echo(f"{say('gateway')}  {name}  {word}".rstrip())
    for scope in answer["latches"]:
        click.echo(f"{say('is_stopped')}  {scope}")
    for scope in answer.get("frozen", ()):
        click.echo(f"{say('is_frozen')}  {scope}")
    for session in answer["sessions"]:
        stopped = "is_standby" if session.get("standby") else "is_stopped"
        word = stopped if session["stopped_since"] else "is_running"
        state = say(word if session["stopped_since"] or session["runs"] else "is_idle")
        click.echo(f"{state}  {session['session']}  ({session['generation']})")
    for stop in answer["unfinished"]:
        click.echo(say("unfinished", id=stop))


@main.command(name="receipts")
@click.argument("id", required=False)
@click.option("--verify", is_flag=True, help="Check the hash chain; exit 1 when it is broken.")
@as_json
@click.pass_obj
def show_receipts(paths: Paths, id: str | None, verify: bool, as_json: bool) -> None:
    """List the receipts of all stops, or show the one called ID.

    \b
    clawstop receipts --verify
    """
    from . import answers, receipts

    named = id if id and len(id) >= receipts.SHORT_ID else None
    found = [
        r
        for r in receipts.read(paths.receipts)
        if id in (None, r.get("id")) or (named and str(r.get("id")).startswith(named))
    ]
    problems = receipts.verify(paths.receipts) if verify else []
    if id and not found:
        raise click.UsageError(f"there is no receipt {id}")
    if as_json:
        show({"receipts": found, "problems": problems})
    elif id:
        show(found[-1])
    else:
        for receipt in found:
            click.echo(answers.summary(receipt))
        for problem in problems:
            click.echo(say("problem", text=problem))
    if problems:
        sys.exit(1)


@main.command()
@click.option("--openclaw", "binary", help="The openclaw command [default: the one on PATH].")
@click.option(
    "--fence",
    type=click.Choice(["strict", "previews"]),
    help="Whether Telegram shows live previews [default: it asks; without a terminal, as it is].",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.pass_obj
def install(paths: Paths, binary: str | None, fence: str | None, dry_run: bool) -> None:
    """Link the plugin into OpenClaw and set up the engine. Safe to repeat.

    \b
    clawstop install --dry-run
    """
    from .install import chosen_fence
    from .install import install as run_install

    if fence is None and not dry_run and sys.stdin.isatty() and not chosen_fence(paths, binary):
        wanted = click.confirm(say("ask_previews"), default=False)
        fence = "previews" if wanted else "strict"
    for line in run_install(paths, binary, fence=fence, dry_run=dry_run):
        click.echo(line)


@main.command()
@click.option("--openclaw", "binary", help="The openclaw command [default: the one on PATH].")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@click.pass_obj
def uninstall(paths: Paths, binary: str | None, dry_run: bool) -> None:
    """Take the plugin out of OpenClaw. Receipts and state are kept.

    \b
    clawstop uninstall --dry-run
    """
    from .install import uninstall as run_uninstall

    for line in run_uninstall(paths, binary, dry_run=dry_run):
        click.echo(line)


@main.command()
@as_json
@click.pass_obj
def doctor(paths: Paths, as_json: bool) -> None:
    """Say what is wrong and what to do about it. Exit code 1 when something is.

    \b
    clawstop doctor --json
    """
    from .doctor import examine

    findings = asyncio.run(examine(paths))
    if as_json:
        show([vars(finding) for finding in findings])
    for finding in [] if as_json else findings:
        click.echo(f"{say('ok' if finding.ok else 'bad')}  {finding.what}")
        if not finding.ok:
            click.echo(f"     -> {finding.fix}")
    if not all(finding.ok for finding in findings):
        sys.exit(1)


@main.command()
@click.option("--gateway", is_flag=True, help="On a real gateway, from npm, with a scripted model.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture too.")
@as_json
def demo(gateway: bool, svg: Path | None, as_json: bool) -> None:
    """Stop a runaway agent on the embedded host, and show how. Needs no OpenClaw.

    \b
    clawstop demo

    Exit code 1 when anything at all happened after the stop.
    """
    from . import timeline  # rich is slow to import, and only this needs it
    from .demo import tell

    def progress(step: str) -> None:
        click.echo(say(step), err=True)

    if gateway:
        progress("demo_step_gateway")
        story: Story = _harness("hosts.demo").tell()
    else:
        story = asyncio.run(tell(progress))
    if as_json:
        show(story.as_dict())
    else:
        timeline.show(story, svg)
    if story.failures:
        sys.exit(1)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--docs", type=click.Path(dir_okay=False, path_type=Path), help="Write the table.")
@as_json
def bench(names: tuple[str, ...], docs: Path | None, as_json: bool) -> None:
    """Measure what counts beside the least it could cost, in one run.

    \b
    clawstop bench
    clawstop bench gate --json
    clawstop bench zoo          what hides, and what is left of it; Linux, as root
    clawstop bench rewind       on a real gateway, beside the host's own rewind
    clawstop bench takeover     the same, beside the host's own interrupt mode

    Exit code 1 when a bar is missed, or when anybody of the zoo is left.
    """
    from . import bench as benchmarks

    if names == ("zoo",):
        _bench_zoo(docs, as_json)
        return
    gateway = names[0] if names in (("rewind",), ("takeover",)) else ""
    rows = getattr(_harness("hosts.bench"), gateway)() if gateway else list(benchmarks.run(names))
    if as_json:
        show([row.as_dict() for row in rows])
    else:
        click.echo(benchmarks.table(rows))
    if docs is not None and gateway:
        benchmarks.put_table(docs, gateway, benchmarks.markdown(rows))
    elif docs is not None:
        benchmarks.write_docs(docs, rows)
    if not all(row.ok for row in rows):
        sys.exit(1)


def _bench_zoo(docs: Path | None, as_json: bool) -> None:
    from . import bench as benchmarks

    if sys.platform != "linux":
        raise UsageError("the zoo is for Linux")
    from . import bench_zoo

    rows = []
    for kind, results in bench_zoo.run():
        click.echo(say("zoo_kind", kind=kind, results=results["clawstop"]), err=True)
        rows.append((kind, results))
    if as_json:
        show({kind: {m: vars(r) for m, r in results.items()} for kind, results in rows})
    else:
        click.echo(bench_zoo.markdown(rows))
    if docs is not None:
        benchmarks.put_table(docs, "zoo", bench_zoo.markdown(rows))
    if any(results["clawstop"].left for _, results in rows):
        sys.exit(1)


def _harness(module: str) -> Any:
    """A part of the tests' own harness: it is not part of a download."""
    tests = resource("tests")
    if not (tests / "hosts").is_dir():
        raise UsageError("a real gateway needs the repository: clone it and run it there")
    sys.path.insert(0, str(tests))
    return importlib.import_module(module)


@main.command(hidden=True)
@click.argument("host", default="openclaw")
@click.pass_obj
def engine(paths: Paths, host: str) -> None:
    """Be the engine until there is nothing to do. The bridge starts this."""
    logging.basicConfig(
        level=os.environ.get("CLAWSTOP_LOG", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    from . import server

    logging.getLogger("clawstop").info("an engine for %s", host)
    asyncio.run(server.serve(paths))
