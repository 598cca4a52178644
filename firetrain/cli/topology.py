"""firetrain topology."""

from __future__ import annotations

from pathlib import Path

import click

from firetrain.cli.options import echo_json, json_option
from firetrain.limits import MOST_PLANNED_RANKS

_planned = click.IntRange(1, MOST_PLANNED_RANKS)


@click.group()
def topology() -> None:
    """List, draw and prove reduction topologies."""


@topology.command("list")
@json_option
def list_topologies(as_json: bool) -> None:
    """The topologies that are installed, with the package each comes from."""
    from firetrain.topology import find_topology, installed
    from firetrain.topology.catalogue import summary

    points = installed()
    if as_json:
        echo_json({name: point.value for name, point in points.items()})
        return
    width = max(map(len, points), default=0)
    for name, point in points.items():
        package = point.dist.name if point.dist else "?"
        click.echo(f"{name:<{width}}  {summary(find_topology(name))} [{package}]")


@topology.command()
@click.argument("name")
@click.option("--ranks", type=_planned, default=8, show_default=True, help="Number of ranks.")
@click.option(
    "--nodes",
    type=_planned,
    default=1,
    show_default=True,
    help="Number of nodes that the ranks are on.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a picture to a file instead.")
@json_option
def show(name: str, ranks: int, nodes: int, svg: Path | None, as_json: bool) -> None:
    """Draw the plan of topology NAME: its rounds, and each round's transfers.

    \b
    Examples:
      firetrain topology show tree --ranks 8 --nodes 2
      firetrain topology show hierarchical:inner=ring,outer=double-tree --ranks 16 --nodes 4 --svg plan.svg
    """
    from firetrain.cli.ranks import spread_over
    from firetrain.errors import CannotCreate
    from firetrain.records.file import write_whole
    from firetrain.topology import find_topology
    from firetrain.topology.drawing import describe, draw, transfer_rows
    from firetrain.topology.picture import picture

    world = spread_over(ranks, nodes)
    plan = find_topology(name)(world)
    if svg:
        write_whole(svg, picture(plan, world), kind=CannotCreate)
        click.echo(f"{describe(plan)}\nwritten to {svg}")
        return
    if as_json:
        echo_json([{"round": number, **transfer._asdict()} for number, transfer in transfer_rows(plan)])
        return
    click.echo(f"{describe(plan)}\n\n{draw(plan, world)}")


@topology.command()
@click.argument("names", nargs=-1)
@click.option("--ranks", type=_planned, default=64, show_default=True, help="Largest world to prove.")
def check(names: tuple[str, ...], ranks: int) -> None:
    """Prove topologies NAMES (default: all) for every world of 1 to RANKS ranks and several layouts of nodes.

    Proved: every rank ends with every rank's contribution exactly once; no transfer goes from a rank to itself; two ranks agree
    on the order of what lies between them; depth and the busiest rank's bytes are those of the closed form, if it has one.

    \b
    Examples:
      firetrain topology check tree
      firetrain topology check hierarchical:inner=direct,outer=double-tree
    """
    from firetrain.errors import FiretrainError
    from firetrain.topology import find_topology, installed
    from firetrain.topology.check import prove

    failures = []
    for name in names or installed():
        proof = prove(find_topology(name), ranks)
        if proof.faults:
            failures += [f"{name}: {fault}" for fault in proof.faults[:10]]
            continue
        refused = f" ({proof.refused} others do not fit its parameters)" if proof.refused else ""
        click.echo(f"{name}: right for all {proof.worlds} worlds of 1 to {ranks} ranks{refused}")
    if failures:
        raise FiretrainError("\n".join(failures))
