"""The `bench profile` command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firetrain.cli.options import config_argument, repeats_type, save_option, set_option
from firetrain.cli.ranks import ranks_options, run_as_ranks, spread_over, started_by_hand

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from firetrain.cluster import Identity, World
    from firetrain.config import Config
    from firetrain.predict.calibration import Measurements
    from firetrain.records.profile import Profile


@click.command()
@config_argument
@click.option(
    "--batches", metavar="N,N", help="Images per rank to time.  [default: half, one and two times the config's]"
)
@click.option("--steps", type=repeats_type(3), default=10, show_default=True, help="Timed steps per batch size.")
@click.option("--repeats", type=repeats_type(3), default=7, show_default=True, help="Timings per message size.")
@ranks_options(1, "Number of ranks, without a launcher; 1 measures compute only, no links.")
@save_option
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
    """Measure everything that `firetrain predict` needs for CONFIG on this machine: step parts, links, unexplained remainder.

    Without a launcher, the command starts its own ranks. Under torchrun, srun or mpirun, each process is one rank.

    \b
    Example:
      srun firetrain bench profile squeezenet-digits --save profile.json
    """
    from firetrain.config import load_config
    from firetrain.launch.job import refuse_unreadable_data

    world = spread_over(ranks, nodes)
    loaded = load_config(config, overrides).config
    counts = _parse_batches(batches)
    if started_by_hand():  # under a launcher, the ranks check their own world
        refuse_unreadable_data(loaded.data)
        _check_fits(loaded, world)

    def run(identity: Identity) -> None:
        from firetrain.bench.profile import bench_profile
        from firetrain.predict.calibration import calibrated
        from firetrain.provenance import provenance
        from firetrain.records.profile import Profile
        from firetrain.transport.rendezvous import connect

        before = Profile.load(save) if save.exists() else Profile()
        connected = connect(identity, loaded.cluster.transport, loaded.cluster.timeout_s)
        _check_fits(loaded, connected.world)
        share = -(-loaded.batch.global_size // connected.size)
        chosen = counts or sorted({max(1, share // 2), share, 2 * share})
        found = bench_profile(loaded, connected, chosen, steps, repeats)
        if not identity.is_first:
            return
        after = calibrated(before, loaded, found, provenance())
        after.save(save)
        for line in (*_lines(found, after), f"written to {save}"):
            click.echo(line)

    run_as_ranks(world, run)


def _lines(found: Measurements, after: Profile) -> Iterator[str]:
    """The measurements as text, a line each."""
    for step in found.steps:
        yield (
            f"{step.batch_per_rank} images per rank: forward {1e3 * step.forward_s.value:.2f} ms, backward "
            f"{1e3 * step.backward_s.value:.2f} ms, update {1e3 * step.update_s.value:.2f} ms, jitter {step.jitter.value:.1%}"
        )
    for one in found.links:
        yield f"{one.level}, {one.pairs}: {one.latency_s * 1e6:.1f} us, {one.bytes_per_s / 1e6:.1f} MB/s"
    if found.gap:
        yield f"per-message overhead at each end: {found.gap.value * 1e6:.1f} us"
    for name, factor in {"incast": after.incast, "congestion": after.congestion}.items():
        if found.crowds and factor:
            yield f"{name}: a link is {factor.value:.2f} times slower with 32 senders"
    yield f"image loading: {found.read.value:.0f} images/s per node"
    if found.world.size > 1:
        left = after.residuals[-1].seconds.value
        yield f"step on {found.world.size} ranks: {1e3 * found.whole.value:.2f} ms, of which {1e3 * left:.2f} ms are unexplained"


def _parse_batches(text: str | None) -> Sequence[int]:
    from firetrain.config.comparison import split_counts
    from firetrain.errors import UserError

    counts = sorted(set(split_counts(text, "--batches"))) if text else []
    if counts and counts[0] < 1:
        raise UserError(f"--batches: each must be at least 1 image per rank (got {text})")
    return counts


def _check_fits(config: Config, world: World) -> None:
    """UserError if the config cannot be timed on this world, or its reduction has no formula."""
    from firetrain.errors import UserError
    from firetrain.predict.formulas import find_formula

    batch, most = config.batch.global_size, config.batch.per_rank_max
    if batch < world.size:
        raise UserError(f"a batch of {batch} is too small for {world.size} ranks: every rank needs an image")
    if most is not None and -(-batch // world.size) > most:
        raise UserError(f"bench profile does not support micro-batches: set batch.per_rank_max to null (is {most})")
    find_formula(str(config.reduction.spec))
    if len({len(ranks) for ranks in world.nodes}) > 1:
        raise UserError(f"bench profile needs the same number of ranks on every node (got {world})")
