"""The `search` command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import (
    Number,
    amount_type,
    config_argument,
    echo_json,
    json_option,
    print_table,
    ranks_type,
    refuse_given,
    set_option,
    what_if_option,
)
from firetrain.limits import MOST_OF_ANYTHING

if TYPE_CHECKING:
    from firetrain.cluster import World
    from firetrain.search.searches import Searched


@click.command()
@config_argument
@click.option(
    "--profile", "profile_name", metavar="NAME|FILE", default="uncalibrated", show_default=True, help="The measured profile."
)  # fmt: skip
@click.option(
    "--ranks", default="4", show_default=True, metavar="N,N|N:N", help="Numbers of ranks; A:B doubles from A to B."
)
@click.option(
    "--ranks-per-node", type=ranks_type, help="Ranks on each node.  [default: the profile's, otherwise the config's]"
)
@what_if_option
@click.option(
    "--margin",
    "margin_percent",
    type=Number(0, MOST_OF_ANYTHING),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="Recommend data-parallel training unless another placement is faster by more than this.",
)
@click.option("--memory-gib", type=amount_type, help="Memory for weights, their copies and activations of a rank.")
@click.option(
    "--explain",
    is_flag=True,
    help="Print a row for each layer, what each deviation from data-parallel training saves, and the timeline of a step.",
)
@click.option(
    "--compare", "compared", nargs=2, metavar="A B", help="Print the differences of two strategies or placement files."
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw the timeline of a step; for one number of ranks."
)  # fmt: skip
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path),
    help="Write the recommended placement to this file; for one number of ranks.",
)  # fmt: skip
@set_option
@json_option
def search(
    config: str, profile_name: str, ranks: str, ranks_per_node: int | None, what_if: str, margin_percent: float,
    memory_gib: float | None, explain: bool, compared: tuple[str, str] | None, svg: Path | None, out: Path | None,
    overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Search the fastest placement of CONFIG's model.

    Each layer is divided by images and by outputs. That nothing in this space is faster is proven, unless the command says that
    it is not. Nothing is measured: all times follow from the profile. With `--out`, train with the printed options.

    \b
    Example:
      firetrain search alexnet-thesis-tiny-imagenet --ranks 4:16
    """
    from firetrain.cli.layers import layers_of, refuse_unwritable_files
    from firetrain.config import load_config
    from firetrain.errors import UserError
    from firetrain.predict.question import WhatIf, parse_counts
    from firetrain.records.profile import Profile
    from firetrain.search.searches import searches, worlds_of

    if as_json:
        refuse_given({"--explain": explain, "--compare": bool(compared)}, "not with --json")
    counts, loaded = parse_counts(ranks), load_config(config, overrides).config
    if (out or svg) and len(counts) > 1:
        raise UserError(f"{'--out' if out else '--svg'} writes a file for one number of ranks (--ranks {ranks})")
    refuse_unwritable_files(svg=svg, placement=out)
    profile = Profile.find(profile_name)
    limit_bytes = int(memory_gib * 2**30) if memory_gib else None
    worlds = worlds_of(counts, ranks_per_node or profile.ranks_per_node or loaded.cluster.ranks_per_node)
    kept = [text for text in overrides if not text.startswith(("strategy.", "strategy="))]
    untrained = [_untrained(config, kept, world) for world in worlds]
    if out and untrained[0]:  # the command that is printed at the end would be refused
        raise UserError(f"--out {out}: {untrained[0]}")
    found = searches(loaded, profile, layers_of, worlds, limit_bytes, WhatIf.parse(what_if), margin_percent / 100)
    if out:
        found[0].written()  # may be refused before anything is printed
    if as_json:
        refused = zip(found, untrained, strict=True)
        echo_json([{**one.as_json(), "placements_refused": reason or None} for one, reason in refused])
    else:
        _show(found, profile.calibrated, explain, compared)
        for reason in dict.fromkeys(filter(None, untrained)):
            click.echo(f"note: training with a placement file would be refused: {reason}")
    if svg:
        _draw(found[0], svg)
    if out:
        kept += ["strategy.parameters={}"] if load_config(config, kept).config.strategy.parameters else []
        _write(found[0], out, "" if as_json else shlex.join([config, *(f"--set={text}" for text in kept)]))


def _untrained(config: str, overrides: list[str], world: World) -> str:
    """Why a config can be trained with no placement on the ranks of a world; empty if it can."""
    from firetrain.config import load_config
    from firetrain.config.validation import ConfigError
    from firetrain.search.search import ONE_WEIRD_TRICK

    options = {
        "cluster.nodes": len(world.nodes), "cluster.ranks_per_node": len(world.nodes[0]), "strategy.parameters": "{}",
        "strategy.name": ONE_WEIRD_TRICK,  # as any other one
    }  # fmt: skip
    try:
        load_config(config, [*overrides, *(f"{key}={value}" for key, value in options.items())])
    except ConfigError as error:
        return str(error).replace(f"strategy {ONE_WEIRD_TRICK} does", "placements do")
    return ""


def _show(found: list[Searched], calibrated: bool, explain: bool, compared: tuple[str, str] | None) -> None:
    from firetrain.predict.prediction import UNCALIBRATED
    from firetrain.report.text_table import TextTable
    from firetrain.search.table import LAYER_HEADINGS, differences, explanation, headings, layer_rows, remarks, row
    from firetrain.search.timeline import as_text

    # before anything is printed, because it may be refused
    different = {one.world: list(differences(one, *compared)) if compared else [] for one in found}
    print_table(TextTable(headings(found), [row(one, found) for one in found], names=2))
    for one in found:
        for line in remarks(one, found):
            click.echo(line)
        if explain:
            if one.is_pipeline:
                click.echo(
                    "the grids, which are slower than the pipeline; the timeline below them is that of the pipeline"
                )
            print_table(TextTable(LAYER_HEADINGS, layer_rows(one.found), names=2))
            for line in (*explanation(one), *as_text(one.timeline())):
                click.echo(line)
        for line in different[one.world]:
            click.echo(line)
    if not calibrated:
        click.echo(f"note: {UNCALIBRATED}")


def _draw(one: Searched, svg: Path) -> None:
    from firetrain.errors import CannotCreate
    from firetrain.records.file import write_whole
    from firetrain.search.timeline import draw

    name = one.placement().strategy
    write_whole(svg, draw(one.timeline(), f"{name}, {one.world}"), kind=CannotCreate)


def _write(one: Searched, out: Path, trained: str) -> None:
    """Write the placement, and print how to train what was searched, `trained`, with it."""
    from firetrain.errors import CannotCreate
    from firetrain.records.file import write_whole

    write_whole(out, one.file(), kind=CannotCreate)
    if trained:
        nodes = len(one.world.nodes)
        options = [
            "--nodes",
            str(nodes),
            "--ranks-per-node",
            str(one.world.size // nodes),
            f"--set=strategy.name={out}",
        ]
        click.echo(f"written to {out}; to train with it: firetrain launch {trained} {shlex.join(options)}")
