"""The `bench` commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.allreduce import allreduce
from firetrain.cli.gpu import gpu
from firetrain.cli.link import link
from firetrain.cli.options import config_argument, echo_json, json_option, repeats_type, set_option
from firetrain.cli.profile import profile
from firetrain.cli.ranks import ranks_options, run_as_ranks, spread_over, started_by_hand
from firetrain.cli.server import server
from firetrain.cli.slices import slices
from firetrain.limits import MOST_IMAGES, MOST_PIXELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firetrain.cluster import Identity
    from firetrain.config import Config
    from firetrain.config.spec import Spec
    from firetrain.records.profile import Profile


@click.group()
def bench() -> None:
    """Measure, verify, and compare with reference implementations."""


bench.add_command(allreduce)
bench.add_command(gpu)
bench.add_command(link)
bench.add_command(profile)
bench.add_command(server)
bench.add_command(slices)


@bench.command()
@config_argument
@click.option(
    "--against", type=click.Choice(["ddp", "horovod"]), default="ddp", show_default=True,
    help="The reference: torch's DistributedDataParallel, or Horovod's DistributedOptimizer.",
)  # fmt: skip
@ranks_options()
@click.option("--steps", type=repeats_type(1), default=10, show_default=True, help="Steps per timing.")
@click.option(
    "--repeats", type=repeats_type(2), default=10, show_default=True, help="Timings per contender, alternating."
)
@click.option("--reductions", metavar="NAME,NAME", help="Reductions to time.  [default: the config's]")
@click.option(
    "--profile", "profile_name", metavar="NAME|FILE", help="Also show the step time predicted from this profile."
)
@set_option
@json_option
def step(
    config: str, reductions: str | None, profile_name: str | None, against: str, ranks: int, nodes: int, steps: int,
    repeats: int, overrides: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Compare a training step of CONFIG with torch's or Horovod's.

    The reference is DistributedDataParallel or Horovod, with the same model, batch and ranks. Without a launcher, the command
    starts its own ranks. Under torchrun, srun or mpirun, each process is one rank.

    \b
    Example:
      firetrain bench step squeezenet-digits --ranks 2 --reductions native,ring
    """
    from firetrain.config import load_config
    from firetrain.launch.refusals import refuse_unreadable_data
    from firetrain.predict.check import refuse_unpredictable
    from firetrain.records.profile import Profile

    loaded, world = load_config(config, overrides).config, spread_over(ranks, nodes)
    loaded.strategy.refuse_placed("bench step")
    names = _names(reductions) or [str(loaded.reduction.spec)]
    profile = Profile.find(profile_name) if profile_name else None
    if started_by_hand():
        refuse_unreadable_data(loaded.data)
        if profile:
            refuse_unpredictable(loaded, profile, names, world)

    run_as_ranks(world, partial(_step, loaded, names, profile, steps, repeats, against, as_json))


def _step(
    config: Config, names: list[str], profile: Profile | None, steps: int, repeats: int, against: str, as_json: bool,
    identity: Identity,
) -> None:  # fmt: skip
    """Time steps as one of the ranks."""
    from firetrain.bench.step import bench_step
    from firetrain.predict.check import predict_steps, refuse_unpredictable
    from firetrain.transport.rendezvous import connect

    transport = connect(identity, config.cluster.transport, config.cluster.timeout_s, names)
    if profile:
        refuse_unpredictable(config, profile, names, transport.world)
    result = bench_step(config, transport, steps, repeats, against, names)
    if profile:
        result = {**result, "predicted_s": predict_steps(config, profile, names, result)}
    if identity.is_first:
        _print_step(result, as_json)


def _names(reductions: str | None) -> list[str]:
    """The reductions of a list; UserError if the list is wrong or names one twice."""
    from firetrain.config.names import check_reduction
    from firetrain.config.spec import parse_list
    from firetrain.errors import UserError

    specs = parse_list(reductions) if reductions else []
    for spec in specs:
        check_reduction(spec)
    names = [str(spec) for spec in specs]
    if len(set(names)) < len(names):
        raise UserError(f"--reductions: one is listed twice (got {reductions})")
    return names


@bench.command("input")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--size",
    type=click.IntRange(8, MOST_PIXELS),
    default=224,
    show_default=True,
    help="Pixels on each side after resizing.",
)
@click.option("--count", type=click.IntRange(1, MOST_IMAGES), default=150, show_default=True, help="Number of images.")
@click.option(
    "--repeats", type=repeats_type(2), default=7, show_default=True, help="Timings per contender, alternating."
)
@json_option
def bench_images(folder: Path, size: int, count: int, repeats: int, as_json: bool) -> None:
    """Measure images/s from JPEG files to a batch on one core.

    The images below FOLDER are decoded, cropped, resized and flipped; a pipeline of Pillow does the same.

    \b
    Example:
      firetrain bench input imagenet/val
    """
    from firetrain.bench.input import bench_input

    result = bench_input(folder, size, count, repeats)
    if as_json:
        echo_json(result)
        return
    click.echo(f"{result['images']} images to {size} px, {repeats} times each, alternating; per core:")
    for name, speed in result["images_per_s"].items():
        click.echo(f"{name:<12} {speed['median']:8.1f} images/s ({speed['min']:.1f} to {speed['max']:.1f})")
    _print_ratio("firetrain / Pillow", result["ratio"])
    click.echo(f"pixels of both differ by {result['mean_difference_grey_levels']:.3f} grey levels on average")


def _print_step(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(result)
        return
    click.echo(
        f"{result['model']} at {result['image_size']} px, global batch {result['global_batch']}, {result['world']} "
        f"over {result['transport']}; {result['steps']} steps per timing, alternating"
    )
    from firetrain.records.parts import EXPOSED

    reference = list(result["step_s"])[-1]
    for name, seconds in result["step_s"].items():
        exposed, busy = _milliseconds(result[EXPOSED.key][name]), result["busy"][name]
        cores = "" if busy is None else f"; processors {busy:.0%} busy"
        click.echo(f"{name:<28} {_milliseconds(seconds)} per step, exposed communication {exposed}{cores}")
        if predicted := result.get("predicted_s", {}).get(name):
            click.echo(
                f"{'':<28} {1e3 * predicted['value']:8.1f} ms predicted ({1e3 * predicted['low']:.1f} to "
                f"{1e3 * predicted['high']:.1f}), {predicted['error']:+.1%}"
            )
    for name, ratio in result["ratio"].items():
        _print_ratio(f"{name} / {reference}", ratio)
    click.echo(f"all gradients agree to within {result['gradient_difference']:.1e} of the largest gradient")


def _milliseconds(seconds: dict[str, Any]) -> str:
    return f"{seconds['median'] * 1e3:8.1f} ms ({seconds['min'] * 1e3:.1f} to {seconds['max'] * 1e3:.1f})"


def _print_ratio(title: str, ratio: dict[str, Any]) -> None:
    click.echo(f"{title}: {ratio['median']:.3f} (median of pairs; {ratio['min']:.3f} to {ratio['max']:.3f})")


@bench.command()
@config_argument
@click.option(
    "--strategies", metavar="NAME,NAME", default="data-parallel", show_default=True, help="Strategies to time."
)
@click.option(
    "--against",
    metavar="NAME,NAME",
    default="",
    help="Implementations with torch's own tools to time as well: ddp, dtensor, pipelining:schedule=gpipe,micro_batches=4.",
)
@ranks_options()
@click.option("--steps", type=repeats_type(1), default=3, show_default=True, help="Steps per timing.")
@click.option(
    "--repeats", type=repeats_type(2), default=5, show_default=True, help="Timings per contender, alternating."
)
@set_option
@json_option
def strategies(
    config: str, strategies: str, against: str, ranks: int, nodes: int, steps: int, repeats: int, overrides: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Compare a training step of CONFIG under several strategies.

    Speedups are relative to the first one. The batch is in memory. Without a launcher, the command starts its own ranks.
    Under torchrun, srun or mpirun, each process is one rank.

    \b
    Example:
      firetrain bench strategies squeezenet-digits --set model.name=lenet --strategies data-parallel,one-weird-trick
    """
    from firetrain.cli.layers import refuse_unplaceable
    from firetrain.config import load_config
    from firetrain.config.load import with_strategy
    from firetrain.config.names import parse_strategies
    from firetrain.errors import UserError
    from firetrain.launch.refusals import refuse_unreadable_data
    from firetrain.strategy import find_strategy

    loaded, world = load_config(config, overrides).config, spread_over(ranks, nodes)
    specs, others = parse_strategies(strategies), _references(against, loaded, world.size)
    for named, option in ((specs, "--strategies"), (others, "--against")):
        if len(set(named)) < len(named):
            raise UserError(f"{option} {','.join(map(str, named))}: expected different names")
    if started_by_hand():
        refuse_unreadable_data(loaded.data)
        for spec in specs:
            find_strategy(str(spec))
            refuse_unplaceable(with_strategy(loaded, str(spec)), world)

    def run(identity: Identity) -> None:
        from firetrain.bench.strategies import bench_strategies
        from firetrain.transport.rendezvous import connect

        transport = connect(identity, loaded.cluster.transport, loaded.cluster.timeout_s, [str(loaded.reduction.spec)])
        result = bench_strategies(loaded, transport, [str(spec) for spec in specs], steps, repeats, others)
        if identity.is_first:
            _print_strategies(result, as_json)

    run_as_ranks(world, run)


def _references(against: str, config: Config, ranks: int) -> Sequence[Spec]:
    """The references of a list, which may be empty; UserError if there is no such reference, or if it cannot train this."""
    from firetrain.config.spec import parse_list

    specs = parse_list(against) if against else []
    if specs:
        from firetrain.bench.references import check_reference  # it loads torch

        for spec in specs:
            check_reference(spec, config.model.name, config.batch.global_size, ranks)
    return specs


def _print_strategies(result: dict[str, Any], as_json: bool) -> None:
    from firetrain.records.parts import EXPOSED, OF_A_PLACEMENT

    if as_json:
        echo_json(result)
        return
    click.echo(
        f"{result['model']} at {result['image_size']} px, global batch {result['global_batch']}, {result['world']} over "
        f"{result['transport']}, reduction {result['reduction']}; {result['steps']} steps per timing, alternating"
    )
    for name, facts in result["strategies"].items():
        parts = "".join(
            f", {part.heading} {1e3 * facts[part.key]:.0f} ms"
            for part in (*OF_A_PLACEMENT, EXPOSED)
            if facts.get(part.key)
        )
        speedup = facts["speedup"]
        click.echo(
            f"{name:<36} {_milliseconds(facts['step_s'])} per step, {speedup['median']:.2f}x ({speedup['min']:.2f} to "
            f"{speedup['max']:.2f}){parts}"
        )
        if facts["sent_bytes"]:
            expected = facts.get("expected_bytes")
            predicted = f", predicted {max(expected) / 1e6:.1f} MB" if expected else ""
            click.echo(f"{'':<36} sent by the busiest rank: {max(facts['sent_bytes']) / 1e6:.1f} MB{predicted}")
    click.echo(f"weights change alike, to within {max(result['differences'].values()):.1e} of the largest change")
