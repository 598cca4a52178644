"""firetrain bench profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import config_argument, local_ranks_type, repeats_type, set_option
from firetrain.cli.ranks import nodes_option, run_as_ranks, spread_over

if TYPE_CHECKING:
    from firetrain.cluster import Identity, World
    from firetrain.config import Config


@click.command()
@config_argument
@click.option(
    "--batches", metavar="N,N", help="Images per rank to time.  [default: the config's share, half and twice of it]"
)
@click.option("--steps", type=repeats_type(3), default=10, show_default=True, help="Timed steps of each.")
@click.option("--repeats", type=repeats_type(3), default=7, show_default=True, help="Timings of each message size.")
@click.option(
    "--ranks", type=local_ranks_type(1), default=2, show_default=True, help="When started by hand; 1: what it computes, no links."
)  # fmt: skip
@nodes_option
@click.option(
    "--save", type=click.Path(dir_okay=False, path_type=Path), default=Path("profile.json"), show_default=True,
    help="The profile that is written or brought up to date.",
)  # fmt: skip
@set_option
def profile(
    config: str,
    batches: str | None,
    steps: int,
    repeats: int,
    ranks: int,
    nodes: int,
    save: Path,
    overrides: tuple[str, ...],
) -> None:
    """Measure all that firetrain predict needs of CONFIG here: a step's parts, links, and what the model leaves unexplained.

    Started by hand it starts its own ranks; under torchrun, srun or mpirun it is one of them.

    \b
    Example:
      srun firetrain bench profile squeezenet-digits --save profile.json
    """
    from firetrain.cluster import identify
    from firetrain.config import load_config
    from firetrain.config.comparison import split_counts
    from firetrain.errors import UserError

    world = spread_over(ranks, nodes)
    loaded = load_config(config, overrides).config
    counts = sorted(set(split_counts(batches, "--batches"))) if batches else []
    if counts and counts[0] < 1:
        raise UserError(f"--batches: an image per rank at least (got {batches})")
    if identify().launcher == "none":  # else the ranks know their world
        _refuse_misfit(loaded, world)
    command = ["bench", "profile", config, f"--steps={steps}", f"--repeats={repeats}", f"--save={save.absolute()}"]
    command += [f"--batches={batches}"] if batches else []
    command += [f"--set={override}" for override in overrides]

    def run(identity: Identity) -> None:
        from firetrain.bench.profile import bench_profile
        from firetrain.predict.calibration import calibrated
        from firetrain.provenance import provenance
        from firetrain.records.profile import Profile
        from firetrain.reduction.transport import connect

        before = Profile.load(save) if save.exists() else Profile()
        connected = connect(identity, loaded.cluster.transport, loaded.cluster.timeout_s)
        _refuse_misfit(loaded, connected.world)
        share = -(-loaded.batch.global_size // connected.size)
        found = bench_profile(
            loaded, connected, counts or sorted({max(1, share // 2), share, 2 * share}), steps, repeats
        )
        if not identity.is_first:
            return
        after = calibrated(before, loaded, found, provenance())
        after.save(save)
        for step in found.steps:
            click.echo(
                f"{step.batch_per_rank} images per rank: forward {1e3 * step.forward_s.value:.2f} ms, backward "
                f"{1e3 * step.backward_s.value:.2f} ms, update {1e3 * step.update_s.value:.2f} ms, jitter {step.jitter.value:.1%}"
            )
        for one in found.links:
            click.echo(f"{one.level}, {one.pairs}: {one.latency_s * 1e6:.1f} us, {one.bytes_per_s / 1e6:.1f} MB/s")
        if found.gap:
            click.echo(f"a message keeps its sender, and its receiver, busy for {found.gap.value * 1e6:.1f} us")
        for name, factor in {"incast": after.incast, "congestion": after.congestion}.items():
            if found.crowds and factor:
                click.echo(f"{name}: a link is {factor.value:.2f} times slower with 32 senders")
        click.echo(f"images made ready: {found.read.value:.0f} per second and node")
        if connected.size > 1:
            left = after.residuals[-1].seconds.value
            click.echo(
                f"a step on {connected.size} ranks: {1e3 * found.whole.value:.2f} ms, of it unexplained {1e3 * left:.2f} ms"
            )
        click.echo(f"kept in {save}")

    run_as_ranks(command, world, run)


def _refuse_misfit(config: Config, world: World) -> None:
    """Before anything is measured: UserError for what could not be priced or timed afterwards."""
    from firetrain.errors import UserError
    from firetrain.predict.formulas import find_formula

    batch, most = config.batch.global_size, config.batch.per_rank_max
    if batch < world.size:
        raise UserError(f"a batch of {batch} is too small for {world.size} ranks: every rank needs an image")
    if most is not None and -(-batch // world.size) > most:
        raise UserError(
            f"bench profile times whole steps: batch.per_rank_max ({most}) cuts them into pieces, set it to null"
        )
    find_formula(str(config.reduction.spec))
    if len({len(ranks) for ranks in world.nodes}) > 1:
        raise UserError(f"bench profile takes as many ranks on each node as on the others (got {world})")
