"""The `compare` command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.jobs import OF_JOBS, choose_where, job_settings, site_options, where_option
from firetrain.cli.options import (
    ConfigName,
    echo_json,
    json_option,
    make_console,
    option_names,
    refuse_given,
    results_option,
    set_option,
)
from firetrain.cli.user_command import command_given

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.config.comparison import Comparison
    from firetrain.launch.job import JobSettings
    from firetrain.launch.trials import Allocation


@click.command()
@click.argument("config", type=ConfigName(), required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND]")
@click.option(
    "--reductions", metavar="NAME,NAME", help="Reductions, as name or name:key=value.  [default: most of them]"
)
@click.option(
    "--strategies", metavar="NAME,NAME", help="Strategies, as name or name:key=value.  [default: data-parallel]"
)
@click.option("--nodes", metavar="N,N", help="Numbers of nodes; emulated on a single machine.  [default: 1,2]")
@click.option("--ranks-per-node", metavar="N,N", help="Ranks on each node.  [default: 1]")
@click.option("--repeats", type=int, help="Repeats of each trial; with --to-target, the number of seeds.  [default: 3]")
@click.option("--steps", type=int, help="Timed steps of each trial.  [default: 20]")
@click.option("--warmup-steps", type=int, help="Untimed steps at the beginning of each trial.  [default: 5]")
@click.option("--to-target", is_flag=True, help="Train each trial to its config's target and compare time-to-accuracy.")
@where_option
@site_options
@set_option
@results_option
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the comparison.  [default: RESULTS/comparisons/NAME]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check everything and show what would run; start nothing.")
@json_option
def compare(
    config: str | None, command: tuple[str, ...], where: str, results: Path, into: Path | None, dry_run: bool, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Compare reductions and strategies on the same nodes.

    CONFIG is a config or a comparison's file. After --, any COMMAND whose script uses firetrain.ddp.Reducer is compared under
    several reductions instead; each of its trials ends with the last timed step. For each number of nodes, all trials run in one
    allocation, in shuffled order, several times, with the same seed and batches. A trial that fails is reported and the others
    still run. Repeat the command to run the missing trials.

    \b
    Examples:
      firetrain compare squeezenet-digits --reductions ring,tree,native --nodes 1,2
      firetrain compare alexnet-tiny-imagenet --strategies data-parallel,one-weird-trick --nodes 4
      firetrain compare firecaffe --on slurm --site mycluster
      firetrain compare --reductions native,ring,tree --ranks-per-node 2 -- python train.py
    """
    from firetrain.launch.comparison import refuse_another
    from firetrain.launch.trials import allocations_of
    from firetrain.launch.user_command import refuse_unrunnable
    from firetrain.records.file import refuse_impossible

    refuse_given({"--json": as_json and dry_run}, "not with --dry-run")
    of_jobs = {key: given.pop(key) for key in OF_JOBS}
    comparison = _comparison(config, command, given)
    folder = (into or results / "comparisons" / comparison.name).absolute()
    allocations = allocations_of(comparison, folder)
    refuse_impossible(folder)
    refuse_another(comparison, allocations, folder)
    _refuse_unplaceable(allocations)
    # wide tables are wrapped only in a terminal
    console = make_console(stderr=as_json)
    console = console if console.is_terminal else make_console(stderr=as_json, width=240)
    on_slurm = choose_where(where, of_jobs, console) == "slurm"
    settings = job_settings(of_jobs) if on_slurm else None
    if own := command_given():
        refuse_unrunnable(own, Path.cwd(), settings.site if settings else None)
    run = _on_slurm(settings) if settings else _on_this_machine(of_jobs, allocations)
    _show_plan(allocations, results, console)
    if not dry_run:
        run(comparison, allocations, folder, console)
        _print(folder, as_json, console)


def _refuse_unplaceable(allocations: list[Allocation]) -> None:
    """UserError if a strategy does not suit the ranks or the model of a trial."""
    from firetrain.cli.layers import refuse_unplaceable

    trials = [(allocation.world, loaded.config) for allocation in allocations for loaded in allocation.configs]
    for world, config in {
        (world, repr(config.model), config.data.image_size, config.batch.global_size, config.strategy.spec): (
            world,
            config,
        )
        for world, config in trials
    }.values():
        refuse_unplaceable(config, world)


def _comparison(config: str | None, command: tuple[str, ...], given: dict[str, Any]) -> Comparison:
    """The comparison of a config, of a file, or of the command after --; UserError unless there is exactly one of them."""
    from firetrain.config.comparison import comparison_of_command, load_comparison
    from firetrain.errors import UserError
    from firetrain.launch.user_command import name_of

    if own := command_given():
        meaningless = {
            "--set": given["overrides"],
            "--strategies": given["strategies"],
            "--to-target": given["to_target"],
        }
        refuse_given({"CONFIG": len(command) >= len(own), **meaningless}, "not with -- COMMAND, which has no config")
        return comparison_of_command(name_of(own), own, str(Path.cwd()), _options(given))
    if command:
        raise UserError(f"{' '.join(command)}: one CONFIG at a time; a command of your own follows --")
    if config is None:
        raise UserError("nothing to compare: give a CONFIG, or a command of your own after --")
    return load_comparison(config, _options(given))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a comparison that the command line sets; UserError if one cannot be read."""
    from firetrain.config.comparison import split_counts, split_specs
    from firetrain.errors import UserError
    from firetrain.limits import MOST_RANKS

    to_target, overrides = given.pop("to_target"), given.pop("overrides")
    options = {key: value for key, value in given.items() if value is not None}
    for key in ("reductions", "strategies"):
        if key in options:
            options[key] = split_specs(options[key])
    for key, option in (("nodes", "--nodes"), ("ranks_per_node", "--ranks-per-node")):
        if key in options:
            options[key] = list(split_counts(options[key], option, MOST_RANKS))
    if overrides:
        options["overrides"] = list(overrides)
    if to_target:
        if "steps" in options:
            raise UserError("--steps and --to-target exclude each other")
        options["steps"] = None
    return options


def _show_plan(allocations: list[Allocation], results: Path, console: Console) -> None:
    """Print what will run, and the estimated time."""
    from firetrain.cluster import duration
    from firetrain.config.files import exists
    from firetrain.config.sections.strategy import DATA_PARALLEL
    from firetrain.launch.estimate import estimate_s
    from firetrain.words import counted

    for allocation in allocations:
        done = sum(exists(trial.path / "summary.json") for trial in allocation.trials)
        reductions = ", ".join(sorted({trial.reduction for trial in allocation.trials}))
        strategies = sorted({trial.strategy for trial in allocation.trials})
        reductions += "" if strategies == [DATA_PARALLEL] else f"; strategies: {', '.join(strategies)}"
        repeats = max(trial.repeat for trial in allocation.trials) + 1
        configs = ", ".join(sorted({loaded.config.name for loaded in allocation.configs})) or "the command"
        text = f"{allocation.world}: {counted(len(allocation.trials), 'trial')} ({configs} with {reductions}; repeats: {repeats})"
        console.print(f"{text}; {done} done" if done else text, highlight=False, markup=False)
    estimate = estimate_s(allocations, results)
    if all(exists(trial.path / "summary.json") for allocation in allocations for trial in allocation.trials):
        text = "all trials are done"
    elif estimate is None:
        limits = [loaded.config.target.max_steps for allocation in allocations for loaded in allocation.configs]
        if not limits:
            why = "trials run a command"
        elif None in limits:
            why = "trials end with their target"
        else:
            why = "the results folder has no run of these configs"
        text = f"duration unknown: {why}"
    else:
        text = f"estimated time of the steps: {duration(estimate[0])}, from {counted(estimate[1], 'earlier run')}, plus start-up"
    console.print(text, highlight=False, markup=False)


@contextmanager
def _progress(allocations: list[Allocation], console: Console) -> Iterator[Callable[[str], None]]:
    """A progress bar in a terminal, otherwise a line for each trial that ends; yields a function that updates it."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from firetrain.launch.trials_seen import TrialsSeen

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    seen = TrialsSeen(allocations)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("trials", total=seen.count)

        def look(doing: str) -> None:
            for text, failed in seen.newly_ended():
                if failed or not console.is_terminal:
                    console.print(text, highlight=False, markup=False, soft_wrap=True)
            bar.update(task, completed=seen.ended, description=seen.running or doing)

        yield look


def _on_this_machine(of_jobs: dict[str, Any], allocations: list[Allocation]) -> Callable[..., None]:
    """A function that runs the comparison here. UserError, before it is called, for options of jobs or missing images."""
    from firetrain.errors import CannotCreate
    from firetrain.launch.comparison_here import run_here
    from firetrain.launch.refusals import refuse_unreadable_data
    from firetrain.records.file import cannot_write

    refuse_given(option_names(of_jobs), "only with --on slurm; this comparison is on this machine")
    for allocation in allocations:
        for loaded in allocation.configs:
            refuse_unreadable_data(loaded.config.data)

    def run(comparison: Comparison, allocations: list[Allocation], folder: Path, console: Console) -> None:
        with cannot_write(folder, CannotCreate):
            folder.mkdir(parents=True, exist_ok=True)
        with _progress(allocations, console) as look:
            for failure in run_here(comparison, allocations, folder, look):
                console.print(failure, highlight=False, markup=False, soft_wrap=True)
            look("done")

    return run


def _on_slurm(settings: JobSettings) -> Callable[..., None]:
    """A function that runs the comparison as jobs."""
    from firetrain.launch.comparison_jobs import submit, unfinished_states, wait_for_jobs
    from firetrain.launch.refusals import unseen_data

    def run(comparison: Comparison, allocations: list[Allocation], folder: Path, console: Console) -> None:
        def say(text: str) -> None:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

        read = [loaded.config.data for allocation in allocations for loaded in allocation.configs]
        for note in filter(None, dict.fromkeys(unseen_data(data, settings.site) for data in read)):
            click.echo(f"note: {note}", err=True)
        for allocation, job in submit(comparison, allocations, folder, settings):
            say(f"job {job} submitted: {allocation.world}; {allocation.path}")
        say("Ctrl-C stops watching; the jobs continue. Repeat the command to watch again.")
        with _progress(allocations, console) as look:
            wait_for_jobs(allocations, settings.site.poll_every_s, lambda: look("waiting for Slurm"))
            look("done")
        for text in unfinished_states(allocations):
            say(text)

    return run


def _print(folder: Path, as_json: bool, console: Console) -> None:
    """Write comparison.json and the plots, and show the table; then FiretrainError if a trial failed or is missing."""
    from firetrain.errors import FiretrainError
    from firetrain.report.comparison import collect, incomplete, save
    from firetrain.report.comparison_plot import plot

    found = collect(folder)
    path = save(found, folder)
    plot(found, folder)
    if as_json:
        echo_json(found)
    else:
        show(found, console)
        console.print(f"\nwritten: {path}, and plots in the same folder", highlight=False, markup=False, soft_wrap=True)
    if bad := incomplete(found):
        rows = f"{len(bad)} of {len(found['rows'])} rows"
        raise FiretrainError(f"{rows} are incomplete (see their notes); repeat the command to run the missing trials")


def show(comparison: dict[str, Any], console: Console) -> None:
    """Print the table and the remarks."""
    from firetrain.report.comparison_table import remarks, text_table

    console.print()
    console.print(text_table(comparison).table())
    console.print()
    for remark in remarks(comparison):
        console.print(remark, highlight=False, markup=False)
