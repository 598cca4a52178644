"""The `bench allreduce` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.options import echo_json, json_option, repeats_type
from firetrain.cli.ranks import (
    ranks_options,
    run_as_ranks,
    spread_over,
    started_by_hand,
    timeout_option,
    transport_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firetrain.bench.allreduce import Measurement
    from firetrain.cluster import Identity

_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--reductions",
    default="",
    metavar="NAME,NAME",
    help="Reductions, with parameters as name:key=value. Default: native, auto and all topologies.",
)
@click.option(
    "--sizes",
    default="4KiB:64MiB",
    show_default=True,
    help="Sizes, comma-separated, or FROM:TO in steps of a factor of four.",
)
@click.option("--repeats", type=repeats_type(3), default=9, show_default=True, help="Timings per reduction.")
@click.option(
    "--wire-dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Type of the numbers on the wire.",
)
@transport_option
@ranks_options()
@timeout_option
@click.option("--profile", type=_file, help="A profile.json with links and the table of auto.")
@click.option("--plot", type=_file, help="Plot the results to this file: .svg or .png.")
@click.option("--save", type=_file, help="Store the results in this profile.json, for auto.")
@json_option
def allreduce(ranks: int, nodes: int, **options: Any) -> None:
    """Time all-reduces side by side; each result is verified first.

    Sums are in place, as in nccl-tests. Reductions alternate in shuffled order; times are those of the slowest rank. Without a
    launcher, the command starts its own ranks. Under torchrun, srun or mpirun, each process is one rank, and rank 0 prints.

    \b
    Examples:
      firetrain bench allreduce --ranks 4 --reductions native,ring,tree --sizes 64KiB,1MiB
      srun firetrain bench allreduce --save profile.json
    """
    from functools import partial

    from firetrain.bench.sizes import VERIFIED_TIMES, parse_sizes
    from firetrain.cluster.memory import refuse_too_many_ranks
    from firetrain.config.names import TOPOLOGIES, check_reduction, installed_names
    from firetrain.config.spec import parse_list
    from firetrain.errors import UserError
    from firetrain.launch.refusals import refuse_unfit
    from firetrain.records.file import refuse_unwritable
    from firetrain.records.profile import Profile

    everything = ",".join(dict.fromkeys(("native", *installed_names(TOPOLOGIES), "auto")))
    specs, sizes_bytes = parse_list(options["reductions"] or everything), parse_sizes(options["sizes"])
    world = spread_over(ranks, nodes)
    if started_by_hand():  # before plans for so many ranks are made
        refuse_too_many_ranks(ranks, VERIFIED_TIMES * max(sizes_bytes), "give smaller --sizes, or fewer --ranks")
    for spec in specs:
        check_reduction(spec)
        if started_by_hand():  # under a launcher, the ranks check their own world
            refuse_unfit(spec, world)
    known = Profile.load(options["profile"]) if options["profile"] else None
    for path in filter(None, (options["plot"], options["save"])):
        refuse_unwritable(path)
    if (plot := options["plot"]) and plot.suffix not in (".svg", ".png"):
        raise UserError(f"--plot {plot}: the name must end in .svg or .png")
    if options["save"]:
        Profile.load_or_new(options["save"])
    run_as_ranks(world, partial(_run, [str(spec) for spec in specs], sizes_bytes, known, options))


def _run(
    names: Sequence[str], sizes_bytes: Sequence[int], known: Any, options: dict[str, Any], identity: Identity
) -> None:
    """Measure as one rank; rank 0 prints, plots and saves."""
    from firetrain.bench.allreduce import as_json, bench_allreduce, table_of
    from firetrain.bench.plot import plot_allreduce
    from firetrain.provenance import provenance
    from firetrain.records.profile import Profile
    from firetrain.reduction.context import Context
    from firetrain.transport.rendezvous import connect

    transport = connect(identity, options["transport"], options["timeout_s"], names)
    context = Context(transport, options["wire_dtype"], known)
    prints = identity.is_first and not options["as_json"]
    if prints:
        about = f"{options['wire_dtype']} on the wire, {options['repeats']} timings per reduction"
        click.echo(f"{transport.world} over {transport.name}, {about}\n{_HEADER}")
    rows = []
    for found in bench_allreduce(context, names, sizes_bytes, options["repeats"]):
        rows += found
        for row in found if prints else ():
            click.echo(_line(row))
    if not identity.is_first:
        return
    if options["as_json"]:
        echo_json(as_json(rows))
    if options["plot"]:
        plot_allreduce(rows, options["plot"])
    if save := options["save"]:
        before = Profile.load_or_new(save)
        before.with_table(table_of(rows, context), provenance()).save(save)


_HEADER = (
    f"{'size':>11} {'count':>10} {'type':>8}  {'reduction':<24} {'time':>9} {'p10':>9} {'p90':>9} "
    f"{'algbw':>8} {'busbw':>8} {'wrong':>6} {'error':>8}  {'on the wire, MB':>17} {'busy':>5}\n"
    f"{'B':>11} {'elements':>10} {'':>8}  {'':<24} {'ms':>9} {'ms':>9} {'ms':>9} "
    f"{'GB/s':>8} {'GB/s':>8} {'':>6} {'rel. L2':>8}  {'inside + between':>17} {'':>5}"
)


def _line(row: Measurement) -> str:
    times = " ".join(f"{seconds * 1e3:9.3f}" for seconds in (row.median_s, row.p10_s, row.p90_s))
    name = f"{row.reduction} ({row.chosen})" if row.chosen else row.reduction
    wrong = "lossy" if row.wrong is None else str(row.wrong)
    busy = "-" if row.busy is None else f"{row.busy:.0%}"
    wire = "unknown"
    if row.wire_bytes_inside_nodes is not None and row.wire_bytes_between_nodes is not None:
        wire = f"{row.wire_bytes_inside_nodes / 1e6:.3g} + {row.wire_bytes_between_nodes / 1e6:.3g}"
    return (
        f"{row.bytes:>11} {row.bytes // 4:>10} {row.dtype:>8}  {name:<24} {times} "
        f"{row.algbw_gb_per_s:8.3f} {row.busbw_gb_per_s:8.3f} {wrong:>6} {row.error:8.1e}  {wire:>17} {busy:>5}"
    )
