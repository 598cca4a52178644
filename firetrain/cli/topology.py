"""The `topology` commands."""

from __future__ import annotations

from pathlib import Path

import click

from firetrain.cli.installed import list_installed
from firetrain.cli.options import echo_json, json_option, refuse_given
from firetrain.limits import MOST_PLANNED_RANKS

_planned = click.IntRange(1, MOST_PLANNED_RANKS)


@click.group()
def topology() -> None:
    """List, draw and verify reduction topologies."""


@topology.command("list")
@json_option
def list_topologies(as_json: bool) -> None:
    """List the installed topologies, and the package each comes from.

    \b
    Example:
      firetrain topology list
    """
    from firetrain.config.names import TOPOLOGIES
    from firetrain.topology.catalogue import find_topology, summary

    list_installed(TOPOLOGIES, lambda name: summary(find_topology(name)), as_json)


@topology.command()
@click.argument("name")
@click.option("--ranks", type=_planned, default=8, show_default=True, help="Number of ranks.")
@click.option(
    "--nodes",
    type=_planned,
    default=1,
    show_default=True,
    help="Number of nodes.",
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG drawing to this file instead."
)
@json_option
def show(name: str, ranks: int, nodes: int, svg: Path | None, as_json: bool) -> None:
    """Draw the plan of topology NAME, round by round.

    \b
    Examples:
      firetrain topology show tree --ranks 8 --nodes 2
      firetrain topology show hierarchical:inner=ring,outer=double-tree --ranks 16 --nodes 4 --svg plan.svg
    """
    from firetrain.cli.ranks import spread_over
    from firetrain.errors import CannotCreate
    from firetrain.records.file import write_whole
    from firetrain.topology import find_topology
    from firetrain.topology import svg as drawn
    from firetrain.topology.text import describe, draw, transfer_rows

    refuse_given({"--json": as_json and svg}, "not with --svg")
    world = spread_over(ranks, nodes)
    plan = find_topology(name)(world)
    if svg:
        write_whole(svg, drawn.draw(plan, world), kind=CannotCreate)
        click.echo(f"{describe(plan)}\nwritten to {svg}")
        return
    if as_json:
        echo_json([{"round": number, **transfer._asdict()} for number, transfer in transfer_rows(plan)])
        return
    click.echo(f"{describe(plan)}\n\n{draw(plan, world)}")


@topology.command()
@click.argument("names", nargs=-1)
@click.option("--ranks", type=_planned, default=64, show_default=True, help="Largest number of ranks to verify.")
@json_option
def check(names: tuple[str, ...], ranks: int, as_json: bool) -> None:
    """Verify the plans of topologies NAMES (default: all).

    They are verified for every world of 1 to RANKS ranks and several layouts of nodes: every rank ends with each contribution
    exactly once; no rank sends to itself; two ranks agree on the order of their messages; depth and the busiest rank's bytes
    match the closed form, if there is one.

    \b
    Examples:
      firetrain topology check tree
      firetrain topology check hierarchical:inner=direct,outer=double-tree
    """
    from firetrain.config.names import TOPOLOGIES, installed_names
    from firetrain.errors import FiretrainError
    from firetrain.topology import find_topology
    from firetrain.topology.check import prove

    failures, proofs = [], {}
    for name in names or installed_names(TOPOLOGIES):
        proof = proofs[name] = prove(find_topology(name), ranks)
        failures += [f"{name}: {fault}" for fault in proof.faults[:10]]
        if not (proof.faults or as_json):
            refused = f" ({proof.refused} others do not fit its parameters)" if proof.refused else ""
            click.echo(f"{name}: correct for all {proof.worlds} worlds of 1 to {ranks} ranks{refused}")
    if as_json:
        echo_json({name: proof._asdict() for name, proof in proofs.items()})
    if failures:
        raise FiretrainError("\n".join(failures))
