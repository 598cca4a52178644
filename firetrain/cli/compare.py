"""firetrain compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.launch import OF_JOBS, REPLACED, choose_place, note_variables, site_name, site_of, site_options
from firetrain.cli.options import config_argument, echo_json, json_option, results_option, set_option

if TYPE_CHECKING:
    from rich.console import Console

    from firetrain.launch.comparison import Group
    from firetrain.launch.site import Site


@click.command()
@config_argument
@click.option("--reductions", metavar="NAME,NAME", help="With parameters as name:key=value.  [default: most of them]")
@click.option("--nodes", metavar="N,N", help="Numbers of nodes; on this machine they are emulated.  [default: 1,2]")
@click.option("--ranks-per-node", metavar="N,N", help="Ranks on each node.  [default: 1]")
@click.option("--repeats", type=int, help="Rounds, each with all reductions in shuffled order; or seeds.  [default: 3]")
@click.option("--steps", type=int, help="Timed steps of each part.  [default: 20]")
@click.option("--warmup-steps", type=int, help="Steps before those that are timed.  [default: 5]")
@click.option("--to-target", is_flag=True, help="Train each part to its config's target: compares time-to-accuracy.")
@click.option(
    "--on", "place", type=click.Choice(["auto", "local", "slurm"]), default="auto", show_default=True,
    help="Where to run; auto: on Slurm if there is one and --site says which.",
)  # fmt: skip
@site_options
@set_option
@results_option
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="The folder.  [default: RESULTS/comparisons/NAME]"
)
@click.option("--dry-run", is_flag=True, help="Check everything and show what would run; start nothing.")
@json_option
def compare(
    config: str, nodes: str | None, ranks_per_node: str | None, reductions: str | None, to_target: bool, place: str,
    site: str | None, overrides: tuple[str, ...], results: Path, into: Path | None, dry_run: bool, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Compare reductions on CONFIG, a config or a comparison's file, side by side on the same nodes.

    For each number of nodes all reductions run in one allocation, in shuffled order, several times, with the same seed and
    batches. A part that fails is told, and the rest goes on. Started again, it goes on with what is missing.

    \b
    Examples:
      firetrain compare squeezenet-digits --reductions ring,tree,native --nodes 1,2
      firetrain compare firecaffe --on slurm --site mycluster
    """
    from rich.console import Console

    from firetrain.config.comparison import load_comparison, split_counts, split_reductions
    from firetrain.errors import UserError
    from firetrain.launch.comparison import plan, refuse_another, submit
    from firetrain.launch.fit import variables
    from firetrain.launch.job import refuse_unreadable_data

    of_jobs = {"site": site, **{key: given.pop(key) for key in OF_JOBS[1:]}}
    options = {key: value for key, value in given.items() if value is not None}
    if reductions is not None:
        options["reductions"] = split_reductions(reductions)
    if nodes is not None:
        options["nodes"] = list(split_counts(nodes, "--nodes"))
    if ranks_per_node is not None:
        options["ranks_per_node"] = list(split_counts(ranks_per_node, "--ranks-per-node"))
    if overrides:
        options["overrides"] = list(overrides)
    if to_target:
        if "steps" in options:
            raise UserError("--steps and --to-target: a part has either so many steps, or goes on to its target")
        options["steps"] = None
    comparison = load_comparison(config, options)
    folder = (into or results / "comparisons" / comparison.name).absolute()
    groups = plan(comparison, folder)
    refuse_another(comparison, groups, folder)
    # a table that does not fit is wrapped in a terminal, and written in full to a file
    console = Console(stderr=as_json)
    console = console if console.is_terminal else Console(stderr=as_json, width=240)
    on_slurm = choose_place(place, of_jobs, console) == "slurm"
    useless = [f"--{name.replace('_', '-')}" for name, value in of_jobs.items() if value and not on_slurm]
    if useless:
        raise UserError(f"{', '.join(useless)}: only with --on slurm; this comparison is on this machine")
    if on_slurm:  # mistakes come before anything is shown
        chosen = site_of(site_name(site or "generic"), {key: of_jobs[key] for key in REPLACED})
        own = variables(of_jobs["env"], of_jobs["pass_env"])
        note_variables(own, of_jobs["pass_env"])
    else:
        for group in groups:
            for part in group.parts:
                refuse_unreadable_data(part.loaded)
    _show_plan(groups, results, console)
    if dry_run:
        return
    if on_slurm:
        submitted = submit(comparison, groups, folder, chosen, site_name(site or "generic"), own, of_jobs["pass_env"])
        _on_slurm(submitted, groups, chosen, console)
    else:
        _on_this_machine(comparison, groups, folder, console)
    _tell(folder, as_json, console)


def _show_plan(groups: list[Group], results: Path, console: Console) -> None:
    """What will run, and how long it should take."""
    from firetrain.cluster import duration
    from firetrain.config.files import exists
    from firetrain.launch.comparison import estimate_s

    for group in groups:
        done = sum(exists(part.path / "summary.json") for part in group.parts)
        reductions = ", ".join(sorted({part.reduction for part in group.parts}))
        rounds = max(part.round for part in group.parts) + 1
        configs = ", ".join(sorted({part.loaded.config.name for part in group.parts}))
        text = f"{group.world}: {len(group.parts)} parts, {configs} with {reductions}, {rounds} times"
        console.print(f"{text}; {done} are done" if done else text, highlight=False, markup=False)
    estimate = estimate_s(groups, results)
    if estimate is None:
        text = "how long it takes is not known: no run of these configs is in the results folder, or parts go to their target"
    else:
        text = f"the steps should take {duration(estimate[0])}, from {estimate[1]} earlier runs or parts of the same configs"
    console.print(f"{text}; starting the ranks comes on top", highlight=False, markup=False)


@contextmanager
def _progress(groups: list[Group], console: Console) -> Iterator[Callable[[str], None]]:
    """A bar over all parts in a terminal, a line for each part that has ended elsewhere; what is yielded reads the folder."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from firetrain.records import COMPLETED, FAILED, RUNNING, Run

    runs = [Run(part.path) for group in groups for part in group.parts]
    ended = {run.path for run in runs if run.summary()}  # before this command
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("parts", total=len(runs))

        def look(doing: str) -> None:
            for run in (run for run in runs if run.path not in ended):
                facts = run.facts()
                if facts.get("state") == RUNNING:
                    doing = f"{run.path.parent.parent.name} {run.name}"
                if facts.get("state") in (COMPLETED, FAILED):
                    ended.add(run.path)
                    if not console.is_terminal or facts["state"] == FAILED:
                        why = f": {facts['reason']}" if facts.get("reason") else ""
                        text = f"{len(ended)} of {len(runs)}: {run.path.parent.parent.name} {run.name} {facts['state']}{why}"
                        console.print(text, highlight=False, markup=False, soft_wrap=True)
            bar.update(task, completed=len(ended), description=doing)

        yield look


def _on_this_machine(comparison: Any, groups: list[Group], folder: Path, console: Console) -> None:
    from firetrain.errors import FiretrainError, UserError
    from firetrain.launch.comparison import prepare, run_group
    from firetrain.launch.local import Attempt, Cancelled, RankFailed, run_ranks
    from firetrain.records import Run
    from firetrain.records.lock import held

    folder.mkdir(parents=True, exist_ok=True)
    with held(Run(folder)), _progress(groups, console) as look:
        prepare(comparison, groups, folder)
        for group in groups:
            record = Run(group.path)

            def start(group: Group = group, record: Run = record) -> str:
                with held(record) as lock:
                    attempt = Attempt(group.world, record.begin_attempt(), lambda: look(str(group.world)), holds=[lock])
                    try:
                        run_ranks(["parts", str(group.path)], attempt)
                    except RankFailed as error:
                        return str(error)
                return ""

            try:
                run_group(record, start)
            except (Cancelled, UserError):
                raise
            except FiretrainError as error:
                console.print(f"{group.world}: {error}", highlight=False, markup=False, soft_wrap=True)
        look("done")


def _on_slurm(submitted: Iterator[tuple[Group, int]], groups: list[Group], site: Site, console: Console) -> None:
    import time

    from firetrain.launch.comparison import unfinished
    from firetrain.launch.watch import state_of
    from firetrain.records import Run

    for group, job in submitted:
        console.print(
            f"job {job} submitted: {group.world}; {group.path}", highlight=False, markup=False, soft_wrap=True
        )
    console.print("Ctrl-C stops watching, not the jobs; the same command goes on with it", highlight=False)
    with _progress(groups, console) as look:
        asked_s = time.monotonic()
        while any(unfinished(group.path) for group in groups):
            look("waiting for Slurm")
            if time.monotonic() - asked_s >= site.poll_every_s:
                asked_s = time.monotonic()
                if all(state_of(Run(group.path)).ended for group in groups if unfinished(group.path)):
                    break
            time.sleep(0.5)
        look("done")
    for group in groups:
        if unfinished(group.path):
            state = state_of(Run(group.path))
            text = f"{group.world}: {state.text}; {state.failure}".rstrip("; ")
            console.print(text, highlight=False, markup=False, soft_wrap=True)


def _tell(folder: Path, as_json: bool, console: Console) -> None:
    """Write comparison.json and the plots, show the table. FiretrainError, after that, if a part failed or is missing."""
    from firetrain.errors import FiretrainError
    from firetrain.report.comparison import collect, save
    from firetrain.report.comparison_plot import plot

    found = collect(folder)
    path = save(found, folder)
    plot(found, folder)
    if as_json:
        echo_json(found)
    else:
        show(found, console)
        console.print(f"\n{path} and plots beside it", highlight=False, markup=False, soft_wrap=True)
    bad = [row for row in found["rows"] if "failed" in row["note"] or "not done" in row["note"]]
    if bad:
        raise FiretrainError(
            f"{len(bad)} of {len(found['rows'])} rows lack parts, see their notes; the same command goes on with what is missing"
        )


def show(comparison: dict[str, Any], console: Console) -> None:
    """Table and remarks."""
    from firetrain.report.comparison import grid, remarks

    console.print()
    console.print(grid(comparison).table())
    console.print()
    for remark in remarks(comparison):
        console.print(remark, highlight=False, markup=False)
