"""firetrain topology."""

from __future__ import annotations

import click

from firetrain.cli.options import echo_json, json_option


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
@click.option("--ranks", type=click.IntRange(1, 1024), default=8, show_default=True, help="Number of ranks.")
@click.option(
    "--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of nodes that the ranks are on."
)
@json_option
def show(name: str, ranks: int, nodes: int, as_json: bool) -> None:
    """Draw the plan of topology NAME: its rounds, and each round's transfers.

    \b
    Example:
      firetrain topology show tree --ranks 8 --nodes 2
    """
    from firetrain.cluster import World
    from firetrain.errors import UserError
    from firetrain.topology import find_topology
    from firetrain.topology.drawing import describe, draw, transfer_rows

    if ranks < nodes:
        raise UserError(f"every node needs a rank (ranks: {ranks}, nodes: {nodes})")
    world = World(tuple(rank * nodes // ranks for rank in range(ranks)))
    plan = find_topology(name)(world)
    if as_json:
        echo_json([{"round": number, **transfer._asdict()} for number, transfer in transfer_rows(plan)])
        return
    click.echo(f"{describe(plan)}\n\n{draw(plan, world)}")


@topology.command()
@click.argument("names", nargs=-1)
@click.option("--ranks", type=click.IntRange(1), default=64, show_default=True, help="Largest world to prove.")
def check(names: tuple[str, ...], ranks: int) -> None:
    """Prove topologies NAMES (default: all) for every world of 1 to RANKS ranks and several layouts of nodes.

    Proved: every rank ends with every rank's contribution exactly once, and no transfer goes from a rank to itself.

    \b
    Example:
      firetrain topology check tree
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
