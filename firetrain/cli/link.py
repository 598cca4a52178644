"""The `bench link` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import echo_json, json_option, repeats_type, save_option
from firetrain.cli.ranks import ranks_options, run_as_ranks, spread_over, timeout_option, transport_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from firetrain.cluster import Identity
    from firetrain.records.profile import MeasuredLink, Quantity


@click.command()
@click.option("--repeats", type=repeats_type(3), default=7, show_default=True, help="Timings of each size.")
@transport_option
@ranks_options()
@timeout_option
@save_option
@json_option
def link(repeats: int, transport: str, ranks: int, nodes: int, timeout_s: float, save: Path, as_json: bool) -> None:
    """Measure latency and bandwidth between ranks, for a profile.

    Inside nodes and between nodes, this measures one pair alone, then all neighbour pairs simultaneously (the difference is
    congestion), then many small messages from all to all (the per-message overhead). Without a launcher, the command starts its
    own ranks. Under torchrun, srun or mpirun, each process is one rank.

    \b
    Example:
      srun firetrain bench link --save profile.json
    """
    from firetrain.records.file import refuse_unwritable
    from firetrain.records.profile import Profile

    refuse_unwritable(save)
    before = Profile.load_or_new(save)

    def run(identity: Identity) -> None:
        from firetrain.bench.gap import bench_gap
        from firetrain.bench.link import bench_link
        from firetrain.provenance import provenance
        from firetrain.transport.rendezvous import connect

        connected = connect(identity, transport, timeout_s)
        links, gap = bench_link(connected, repeats), bench_gap(connected, repeats)
        if not identity.is_first:
            return
        before.with_links(links, provenance()).model_copy(update={"message_gap": gap}).save(save)
        if as_json:
            rows = [found.model_dump(mode="json") for found in links]
            echo_json({"links": rows, "message_gap": gap.model_dump(mode="json")})
            return
        click.echo(f"{connected.world} over {connected.name}")
        for line in (*_lines(links, gap), f"written to {save}"):
            click.echo(line)

    run_as_ranks(spread_over(ranks, nodes), run)


def _lines(links: Sequence[MeasuredLink], gap: Quantity) -> Iterator[str]:
    yield f"{'link':<14} {'pairs':<5} {'latency':>12} {'bandwidth':>14}"
    for found in links:
        yield f"{found.level:<14} {found.pairs:<5} {found.latency_s * 1e6:9.1f} us {found.bytes_per_s / 1e6:9.1f} MB/s"
    yield f"per-message overhead at each end: {gap.value * 1e6:.1f} us"
