"""A command that is several ranks: started by hand it starts them on this machine, else it is one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import local_ranks_type

if TYPE_CHECKING:
    from firetrain.cluster import Identity, World

ranks_option = click.option(
    "--ranks",
    type=local_ranks_type(2),
    default=2,
    show_default=True,
    help="Ranks, when started by hand.",
)
nodes_option = click.option(
    "--nodes",
    type=local_ranks_type(1),
    default=1,
    show_default=True,
    help="Nodes to emulate, when started by hand.",
)


def run_as_ranks(command: Sequence[str], world: World, run: Callable[[Identity], None]) -> None:
    """Call `run` as the rank that this process is; started by hand, start COMMAND as ranks of `world` and show rank 0's words."""
    from firetrain.cluster import identify

    identity = identify()
    if identity.launcher == "none":
        _start(command, world)
        return
    from firetrain.training.rank import fail, leave

    try:
        run(identity)
    except BaseException as error:
        fail(error, False)
    leave()


def _start(command: Sequence[str], world: World) -> None:
    import tempfile

    from firetrain.launch.local import Attempt, run_ranks

    with tempfile.TemporaryDirectory(prefix="firetrain-bench-") as name:
        log = Path(name) / "logs" / "rank-0000.log"
        shown = 0

        def show() -> None:
            nonlocal shown
            text = log.read_bytes()[shown:]
            whole = text[: text.rfind(b"\n") + 1]
            click.echo(whole.decode(errors="replace"), nl=False)
            shown += len(whole)

        run_ranks(command, Attempt(world, Path(name), show))


def spread_over(ranks: int, nodes: int) -> World:
    """`ranks` ranks on `nodes` nodes, as evenly as they go; UserError if a node would have none."""
    from firetrain.cluster import World
    from firetrain.errors import UserError

    if ranks < nodes:
        raise UserError(f"every node needs a rank (ranks: {ranks}, nodes: {nodes})")
    return World(tuple(rank * nodes // ranks for rank in range(ranks)))
