"""The `strategy` commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.installed import list_installed
from firetrain.cli.model_options import arguments_of, model_options
from firetrain.cli.options import echo_json, json_option, refuse_given
from firetrain.limits import MOST_IMAGES, MOST_PLACED_RANKS, MOST_PLANNED_RANKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from firetrain.cluster.proof import Proof
    from firetrain.strategy import Layer

_planned = click.IntRange(1, MOST_PLANNED_RANKS)
# what `check` verifies besides the strategies with their defaults
_WITH_PARAMETERS = (
    "branch-parallel:replicas=2", "grid:images=2", "grid:outputs=2", "one-weird-trick:inside=true",
    "one-weird-trick:replicas=2", "pipeline:stages=2", "tensor-parallel:split=alternate", "tensor-parallel:split=inputs",
    "tensor-parallel:split=alternate,replicas=2",
)  # fmt: skip


def _of_a_model(function: Callable[..., Any]) -> Callable[..., Any]:
    """--model and the options of models."""
    named = click.option(
        "--model", default="alexnet", show_default=True, help="The model to place, a name or FILE:CLASS."
    )
    return named(model_options(function))


@click.group()
def strategy() -> None:
    """List, draw and verify strategies, which place a model on ranks."""


@strategy.command("list")
@json_option
def list_strategies(as_json: bool) -> None:
    """List the installed strategies, and the package each comes from.

    Besides these, strategy.name may be a placement file, auto (the placement that is searched) or parameter-server.

    \b
    Example:
      firetrain strategy list
    """
    from firetrain.config.names import STRATEGIES, load_entry_point

    def summary(name: str) -> str:
        return (load_entry_point(STRATEGIES, name).__doc__ or "").strip().partition("\n")[0]

    list_installed(STRATEGIES, summary, as_json)


@strategy.command()
@click.argument("name")
@_of_a_model
@click.option("--ranks", type=_planned, default=4, show_default=True, help="Number of ranks.")
@click.option("--nodes", type=_planned, default=1, show_default=True, help="Number of nodes.")
@click.option("--batch", type=click.IntRange(1, MOST_IMAGES), default=128, show_default=True, help="Images of a step.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG drawing to this file instead."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a placement file, for strategy.name, instead.",
)
@json_option
def show(
    name: str, model: str, classes: int, image_size: int, stem: str, arguments: tuple[str, ...], ranks: int, nodes: int,
    batch: int, svg: Path | None, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Draw the placement that strategy NAME makes, and its traffic.

    \b
    Examples:
      firetrain strategy show one-weird-trick --model alexnet --ranks 8
      firetrain strategy show pipeline:stages=4,micro_batches=8 --model squeezenet1_1 --svg pipeline.svg
    """
    from dataclasses import asdict

    from firetrain.cli.layers import refuse_unwritable_files
    from firetrain.cli.ranks import spread_over
    from firetrain.errors import CannotCreate, UserError
    from firetrain.records.file import write_whole
    from firetrain.strategy import find_strategy
    from firetrain.strategy import svg as drawn
    from firetrain.strategy.check import refuse_untrainable
    from firetrain.strategy.file import text
    from firetrain.strategy.text import draw
    from firetrain.strategy.traffic import traffic

    refuse_given({"--json": as_json and (svg or out)}, "not with --svg or --out")
    if ranks > MOST_PLACED_RANKS and (svg or not out):
        raise UserError(
            f"placements are drawn for up to {MOST_PLACED_RANKS} ranks (got {ranks}); for more, write a file with --out"
        )
    refuse_unwritable_files(svg=svg, placement=out)
    placement = find_strategy(name)(_layers(model, classes, image_size, stem, arguments), spread_over(ranks, nodes))
    refuse_untrainable(placement, batch)
    if as_json:
        found = traffic(placement, batch)
        echo_json({
            "strategy": placement.strategy, "ranks": placement.ranks, "micro_batches": placement.micro_batches,
            "schedule": placement.schedule, "splits": {key: asdict(split) for key, split in placement.splits.items()},
            "sent_bytes": list(found.sent), "sent_bytes_by_layer": found.by_layer,
            "reduced_bytes": [{"ranks": list(group), "bytes": size} for group, size in found.reduced.items()],
        })  # fmt: skip
        return
    for path, content in ((svg, drawn.draw(placement, batch) if svg else ""), (out, text(placement))):
        if path:
            write_whole(path, content, kind=CannotCreate)
            click.echo(f"{placement.strategy}, {placement.ranks} ranks\nwritten to {path}")
    if not (svg or out):
        click.echo(draw(placement, batch))


@strategy.command("check")
@click.argument("names", nargs=-1)
@_of_a_model
@click.option(
    "--ranks",
    type=click.IntRange(1, MOST_PLACED_RANKS),
    default=64,
    show_default=True,
    help="Largest number of ranks to verify.",
)
@json_option
def check_strategies(
    names: tuple[str, ...],
    model: str,
    classes: int,
    image_size: int,
    stem: str,
    arguments: tuple[str, ...],
    ranks: int,
    as_json: bool,
) -> None:
    """Verify the placements of strategies NAMES (default: all).

    They are verified for every number of ranks from 1 to RANKS, on one and on two nodes, and for batches that divide evenly, that
    do not, and that have fewer images than ranks: every output is computed exactly once, every rank can get what it needs from
    exactly one other, and the shards of the weights are the whole.

    \b
    Example:
      firetrain strategy check one-weird-trick --model alexnet --ranks 16
    """
    from firetrain.config.names import STRATEGIES, installed_names
    from firetrain.errors import FiretrainError
    from firetrain.strategy import find_strategy
    from firetrain.strategy.check import prove

    for name in names:  # before torch is loaded
        find_strategy(name)
    layers = _layers(model, classes, image_size, stem, arguments)
    failures, proofs = [], {}
    for name in names or sorted([*installed_names(STRATEGIES), *_WITH_PARAMETERS]):
        proof = proofs[name] = prove(name, layers, ranks)
        failures += [f"{name}: {fault}" for fault in proof.faults[:10]]
        if not (proof.faults or as_json):
            click.echo(_in_words(name, proof, ranks))
    if as_json:
        echo_json({name: proof._asdict() for name, proof in proofs.items()})
    if failures:
        raise FiretrainError("\n".join(failures))


def _in_words(name: str, proof: Proof, ranks: int) -> str:
    from firetrain.words import counted

    if not proof.worlds:
        return f"{name}: suits no world of 1 to {ranks} ranks: {proof.reason}"
    refused = f" ({proof.refused} others do not suit it)" if proof.refused else ""
    return f"{name}: correct on {counted(proof.worlds, 'world')} of 1 to {ranks} ranks{refused}"


def _layers(model: str, classes: int, image_size: int, stem: str, arguments: tuple[str, ...]) -> tuple[Layer, ...]:
    """The layers of a model in training mode."""
    from firetrain.models.catalogue import model_by_name
    from firetrain.models.graph import trace

    made = model_by_name(model, image_size, arguments_of(arguments), classes=classes, stem=stem)
    return trace(made.train(), image_size).layers
