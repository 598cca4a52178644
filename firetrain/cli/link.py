"""firetrain bench link."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import json_option, repeats_type, seconds_type
from firetrain.cli.ranks import nodes_option, ranks_option, run_as_ranks, spread_over

if TYPE_CHECKING:
    from firetrain.cluster import Identity


@click.command()
@click.option("--repeats", type=repeats_type(3), default=7, show_default=True, help="Timings of each size.")
@click.option("--transport", type=click.Choice(["auto", "gloo", "nccl"]), default="auto", show_default=True)
@ranks_option
@nodes_option
@click.option(
    "--timeout", "timeout_s", type=seconds_type, default=300.0, show_default=True, help="Seconds to wait for a rank."
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("profile.json"),
    show_default=True,
    help="The profile that is written or brought up to date.",
)
@json_option
def link(repeats: int, transport: str, ranks: int, nodes: int, timeout_s: float, save: Path, as_json: bool) -> None:
    """Measure latency and bandwidth between ranks, inside nodes and between them, and keep them in a profile.

    One pair alone, then all ranks with a neighbour at once: the difference is congestion. Then many small messages from all
    ranks to all others, for what a message costs whatever its size. Started by hand it starts its
    own ranks; under torchrun, srun or mpirun it is one of them.

    \b
    Example:
      srun firetrain bench link --save profile.json
    """
    world = spread_over(ranks, nodes)
    command = ["bench", "link", f"--repeats={repeats}", f"--transport={transport}", f"--timeout={timeout_s}"]
    command += [f"--save={save.absolute()}", *(["--json"] if as_json else [])]

    def run(identity: Identity) -> None:
        import json

        from firetrain.bench.gap import bench_gap
        from firetrain.bench.link import bench_link
        from firetrain.provenance import provenance
        from firetrain.records.profile import Profile
        from firetrain.reduction.transport import connect

        before = Profile.load(save) if save.exists() else Profile()
        connected = connect(identity, transport, timeout_s)
        links, gap = bench_link(connected, repeats), bench_gap(connected, repeats)
        if not identity.is_first:
            return
        before.with_links(links, provenance()).model_copy(update={"message_gap": gap}).save(save)
        if as_json:
            rows = [found.model_dump(mode="json") for found in links]
            click.echo(json.dumps({"links": rows, "message_gap": gap.model_dump(mode="json")}, indent=2))
            return
        click.echo(f"{connected.world} over {connected.name}")
        click.echo(f"{'link':<14} {'pairs':<5} {'latency':>12} {'bandwidth':>14}")
        for found in links:
            click.echo(
                f"{found.level:<14} {found.pairs:<5} {found.latency_s * 1e6:9.1f} us {found.bytes_per_s / 1e6:9.1f} MB/s"
            )
        click.echo(f"a message keeps its sender, and its receiver, busy for {gap.value * 1e6:.1f} us")
        click.echo(f"kept in {save}")

    run_as_ranks(command, world, run)
