"""The `bench profile` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import config_argument, echo_json, json_option, repeats_type, save_option, set_option
from firetrain.cli.ranks import ranks_options, run_as_ranks, spread_over, started_by_hand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firetrain.cluster import Identity


@click.command()
@config_argument
@click.option(
    "--batches", metavar="N,N", help="Images per rank to time.  [default: half, one and two times the config's]"
)
@click.option("--steps", type=repeats_type(3), default=10, show_default=True, help="Timed steps per batch size.")
@click.option("--repeats", type=repeats_type(3), default=7, show_default=True, help="Timings per message size.")
@ranks_options(1, "Number of ranks, without a launcher; 1 measures compute only, no links.")
@save_option
@set_option
@json_option
def profile(
    config: str, batches: str | None, steps: int, repeats: int, ranks: int, nodes: int, save: Path,
    overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Measure all that `firetrain predict` needs for CONFIG.

    That is, on this machine: the parts of a step, links, and the unexplained remainder. Without a launcher, the command starts
    its own ranks. Under torchrun, srun or mpirun, each process is one rank.

    \b
    Example:
      srun firetrain bench profile squeezenet-digits --save profile.json
    """
    from firetrain.config import load_config
    from firetrain.launch.refusals import refuse_unreadable_data
    from firetrain.predict.calibration import refuse_uncalibratable
    from firetrain.records.file import refuse_unwritable
    from firetrain.records.profile import Profile

    world = spread_over(ranks, nodes)
    loaded = load_config(config, overrides).config
    loaded.strategy.refuse_placed("bench profile")
    counts = _parse_batches(batches)
    refuse_unwritable(save)
    Profile.load_or_new(save)
    if started_by_hand():  # under a launcher, the ranks check their own world
        refuse_unreadable_data(loaded.data)
        refuse_uncalibratable(loaded.batch, str(loaded.reduction.spec), world)

    def run(identity: Identity) -> None:
        from firetrain.bench.profile import measure_profile
        from firetrain.report.measured_profile import lines
        from firetrain.transport.rendezvous import connect

        transport = connect(identity, loaded.cluster.transport, loaded.cluster.timeout_s)
        refuse_uncalibratable(loaded.batch, str(loaded.reduction.spec), transport.world)
        measured, after = measure_profile(save, loaded, transport, counts, steps, repeats)
        if identity.is_first and as_json:
            echo_json(after.model_dump(mode="json"))
        elif identity.is_first:
            for line in (*lines(measured, after), f"written to {save}"):
                click.echo(line)

    run_as_ranks(world, run)


def _parse_batches(text: str | None) -> Sequence[int]:
    from firetrain.config.comparison import split_counts
    from firetrain.limits import MOST_IMAGES

    return sorted(set(split_counts(text, "--batches", MOST_IMAGES))) if text else []
