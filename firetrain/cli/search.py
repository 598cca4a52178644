"""The `search` command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import (
    amount_type,
    config_argument,
    echo_json,
    json_option,
    print_table,
    ranks_type,
    refuse_given,
    set_option,
)

if TYPE_CHECKING:
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
@click.option("--memory-gib", type=amount_type, help="Memory for weights, their copies and activations of a rank.")
@click.option(
    "--explain",
    is_flag=True,
    help="Print a row for each layer, and what each deviation from data-parallel training saves.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the placement to this file; for one number of ranks."
)  # fmt: skip
@set_option
@json_option
def search(
    config: str, profile_name: str, ranks: str, ranks_per_node: int | None, memory_gib: float | None, explain: bool,
    out: Path | None, overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Search the fastest placement of CONFIG's model.

    Each layer is divided by images and by outputs, and nothing in that space is faster, which is proven. Nothing is measured:
    all times follow from the profile. With `--out`, train with the printed options.

    \b
    Example:
      firetrain search alexnet-thesis-tiny-imagenet --ranks 4:16
    """
    from firetrain.cli.layers import layers_of
    from firetrain.config import load_config
    from firetrain.errors import UserError
    from firetrain.predict.question import parse_counts
    from firetrain.records.profile import Profile
    from firetrain.search.searches import searches

    if as_json:
        refuse_given({"--explain": explain}, "not with --json, which has all layers")
    counts, loaded = parse_counts(ranks), load_config(config, overrides).config
    if out and len(counts) > 1:
        raise UserError(f"--out writes the placement for one number of ranks (--ranks {ranks})")
    profile = Profile.find(profile_name)
    limit_bytes = int(memory_gib * 2**30) if memory_gib else None
    found = searches(loaded, profile, layers_of, counts, ranks_per_node, limit_bytes)
    if as_json:
        echo_json([one.as_json() for one in found])
    else:
        _show(found, profile.calibrated, explain)
    if out:
        _write(found[0], out, "" if as_json else shlex.join([config, *(f"--set={text}" for text in overrides)]))


def _show(found: list[Searched], calibrated: bool, explain: bool) -> None:
    from firetrain.predict.prediction import UNCALIBRATED
    from firetrain.report.text_table import TextTable
    from firetrain.search.table import LAYER_HEADINGS, explanation, headings, layer_rows, remarks, row

    print_table(TextTable(headings(found), [row(one, found) for one in found], names=2))
    for one in found:
        for line in remarks(one):
            click.echo(line)
        if explain:
            print_table(TextTable(LAYER_HEADINGS, layer_rows(one.found), names=2))
            for line in explanation(one.found):
                click.echo(line)
    if not calibrated:
        click.echo(f"note: {UNCALIBRATED}")


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
