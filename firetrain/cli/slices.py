"""The `bench slices` command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import config_argument, print_table, repeats_type, save_option, set_option
from firetrain.cli.ranks import ranks_options, run_as_ranks, spread_over, started_by_hand

if TYPE_CHECKING:
    from firetrain.cluster import Identity
    from firetrain.config import Config
    from firetrain.records.profile import Profile
    from firetrain.strategy.slice import Slice
    from firetrain.transport.transport import Transport


@click.command()
@config_argument
@click.option(
    "--for-ranks",
    metavar="N,N|N:N",
    help="Numbers of ranks to search for; A:B doubles from A to B.  [default: these ranks]",
)
@click.option("--repeats", type=repeats_type(3), default=5, show_default=True, help="Timings per slice.")
@ranks_options(1)
@save_option
@set_option
def slices(
    config: str, for_ranks: str | None, repeats: int, ranks: int, nodes: int, save: Path, overrides: tuple[str, ...]
) -> None:
    """Measure slices of CONFIG's layers for `firetrain search`.

    They are added to the profile, in which `firetrain bench profile` has measured links and steps. It measures the slices of the
    placements that a search names, and repeats this until none is missing. Without a launcher, the command starts its own ranks.

    \b
    Example:
      srun firetrain bench slices squeezenet-digits --save profile.json
    """
    from firetrain.config import load_config
    from firetrain.launch.job import refuse_unreadable_data
    from firetrain.predict.question import parse_counts
    from firetrain.records.profile import Profile
    from firetrain.search.searches import refuse_unsearchable

    loaded, world = load_config(config, overrides).config, spread_over(ranks, nodes)
    loaded.strategy.refuse_placed("bench slices")
    if started_by_hand():
        refuse_unreadable_data(loaded.data)
        counts = parse_counts(for_ranks) if for_ranks else [world.size]
        refuse_unsearchable(loaded, Profile.load(save), counts, world.size // len(world.nodes))
    run_as_ranks(world, partial(_run, loaded, for_ranks, repeats, save))


def _run(config: Config, for_ranks: str | None, repeats: int, save: Path, identity: Identity) -> None:
    """Measure as one of the ranks; rank 0 searches."""
    from firetrain.bench.slices import Slices
    from firetrain.config.label import model_label
    from firetrain.predict.question import parse_counts
    from firetrain.records.measured_slice import Stolen
    from firetrain.records.profile import Profile
    from firetrain.search.calibration import measured_lazily, measured_slices
    from firetrain.search.searches import searches
    from firetrain.transport.rendezvous import connect

    transport = connect(identity, config.cluster.transport, config.cluster.timeout_s, [str(config.reduction.spec)])
    timed, label = Slices.of(config, transport, repeats), model_label(config.model, config.data)
    ceilings, stolen = timed.ceilings(), Stolen(model=label, share=timed.stolen())
    counts = parse_counts(for_ranks) if for_ranks else [transport.size]
    per_node = transport.size // len(transport.world.nodes)

    def measure(profile: Profile, wanted: list[Slice]) -> Profile:
        """The profile with the wanted slices, which all ranks measure."""
        _send(transport, wanted)
        return profile.with_slices(measured_slices(label, wanted, timed.seconds(wanted)))

    if identity.is_first:
        start = Profile.load(save).with_ceilings(ceilings, stolen)
        profile, _ = measured_lazily(
            start,
            lambda known: searches(config, known, lambda _: timed.graph.layers, counts, per_node, None),
            measure,
            click.echo,
        )
        _send(transport, [])
        profile.save(save)
        print_slices(profile, label)
    else:
        while wanted := _send(transport, []):
            timed.seconds(wanted)
    transport.close()


def _send(transport: Transport, wanted: list[Slice]) -> list[Slice]:
    """Broadcast the slices that rank 0 wants measured; none at the end."""
    from firetrain.strategy.slice import Slice

    return [Slice(*one) for one in transport.broadcast_object([tuple(one) for one in wanted])]


def print_slices(profile: Profile, label: str) -> None:
    """Print the measured slices of a model."""
    from firetrain.report.text_table import TextTable

    own = [one for one in profile.slices if one.model == label]
    rows = [
        [
            one.layer,
            *map(str, (one.images, one.outputs, one.inputs)),
            f"{1e3 * one.forward_s:.3f}",
            f"{1e3 * one.backward_s:.3f}",
        ]
        for one in own
    ]
    print_table(TextTable(["layer", "images", "outputs", "inputs", "forward ms", "backward ms"], rows, names=1))
    for stolen in profile.stolen:
        if stolen.model == label:
            click.echo(f"{stolen.share:.0%} of compute is lost while gradients are summed")
