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

from . import __version__, cli_tasks, client
from .errors import Ambiguous, ClawstopError, GoneOn, UsageError
from .paths import Paths, default_paths
from .settings import resource
from .words import say

if TYPE_CHECKING:
    from .demo import Story
    from .doctor import Finding

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
        except BrokenPipeError:  # whoever reads us has left
            raise
        except OSError as error:
            click.echo(f"clawstop: {say('no_access', why=error)}", err=True)
            ctx.exit(1)


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


main.add_command(cli_tasks.flag)
main.add_command(cli_tasks.checkpoints)
main.add_command(cli_tasks.will)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def ask(paths: Paths, method: str, **params: Any) -> dict[str, Any]:
    return asyncio.run(patiently(client.call(paths, method, params)))


def ask_named(paths: Paths, method: str, target: str, **params: Any) -> dict[str, Any]:
    """The same about a target; of several that go by its name a person at a terminal chooses."""
    try:
        return ask(paths, method, target=target, **params)
    except Ambiguous as several:
        if not several.choices or not sys.stdin.isatty():
            raise
        click.echo(str(several))
        number = click.prompt(say("choose"), type=click.IntRange(1, len(several.choices)))
        return ask(paths, method, target=several.choices[number - 1], **params)


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
    """Stop TARGET: an agent by its id, its name or a part of either; a session by its key, the end
    of its key or its label; `all` or `everything`.

    \b
    clawstop stop dev1                  also zero_dev1, or 开发工程师, or kaifa
    clawstop stop agent:main:main --dry-run
    clawstop stop everything --now
    clawstop stop dev1 --keep           and let it remember the task

    What was being worked on is taken out of the agent's memory, once every process is dead;
    `clawstop restore` brings it back.

    Exit code 0: stopped and verified. 2: no such target. 3: stopped, but something is left (it
    says what). 4: several agents go by that name.
    """
    receipt = ask_named(
        paths,
        "stop",
        target,
        id=secrets.token_hex(8),
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
    answer = ask_named(paths, "freeze", target)
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
    answer = ask_named(paths, "release", target)
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
        word = say("reduced") if gateway.get("reduced") else ""
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
    for session in answer.get("cut_off", ()):
        click.echo(say("waits_for_word", session=session))


@main.command()
@click.argument("session", required=False)
@click.option("--yes", is_flag=True, help="Let what waits for your word go on; or SESSION alone.")
@click.option("--all", "every", is_flag=True, help="Show what is finished, stopped or running too.")
@click.option(
    "--wait-gateway", type=click.IntRange(0, 3600), help="Wait so many seconds for a gateway first."
)
@click.option("--dry-run", is_flag=True, help="Only look.")
@as_json
@click.pass_obj
def recover(
    paths: Paths,
    session: str | None,
    yes: bool,
    every: bool,
    wait_gateway: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show what a crash cut off, and what became of it. A gateway with clawstop in it goes on with
    that by itself; what was stopped never goes on.

    \b
    clawstop recover
    clawstop recover --wait-gateway 60 --yes     fits a service's ExecStartPost
    clawstop recover agent:dev1:main --yes

    What was cut off again and again, or asked to be asked about, goes on only when it is named.
    Exit code 3: something waits for a person's word.
    """
    from . import answers

    asked: dict[str, Any] = {"yes": yes, "dry_run": dry_run, "who": getpass.getuser()}
    asked["session"] = session or ""
    if wait_gateway is not None:
        asked["wait"] = wait_gateway
    rows = ask(paths, "recover", **asked)["sessions"]
    waits = any(row["did"] in ("asked", "suspended") for row in rows)
    if as_json:
        show(rows)
    else:
        for line in answers.recovered(rows, every=every):
            click.echo(line)
        if waits:
            click.echo(say("recover_yes"))
    if waits:
        sys.exit(LEFT)


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


binary = click.option(
    "--openclaw", "binary", help="The openclaw command [default: the one on PATH]."
)
preview = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")


@main.command()
@binary
@click.option(
    "--fence",
    type=click.Choice(["strict", "previews"]),
    help="Whether Telegram shows live previews [default: it asks; without a terminal, as it is].",
)
@click.option(
    "--replace", is_flag=True, help="Take away what earlier tools have left; it is kept aside."
)
@click.option(
    "--service", is_flag=True, help="Let the gateway's systemd service run `recover` at each start."
)
@preview
@click.pass_context
def install(
    ctx: click.Context,
    binary: str | None,
    fence: str | None,
    replace: bool,
    service: bool,
    dry_run: bool,
) -> None:
    """Link the plugin into OpenClaw, set up the engine, and tell every agent. Safe to repeat.

    \b
    clawstop install --dry-run
    clawstop install --replace     and take away agent-interrupt, boot-resume, task-interrupt

    Every step is a line, said before it is taken. What is edited is copied first.
    """
    from . import agents, leftovers
    from .doctor import examine
    from .install import chosen_fence, refuse_agents
    from .install import install as run_install
    from .service import write as write_service

    paths, asks = ctx.obj, sys.stdin.isatty() and not dry_run
    if fence or replace or service:  # what a person has chosen is theirs to change
        refuse_agents(paths, "install with --fence, --replace or --service")
    config = agents.read(paths)
    if fence is None and asks and not chosen_fence(config):
        fence = "previews" if click.confirm(say("ask_previews"), default=False) else "strict"
    for line in run_install(paths, binary, fence=fence, dry_run=dry_run):
        click.echo(line)
    if service:
        for line in write_service(paths, Path.home(), dry_run=dry_run):
            click.echo(line)
    left = leftovers.find(paths, config.agents)
    for one in left:
        click.echo(f"{one.tool} has left something: {one.what}")
    ours = [one for one in left if one.remove]
    if ours and not dry_run and (replace or (asks and click.confirm(say("replace_ask")))):
        for one in ours:
            click.echo(f"take away: {one.what}")
            try:
                if one.remove:
                    one.remove()
            except (OSError, ClawstopError) as error:
                click.echo(say("problem", text=f"{one.what}: {error}"))
    if not dry_run:
        _print_findings(asyncio.run(examine(paths)))
        click.echo(say("installed"))


@main.command()
@binary
@click.option("--purge", is_flag=True, help="Remove receipts and backups too.")
@preview
@click.pass_obj
def uninstall(paths: Paths, binary: str | None, purge: bool, dry_run: bool) -> None:
    """Take clawstop out of OpenClaw: plugin, config entry, every block in an AGENTS.md.

    \b
    clawstop uninstall --dry-run

    Files are put back as they were. Receipts and backups are kept unless --purge.
    """
    from .install import uninstall as run_uninstall

    for line in run_uninstall(paths, binary, purge=purge, dry_run=dry_run):
        click.echo(line)
    if not dry_run:
        click.echo(say("uninstalled"))


@main.command()
@click.option("--once", is_flag=True, help="Look once and leave: for cron.")
@preview
@as_json
@click.pass_obj
def watch(paths: Paths, once: bool, dry_run: bool, as_json: bool) -> None:
    """See that every agent is told what a stop means for it, also those added later.

    \b
    clawstop watch             until Ctrl-C; a gateway with clawstop in it does this by itself
    clawstop watch --once

    Exit code 1 when a file could not be changed.
    """
    from . import agentsmd, tending
    from .install import told_of

    def tell(reports: list[agentsmd.Report]) -> None:
        if as_json:
            show([report.as_dict() for report in reports])
        for report in [] if as_json else reports:
            if report.did not in ("same", "none"):
                click.echo(told_of(report))

    if once or dry_run:
        reports = tending.look(paths, dry_run=dry_run)
        tell(reports)
        sys.exit(not all(report.ok for report in reports))
    click.echo(say("watching"), err=True)
    try:
        asyncio.run(tending.keep(paths, tell))
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell counts it


@main.command()
@click.option("--canary", is_flag=True, help="Start a harmless run on the gateway and stop it.")
@click.option("--agent", default="main", show_default=True, help="With --canary: whose run.")
@click.option("--yes", is_flag=True, help="With --canary: do not ask.")
@as_json
@click.pass_obj
def doctor(paths: Paths, canary: bool, agent: str, yes: bool, as_json: bool) -> None:
    """Say what is wrong and what to do about it. Exit code 1 when something is.

    \b
    clawstop doctor --json
    clawstop doctor --canary      see a stop work, on your own gateway, with your own model
    """
    from . import answers
    from .doctor import Finding, examine

    if canary:
        if not yes:
            click.confirm(say("canary_ask", agent=agent), abort=True)
        flown = ask(paths, "canary", agent=agent)
        receipt, carried = flown["receipt"], flown["carried"]
        told = "; ".join(answers.lines(receipt))
        findings = [
            Finding(receipt["converged"], told, "clawstop receipts shows it whole"),
            Finding(carried, "a tool's process is known to be its run's", f"see {paths.log}"),
        ]
    else:
        findings = asyncio.run(examine(paths))
    if as_json:
        show([vars(finding) for finding in findings])
    else:
        _print_findings(findings)
    if not all(finding.ok for finding in findings):
        sys.exit(1)


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        click.echo(f"{say('ok' if finding.ok else 'bad')}  {finding.what}")
        if not finding.ok:
            click.echo(f"     -> {finding.fix}")


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
@click.option("--check", is_flag=True, help="Only say whether it could be.")
@click.pass_obj
def engine(paths: Paths, host: str, check: bool) -> None:
    """Be the engine until there is nothing to do. The bridge starts this."""
    if check:
        importlib.import_module(".server", __package__)
        return
    logging.basicConfig(
        level=os.environ.get("CLAWSTOP_LOG", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    from . import server

    logging.getLogger("clawstop").info("an engine for %s", host)
    asyncio.run(server.serve(paths))
