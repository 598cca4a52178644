"""Commands that run as several ranks.

Without a launcher, they start the ranks on this machine; otherwise each process is one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.garbage import collect_as_usual
from firetrain.cli.options import local_ranks_type, seconds_type
from firetrain.errors import CannotCreate, CannotWrite, UserError

if TYPE_CHECKING:
    from firetrain.cluster import Identity, World

# the key under which the main command stores the words of the command line
ARGUMENTS = "firetrain.arguments"


def ranks_options(least: int = 2, advice: str = "Number of ranks, without a launcher.") -> Callable[[Any], Any]:
    """The options --ranks and --nodes; `advice`: help of --ranks."""

    def add(command: Any) -> Any:
        nodes = click.option(
            "--nodes", type=local_ranks_type(1), default=1, show_default=True, help="Nodes to emulate, without a launcher."
        )  # fmt: skip
        return click.option("--ranks", type=local_ranks_type(least), default=2, show_default=True, help=advice)(
            nodes(command)
        )

    return add


transport_option = click.option(
    "--transport",
    type=click.Choice(["auto", "gloo", "nccl"]),
    default="auto",
    show_default=True,
    help="Communication library (auto: nccl on GPUs, otherwise gloo).",
)
timeout_option = click.option(
    "--timeout", "timeout_s", type=seconds_type, default=300.0, show_default=True, help="Seconds to wait for a rank."
)


# exit codes of ranks that the whole command has, too
_TOLD = (UserError.exit_code, CannotCreate.exit_code, CannotWrite.exit_code)


def started_by_hand() -> bool:
    """Whether this process was started without a launcher."""
    from firetrain.cluster import identify

    return identify().launcher == "none"


def run_as_ranks(world: World, run: Callable[[Identity], None]) -> None:
    """Call `run` with the identity of this rank.

    Without a launcher, start the same command line once per rank of `world` instead, and show the output of rank 0.
    """
    from firetrain.cluster import identify

    if started_by_hand():
        _start(click.get_current_context().find_root().meta[ARGUMENTS], world)
        return
    from firetrain.training.process import fail, leave

    collect_as_usual()
    try:
        run(identify())
    except BaseException as error:
        fail(error, False, "Measure with fewer ranks, smaller sizes or a smaller batch")
    leave()


def _start(arguments: list[str], world: World) -> None:
    import tempfile

    from firetrain.cluster.memory import refuse_too_many_ranks
    from firetrain.launch.attempt import Attempt, RankFailed, run_ranks

    refuse_too_many_ranks(world.size)
    with tempfile.TemporaryDirectory(prefix="firetrain-bench-") as name:
        log = Path(name) / "logs" / "rank-0000.log"
        shown = 0

        def show() -> None:
            nonlocal shown
            text = log.read_bytes()[shown:]
            whole = text[: text.rfind(b"\n") + 1]
            click.echo(whole.decode(errors="replace"), nl=False)
            shown += len(whole)

        try:
            run_ranks(arguments, Attempt(world, Path(name), show))
        except RankFailed as error:
            if error.status in _TOLD:
                error.exit_code = error.status
            raise


def spread_over(ranks: int, nodes: int) -> World:
    """`ranks` ranks on `nodes` nodes, as evenly as possible; UserError if a node would have none."""
    from firetrain.cluster import World

    if ranks < nodes:
        raise UserError(f"every node needs a rank (ranks: {ranks}, nodes: {nodes})")
    return World(tuple(rank * nodes // ranks for rank in range(ranks)))
