"""The `bench slices` command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import (
    config_argument,
    echo_json,
    json_option,
    print_table,
    repeats_type,
    save_option,
    set_option,
    what_if_option,
)
from firetrain.cli.ranks import ranks_options, run_as_ranks, spread_over, started_by_hand

if TYPE_CHECKING:
    from firetrain.cluster import Identity, World
    from firetrain.config import Config
    from firetrain.records.profile import Profile


@click.command()
@config_argument
@click.option(
    "--for-ranks",
    metavar="N,N|N:N",
    help="Numbers of ranks to search for; A:B doubles from A to B.  [default: these ranks]",
)
@what_if_option
@click.option("--repeats", type=repeats_type(3), default=5, show_default=True, help="Timings per slice.")
@ranks_options(1)
@save_option
@set_option
@json_option
def slices(
    config: str, for_ranks: str | None, what_if: str, repeats: int, ranks: int, nodes: int, save: Path,
    overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Measure slices of CONFIG's layers for `firetrain search`.

    They are added to the profile, in which `firetrain bench profile` has measured links and steps. It measures the slices of the
    placements that a search names, and repeats this until none is missing. Without a launcher, the command starts its own ranks.

    \b
    Example:
      srun firetrain bench slices squeezenet-digits --save profile.json
    """
    from firetrain.config import load_config
    from firetrain.errors import UserError
    from firetrain.launch.refusals import refuse_unreadable_data
    from firetrain.predict.question import WhatIf
    from firetrain.records.profile import Profile
    from firetrain.search.searches import refuse_unsearchable

    loaded, world = load_config(config, overrides).config, spread_over(ranks, nodes)
    loaded.strategy.refuse_placed("bench slices")
    if world.size % len(world.nodes):
        raise UserError(f"bench slices needs as many ranks on every node (got {world})")
    if started_by_hand():
        refuse_unreadable_data(loaded.data)
        WhatIf.parse(what_if).refuse_oversubscribed_exchanges()
        refuse_unsearchable(loaded, Profile.load(save), _worlds(world, for_ranks))
    run_as_ranks(world, partial(_run, loaded, for_ranks, what_if, repeats, save, as_json))


def _worlds(world: World, for_ranks: str | None) -> list[World]:
    """The worlds to search for, with as many ranks on a node as these ranks: by default their own."""
    from firetrain.predict.question import parse_counts
    from firetrain.search.searches import worlds_of

    per_node = world.size // len(world.nodes)
    return worlds_of(parse_counts(for_ranks), per_node) if for_ranks else [world]


def _run(
    config: Config,
    for_ranks: str | None,
    what_if: str,
    repeats: int,
    save: Path,
    as_json: bool,
    identity: Identity,
) -> None:
    """Measure as one of the ranks; rank 0 prints."""
    from firetrain.bench.needed_slices import with_needed_slices
    from firetrain.config.label import model_label
    from firetrain.predict.question import WhatIf
    from firetrain.records.profile import Profile
    from firetrain.search.lazy_slices import slices_for
    from firetrain.transport.rendezvous import connect

    transport = connect(identity, config.cluster.transport, config.cluster.timeout_s, [str(config.reduction.spec)])
    # nothing but the JSON, also not on stderr: a launcher may send it to where stdout goes
    note = (lambda text: None) if as_json else click.echo
    find = partial(slices_for, config, _worlds(transport.world, for_ranks), WhatIf.parse(what_if), note)
    profile = with_needed_slices(Profile.load(save), config, transport, repeats, find, lambda known: known.save(save))
    if identity.is_first:
        profile.save(save)
        print_slices(profile, model_label(config.model, config.data), as_json)
    transport.close()


def print_slices(profile: Profile, label: str, as_json: bool) -> None:
    """Print the measured slices of a model."""
    from firetrain.report.text_table import TextTable

    own = [one for one in profile.slices if one.model == label]
    if as_json:
        echo_json([one.model_dump() for one in own])
        return
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
            click.echo(f"an exchange takes {1e3 * stolen.exchange_wait_s:.2f} ms more between computations")
