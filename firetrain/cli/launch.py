"""The `launch` command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.jobs import choose_where, job_settings, site_options, where_option
from firetrain.cli.options import (
    ConfigName,
    echo_json,
    json_option,
    make_console,
    option_names,
    ranks_type,
    refuse_given,
    results_option,
    set_option,
    was_given,
)
from firetrain.cli.user_command import command_given, launch_command, name_option, requeue_option, resume_command

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.cluster import World
    from firetrain.config import Config, Loaded
    from firetrain.launch.job import Submitted
    from firetrain.launch.script import Request
    from firetrain.records import Run

dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Check everything and print what would run or be submitted; start nothing."
)
segments_option = click.option(
    "--segments", type=click.IntRange(1, 100),
    help="Slurm: submit a chain of this many jobs, for runs longer than the walltime.",
)  # fmt: skip


def of_waiting(command: Callable[..., Any]) -> Callable[..., Any]:
    """--wait and --follow."""
    wait = click.option("--wait", is_flag=True, default=None, help="Slurm: wait until the run has ended.")
    follow = click.option(
        "--follow", is_flag=True, default=None, help="Slurm: show rank 0's log until the run has ended."
    )
    return wait(follow(command))


@click.command()
@click.argument("config", type=ConfigName(), required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
@click.option(
    "--resume", metavar="RUN", type=click.Path(path_type=Path),
    help="Resume RUN from its newest checkpoint, instead of starting CONFIG.",
)  # fmt: skip
@where_option
@click.option(
    "--nodes", type=ranks_type, help="Number of nodes (overrides cluster.nodes); emulated on a single machine."
)
@click.option("--ranks-per-node", type=ranks_type, help="Ranks on each node (overrides cluster.ranks_per_node).")
@set_option
@results_option
@dry_run_option
@json_option
@site_options
@segments_option
@requeue_option
@name_option
@of_waiting
def launch(
    config: str | None, resume: Path | None, where: str, nodes: int | None, ranks_per_node: int | None,
    overrides: tuple[str, ...], results: Path, dry_run: bool, as_json: bool, command: tuple[str, ...], requeue: str | None,
    name: str | None, **slurm: Any,
) -> None:  # fmt: skip
    """Train CONFIG on several ranks, on this machine or with Slurm.

    CONFIG is a file or the name of a shipped config. After --, any COMMAND is run as ranks instead. Ctrl-C makes the ranks save
    a checkpoint and exit; a second Ctrl-C kills them. --resume continues an interrupted run, with --set under another strategy
    or reduction, or for more epochs.

    \b
    Examples:
      firetrain launch squeezenet-digits --ranks-per-node 2 --set reduction.name=ring
      firetrain launch squeezenet-digits --on slurm --site mycluster --nodes 4 --ranks-per-node 2 --time 00:30:00
      firetrain launch --resume results/squeezenet-digits-20260102-030405-1a2b3c4d
      firetrain launch --ranks-per-node 2 -- python train.py --epochs 3
    """
    from firetrain.cli.layers import refuse_unplaceable
    from firetrain.errors import UserError
    from firetrain.launch.refusals import refuse_what_ranks_would, world_of
    from firetrain.launch.resume import changed, has_ended, refuse_resumption, where_it_goes_on
    from firetrain.records.file import refuse_impossible
    from firetrain.records.own_code import changed_code
    from firetrain.records.user_command import command_of

    refuse_given({"--json": as_json and dry_run}, "not with --dry-run")
    console = make_console(stderr=as_json)
    if own := command_given():
        refuse_given(
            {"CONFIG": len(command) >= len(own), "--resume": resume, "--set": overrides}, "not with -- COMMAND"
        )
        world = nodes or 1, ranks_per_node or 1
        launch_command(own, world, name, requeue, where, slurm, results, console, dry_run=dry_run, as_json=as_json)
        return
    refuse_given({"--requeue": requeue, "--name": name}, "only with -- COMMAND")
    if command:
        raise UserError(f"{' '.join(command)}: one CONFIG at a time; a command of your own follows --")
    run = _run_to_resume(
        config,
        resume,
        {"--nodes": nodes is not None, "--ranks-per-node": ranks_per_node is not None},
    )
    if run and command_of(run):
        refuse_given({"--set": overrides}, "not with a run of a command, which has no config")
        if run.summary():
            console.print(f"{run.name} is complete: nothing to resume", highlight=False, markup=False, soft_wrap=True)
            if as_json:
                echo_json({"run": str(run.path), **run.summary()})
            return
        resume_command(run, where, slurm, console, dry_run=dry_run, as_json=as_json)
        return
    loaded = changed(run, overrides) if run else _load(config, nodes, ranks_per_node, overrides)
    if run and has_ended(run, overrides):
        _print_complete(run, as_json, console)
        return
    refuse_what_ranks_would(loaded, run)
    if dry_run:
        refuse_impossible(results)
    refuse_unplaceable(loaded.config, world_of(loaded))
    _refuse_unsearchable(loaded.config, world_of(loaded))
    if run:
        refuse_resumption(run)
        for line in (where_it_goes_on(run), *changed_code(loaded.config, run.path, run.config().strategy)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    of_jobs = {**slurm, "site": slurm["site"] or (run and run.facts().get("site"))}
    if choose_where(where, of_jobs, console) == "slurm":
        _on_slurm(loaded, run, overrides, results, dry_run, as_json, console, of_jobs)
        return
    refuse_given(option_names(slurm), "only with --on slurm; this run is on this machine")
    _here(loaded, run, overrides, results, dry_run, as_json, console)


def _refuse_unsearchable(config: Config, world: World) -> None:
    """UserError if the ranks could not search the placement that the strategy `auto` stands for."""
    if config.strategy.profile is None or world.size == 1:
        return
    from firetrain.records.profile import Profile
    from firetrain.search.searches import refuse_unsearchable

    refuse_unsearchable(config, Profile.find(config.strategy.profile), [world])


def _here(
    loaded: Loaded,
    run: Run | None,
    overrides: tuple[str, ...],
    results: Path,
    dry_run: bool,
    as_json: bool,
    console: Console,
) -> None:
    from firetrain.launch.local import launch_local, local_world, resume_local

    if dry_run:
        click.echo(f"# {local_world(loaded)} on this machine; nothing was started")
        click.echo(loaded.annotated(), nl=False)
        return
    if run:
        resume_local(run, console, overrides)
    _print_end(run or launch_local(loaded, results, console), as_json, console)


def _run_to_resume(config: str | None, resume: Path | None, own: dict[str, object]) -> Run | None:
    """The run of --resume, if it is given; UserError unless there is either a config or a run."""
    from firetrain.errors import UserError
    from firetrain.records import Run
    from firetrain.records.user_command import command_of

    if resume is None:
        if config is None:
            raise UserError(
                "nothing to run: give a CONFIG (`firetrain config list` shows the shipped ones) or --resume RUN"
            )
        return None
    if config is not None:
        raise UserError(f"give either {config} or --resume: a resumed run keeps its own config")
    run = Run.open(resume)
    anew = "launch the command again" if command_of(run) else "start a new run from RUN/config.yaml"
    refuse_given(
        {**own, "--results": was_given("results")},
        f"not with --resume, which keeps the run's settings; to change them, {anew}",
    )
    return run


def _load(config: str | None, nodes: int | None, ranks_per_node: int | None, overrides: tuple[str, ...]) -> Loaded:
    from firetrain.config import load_config

    given = {"cluster.nodes": nodes, "cluster.ranks_per_node": ranks_per_node}
    shorthand = [f"{key}={value}" for key, value in given.items() if value is not None]
    return load_config(str(config), [*overrides, *shorthand])


def _on_slurm(
    loaded: Loaded, run: Run | None, overrides: tuple[str, ...], results: Path, dry_run: bool, as_json: bool, console: Console,
    given: dict[str, Any],
) -> None:  # fmt: skip
    from firetrain.errors import UserError
    from firetrain.launch.job import launch_slurm, new_folder, request_of, resume_slurm
    from firetrain.launch.refusals import unseen_data
    from firetrain.launch.resume import asked_before
    from firetrain.launch.script import script

    if as_json and given["follow"]:
        raise UserError("--follow and --json exclude each other: use --wait with --json")
    given = asked_before(run, given) if run else given
    settings = job_settings(given)
    folder = run.path if run else new_folder(loaded, results)
    request = request_of(loaded, folder, settings, given["segments"] or 1)
    if note := unseen_data(loaded.config.data, settings.site):
        click.echo(f"note: {note}", err=True)
    if dry_run:
        click.echo(script(request), nl=False)
        return
    done = resume_slurm(run, loaded, request, settings, overrides) if run else launch_slurm(loaded, request, settings)
    _print_submitted(done, request, as_json and not given["wait"], as_json, console)
    if given["wait"] or given["follow"]:
        _wait(done.run, settings.site.poll_every_s, given["follow"], as_json, console)


def _print_submitted(done: Submitted, request: Request, result: bool, as_json: bool, console: Console) -> None:
    shown, site = _relative(done.run.path), request.site
    if result:
        echo_json({"run": str(done.run.path), "jobs": done.jobs, "estimated_start": done.estimated_start or None})
    if as_json:
        return
    start = f", estimated start {done.estimated_start}" if done.estimated_start else ""
    jobs = ", ".join(map(str, done.jobs))
    lines = [
        f"job {jobs} submitted: {request.world}, {site.time}, partition {site.partition or 'default'}{start}",
        f"run {done.run.path}",
        "\nnext:",
        *(f"  firetrain {command} {shown}" for command in ("status", "logs --follow", "cancel")),
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _wait(run: Run, poll_every_s: float, follow: bool, as_json: bool, console: Console) -> None:
    from firetrain.launch.wait import failed, wait_for

    complete = wait_for(run, poll_every_s, click.echo if follow else None)
    if as_json or complete:
        _print_end(run, as_json, console)
    if not complete:
        raise failed(run)


def _print_complete(run: Run, as_json: bool, console: Console) -> None:
    text = f"{run.name} is complete: nothing to resume"
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    _print_end(run, as_json, console)


def _print_end(run: Run, as_json: bool, console: Console) -> None:
    if as_json:
        echo_json({"run": str(run.path), **run.summary()})
        return
    from firetrain.errors import UserError

    try:
        _print(run, console)
    except KeyError as error:
        raise UserError(f"{run.path / 'summary.json'}: damaged, {error} is missing") from None


def _print(run: Run, console: Console) -> None:
    """Print the result of a run, or why it has none."""
    from firetrain.report.summary import details, headline, next_commands, time_table

    if not run.summary():
        text = f"{run.state}: {run.facts().get('reason', '')}\nto resume: {run.from_here().resume_command}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    console.print(f"\n[bold]{headline(run)}[/bold]", highlight=False)
    for line in details(run):
        console.print(line, highlight=False)
    console.print()
    console.print(time_table(run))
    console.print("\nnext:", highlight=False)
    for line in next_commands(run):
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)


def _relative(path: Path) -> str:
    import os
    import shlex

    return shlex.quote(os.path.relpath(path))
