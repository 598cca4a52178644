"""The `train` command, and `trials` for launchers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.garbage import collect_as_usual
from firetrain.cli.options import config_argument, results_option, set_option

if TYPE_CHECKING:
    from firetrain.config import Loaded


@click.command()
@config_argument
@set_option
@results_option
@click.option("--measure-noise-scale", is_flag=True, help="The same as --set log.noise_scale=true.")
@click.option(
    "--into",
    "run_path",
    type=click.Path(exists=True, path_type=Path),
    hidden=True,
    help="Set by launchers: the folder of a run.",
)
@click.pass_context
def train(
    ctx: click.Context, config: str, overrides: tuple[str, ...], results: Path, measure_noise_scale: bool, run_path: Path | None
) -> None:  # fmt: skip
    """Train CONFIG as one rank; usually started by a launcher.

    torchrun, srun and mpirun start a process for each rank. Without them there is one rank.

    \b
    Examples:
      firetrain train squeezenet-digits
      torchrun --nproc-per-node 2 -m firetrain train squeezenet-digits
    """
    from firetrain.cluster import identify
    from firetrain.errors import UserError

    identity = identify()
    try:
        loaded = _loaded(config, [*overrides, *(["log.noise_scale=true"] if measure_noise_scale else [])], run_path)
    except UserError:
        if not identity.is_first:
            ctx.exit(2)  # printed by rank 0 only
        raise
    from firetrain.cli.layers import found_placement
    from firetrain.report.summary import details, headline
    from firetrain.training.process import fail, leave
    from firetrain.training.rank import train_rank

    collect_as_usual()
    try:
        run = train_rank(loaded, identity, run_path, results, found_placement)
    except BaseException as error:
        fail(error, bool(ctx.find_root().params.get("debug")))
    if identity.is_first and run.summary():
        for line in (headline(run), *details(run)):
            click.echo(line)
    elif identity.is_first:
        click.echo(run.facts()["reason"])
    if identity.is_first:
        click.echo(f"run {run.path}")
    leave()


def _loaded(config: str, overrides: list[str], run_path: Path | None) -> Loaded:
    """The config; UserError also if its images cannot be read, which launchers have checked."""
    from firetrain.config import load_config
    from firetrain.launch.refusals import refuse_unreadable_data

    loaded = load_config(config, overrides)
    if run_path is None:
        refuse_unreadable_data(loaded.config.data)
    return loaded


@click.command(hidden=True)
@click.argument("allocation", type=click.Path(exists=True, path_type=Path))
@click.pass_context
def trials(ctx: click.Context, allocation: Path) -> None:
    """Train the unfinished trials of a comparison's ALLOCATION, as one rank; started by firetrain compare."""
    from firetrain.cli.layers import found_placement
    from firetrain.cluster import identify
    from firetrain.records import Run
    from firetrain.training.process import fail, leave
    from firetrain.training.rank import train_trials

    collect_as_usual()
    try:
        train_trials(Run.open(allocation), identify(), found_placement)
    except BaseException as error:
        fail(error, bool(ctx.find_root().params.get("debug")))
    leave()
