"""firetrain bench allreduce."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import repeats_type, seconds_type
from firetrain.cli.ranks import nodes_option, ranks_option, run_as_ranks, spread_over

if TYPE_CHECKING:
    from firetrain.bench.allreduce import Row
    from firetrain.cluster import Identity

_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--reductions",
    default="",
    metavar="NAME,NAME",
    help="With parameters as name:key=value. Default: all but the lossy ones.",
)
@click.option(
    "--sizes", default="4KiB:64MiB", show_default=True, help="Bytes: several with commas, or FROM:TO by fours."
)
@click.option("--repeats", type=repeats_type(3), default=9, show_default=True, help="Timings of each, shuffled.")
@click.option(
    "--wire-dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True
)
@click.option("--transport", type=click.Choice(["auto", "gloo", "nccl"]), default="auto", show_default=True)
@ranks_option
@nodes_option
@click.option(
    "--timeout", "timeout_s", type=seconds_type, default=300.0, show_default=True, help="Seconds to wait for a rank."
)
@click.option("--profile", type=_file, help="A profile.json, for links and for auto.")
@click.option("--json", "json_path", type=_file, help="Write the rows to a file.")
@click.option("--plot", "plot_path", type=_file, help="Draw them: .svg or .png.")
@click.option("--save", "save_path", type=_file, help="Keep them in a profile.json, for auto.")
def allreduce(
    reductions: str,
    sizes: str,
    repeats: int,
    wire_dtype: str,
    transport: str,
    ranks: int,
    nodes: int,
    timeout_s: float,
    profile: Path | None,
    json_path: Path | None,
    plot_path: Path | None,
    save_path: Path | None,
) -> None:
    """Time all-reduces side by side, as nccl-tests does: in place, every result verified before it is timed.

    Reductions take turns in shuffled order; times are those of the slowest rank. Started by hand it starts its own ranks;
    under torchrun, srun or mpirun it is one of them, and rank 0 prints and writes.

    \b
    Examples:
      firetrain bench allreduce --ranks 4 --reductions native,ring,tree --sizes 64KiB,1MiB
      srun firetrain bench allreduce --save profile.json
    """
    from firetrain.bench.sizes import parse_sizes
    from firetrain.cluster import identify
    from firetrain.config.names import TOPOLOGIES, check_reduction, installed_names
    from firetrain.config.spec import parse_list
    from firetrain.launch.job import refuse_misfit
    from firetrain.records.profile import Profile

    specs = parse_list(reductions or ",".join(dict.fromkeys(("native", *installed_names(TOPOLOGIES), "auto"))))
    sizes_bytes = parse_sizes(sizes)
    known = Profile.load(profile) if profile else None
    world = spread_over(ranks, nodes)
    for spec in specs:
        check_reduction(spec)
        if identify().launcher == "none":  # else the ranks know their world
            refuse_misfit(spec, world)
    command = ["bench", "allreduce", f"--reductions={','.join(map(str, specs))}", f"--sizes={sizes}"]
    command += [
        f"--repeats={repeats}",
        f"--wire-dtype={wire_dtype}",
        f"--transport={transport}",
        f"--timeout={timeout_s}",
    ]
    paths = {"profile": profile, "json": json_path, "plot": plot_path, "save": save_path}
    command += [f"--{option}={path.absolute()}" for option, path in paths.items() if path]

    def run(identity: Identity) -> None:
        from firetrain.bench.allreduce import as_json, bench_allreduce, table_of
        from firetrain.bench.plot import plot_allreduce
        from firetrain.provenance import provenance
        from firetrain.reduction.transport import connect
        from firetrain.reduction.wiring import Wiring

        names = [str(spec) for spec in specs]
        wiring = Wiring(connect(identity, transport, timeout_s, names), wire_dtype, known)
        say = click.echo if identity.is_first else lambda text: None
        say(
            f"{wiring.transport.world} over {wiring.transport.name}, {wire_dtype} on the wire, {repeats} timings of each"
        )
        say(_HEADER)
        rows = []
        for found in bench_allreduce(wiring, names, sizes_bytes, repeats):
            rows += found
            for row in found:
                say(_line(row))
        if not identity.is_first:
            return
        if json_path:
            write_json(as_json(rows), json_path)
        if plot_path:
            plot_allreduce(rows, plot_path)
        if save_path:
            before = Profile.load(save_path) if save_path.exists() else Profile()
            before.with_table(table_of(rows, wiring), provenance()).save(save_path)

    run_as_ranks(command, world, run)


def write_json(value: object, path: Path) -> None:
    """Write a file; CannotCreate if that fails."""
    import json

    from firetrain.errors import CannotCreate
    from firetrain.records.file import write_whole

    write_whole(path, json.dumps(value, indent=1) + "\n", kind=CannotCreate)


_HEADER = (
    f"{'size':>11} {'count':>10} {'type':>8}  {'reduction':<24} {'time':>9} {'p10':>9} {'p90':>9} "
    f"{'algbw':>8} {'busbw':>8} {'wrong':>6} {'error':>8}  {'on the wire, MB':>17} {'busy':>5}\n"
    f"{'B':>11} {'elements':>10} {'':>8}  {'':<24} {'ms':>9} {'ms':>9} {'ms':>9} "
    f"{'GB/s':>8} {'GB/s':>8} {'':>6} {'rel. L2':>8}  {'inside + between':>17} {'':>5}"
)


def _line(row: Row) -> str:
    times = " ".join(f"{seconds * 1e3:9.3f}" for seconds in (row.median_s, row.p10_s, row.p90_s))
    name = f"{row.reduction} ({row.chosen})" if row.chosen else row.reduction
    wrong = "lossy" if row.wrong is None else str(row.wrong)
    busy = "-" if row.busy is None else f"{row.busy:.0%}"
    wire = "not told"
    if row.wire_bytes_inside_nodes is not None and row.wire_bytes_between_nodes is not None:
        wire = f"{row.wire_bytes_inside_nodes / 1e6:.3g} + {row.wire_bytes_between_nodes / 1e6:.3g}"
    return (
        f"{row.bytes:>11} {row.bytes // 4:>10} {row.dtype:>8}  {name:<24} {times} "
        f"{row.algbw_gb_per_s:8.3f} {row.busbw_gb_per_s:8.3f} {wrong:>6} {row.error:8.1e}  {wire:>17} {busy:>5}"
    )
