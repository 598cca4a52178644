"""`launch -- COMMAND`: any command as ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.jobs import choose_where, job_settings
from firetrain.cli.options import echo_json, option_names, refuse_given
from firetrain.cli.ranks import ARGUMENTS

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.launch.job import Submitted
    from firetrain.records import Run

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
requeue_option = click.option(
    "--requeue", type=click.Choice(["progress", "always", "never"]),
    help="Slurm, with -- COMMAND: when a job that was stopped is submitted again.  [default: progress, if there is something "
    "newer in the run's checkpoints]",
)  # fmt: skip
name_option = click.option("--name", help="With -- COMMAND: name of the run; default: that of the script.")


def command_given() -> list[str]:
    """The words after -- on the command line."""
    words: list[str] = click.get_current_context().find_root().meta[ARGUMENTS]
    return words[words.index("--") + 1 :] if "--" in words else []


def launch_command(
    command: list[str], shape: tuple[int, int], name: str | None, requeue: str | None, where: str, given: dict[str, Any],
    results: Path, console: Console, *, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a command on this machine or submit it. `shape`: number of nodes, and of ranks on each."""
    import shlex

    from firetrain.cluster import SystemClock, World
    from firetrain.errors import UserError
    from firetrain.launch.job import launch_command_on_slurm
    from firetrain.launch.script import Request, script
    from firetrain.launch.user_command import launch_here, name_of, refuse_unplaced, refuse_unrunnable
    from firetrain.records.run_name import run_name
    from firetrain.records.user_command import NEVER, PROGRESS

    if name and not _NAME.fullmatch(name):
        raise UserError(
            f"--name {name}: a run's name has up to 64 letters (a to z, A to Z), digits, '.', '_' and '-', and begins with a "
            "letter or digit"
        )
    called = name or name_of(command)
    world = World.even(*shape)
    if choose_where(where, given, console) == "slurm":
        _refuse_json_of_logs(given, as_json=as_json)
        settings = job_settings(given)
        if requeue and (given["segments"] or 1) > 1:
            raise UserError("--requeue: a chain of jobs (--segments) is not requeued")
        refuse_unrunnable(command, Path.cwd(), settings.site)
        folder = results.absolute() / run_name(called, SystemClock().date())
        request = Request(
            folder, world, settings.site, settings.variables, passed=settings.passed, segments=given["segments"] or 1,
            command=tuple(command), folder=str(Path.cwd()), may_requeue=requeue != NEVER,
        )  # fmt: skip
        if dry_run:
            click.echo(script(request), nl=False)
            return
        done = launch_command_on_slurm(command, request, settings, requeue or PROGRESS)
        _attend(done, settings.site.poll_every_s, given, as_json=as_json)
        return
    refuse_given({**option_names(given), "--requeue": requeue}, "only with --on slurm; this run is on this machine")
    refuse_unrunnable(command, Path.cwd())
    if dry_run:
        refuse_unplaced(world)
        click.echo(f"# {world} on this machine; nothing was started\n{shlex.join(command)}")
        return
    _echo_end(launch_here(command, world, called, results, console), as_json=as_json)


def resume_command(
    run: Run, where: str, given: dict[str, Any], console: Console, *, dry_run: bool, as_json: bool
) -> None:
    """Run the command of an interrupted run again, where it ran before."""
    import shlex

    from firetrain.cluster import World
    from firetrain.launch.job import resume_command_on_slurm
    from firetrain.launch.resume import asked_before, refuse_resumption
    from firetrain.launch.script import Request, script
    from firetrain.launch.user_command import refuse_unrunnable, resume_here
    from firetrain.records.user_command import NEVER, command_of

    refuse_resumption(run)
    command, facts = command_of(run) or [], run.facts()
    folder = str(facts.get("folder", "."))
    now = dict(given)
    given = asked_before(run, {**given, "site": given["site"] or facts.get("site")})
    if choose_where("slurm" if facts.get("site") and where == "auto" else where, given, console) == "slurm":
        _refuse_json_of_logs(now, as_json=as_json)
        settings = job_settings(given)
        refuse_unrunnable(command, Path(folder), settings.site)
        request = Request(
            run.path, World(tuple(facts["node_of"])), settings.site, settings.variables, passed=settings.passed,
            segments=given["segments"] or 1, command=tuple(command), folder=folder, may_requeue=facts.get("requeue") != NEVER,
        )  # fmt: skip
        if dry_run:
            click.echo(script(request), nl=False)
            return
        done = resume_command_on_slurm(run, request, settings)
        _attend(done, settings.site.poll_every_s, given, as_json=as_json)
        return
    refuse_given(option_names(now), "only with --on slurm; this run is on this machine")
    refuse_unrunnable(command, Path(folder))
    if dry_run:
        click.echo(f"# {facts['world']} on this machine; nothing was started\n{shlex.join(command)}")
        return
    resume_here(run, console)
    _echo_end(run, as_json=as_json)


def _refuse_json_of_logs(given: dict[str, Any], *, as_json: bool) -> None:
    """UserError if lines of a log would come between those of the JSON."""
    from firetrain.errors import UserError

    if as_json and given["follow"]:
        raise UserError("--follow and --json exclude each other: use --wait with --json")


def _echo_end(run: Run, *, as_json: bool) -> None:
    """Print how a run on this machine has ended, if that is to be JSON."""
    if as_json:
        echo_json({"run": str(run.path), "state": run.state, **run.summary()})


def _attend(done: Submitted, poll_every_s: float, given: dict[str, Any], *, as_json: bool) -> None:
    """Print the jobs, and wait for their end if that was asked for; FiretrainError if they do not end well."""
    from firetrain.launch.wait import failed, wait_for

    run, waits = done.run, given["wait"] or given["follow"]
    if not as_json:
        click.echo(f"job {', '.join(map(str, done.jobs))} submitted\nrun {run.path}\n\nnext:")
        for command in ("status", "logs --follow", "cancel"):
            click.echo(f"  firetrain {command} {run.from_here().path}")
    elif not waits:
        echo_json({"run": str(run.path), "jobs": list(done.jobs)})
    if not waits:
        return
    complete = wait_for(run, poll_every_s, click.echo if given["follow"] else None)
    if as_json:
        echo_json({"run": str(run.path), **run.summary()})
    if not complete:
        raise failed(run)
