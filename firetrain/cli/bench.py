"""firetrain bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firetrain.cli.allreduce import allreduce
from firetrain.cli.link import link
from firetrain.cli.options import config_argument, echo_json, json_option, local_ranks_type, repeats_type, set_option
from firetrain.cli.profile import profile
from firetrain.limits import MOST_IMAGES, MOST_PIXELS

if TYPE_CHECKING:
    from firetrain.config import Config
    from firetrain.records.profile import Profile


@click.group()
def bench() -> None:
    """Measure, verify, and compare with what others use."""


bench.add_command(allreduce)
bench.add_command(link)
bench.add_command(profile)


@bench.command()
@config_argument
@click.option(
    "--against", type=click.Choice(["ddp", "horovod"]), default="ddp", show_default=True,
    help="The peer: torch's DistributedDataParallel, or Horovod's DistributedOptimizer.",
)  # fmt: skip
@click.option(
    "--ranks",
    type=local_ranks_type(2),
    default=2,
    show_default=True,
    help="Ranks, when started by hand.",
)
@click.option("--steps", type=repeats_type(1), default=10, show_default=True, help="Steps per timing.")
@click.option("--repeats", type=repeats_type(2), default=10, show_default=True, help="Timings of each, in turn.")
@click.option("--reductions", metavar="NAME,NAME", help="Several in turn.  [default: the config's]")
@click.option(
    "--profile", "profile_name", metavar="NAME|FILE", help="Foretell the steps from it, beside what is measured."
)
@set_option
@json_option
@click.option("--output", type=click.Path(path_type=Path), hidden=True)
def step(
    config: str,
    reductions: str | None,
    profile_name: str | None,
    against: str,
    ranks: int,
    steps: int,
    repeats: int,
    overrides: tuple[str, ...],
    as_json: bool,
    output: Path | None,
) -> None:
    """Time a training step of CONFIG beside a peer's: same model, batch and ranks.

    Started by hand it starts its own ranks; under torchrun, srun or mpirun it is one of them.

    \b
    Example:
      firetrain bench step squeezenet-digits --ranks 2 --reductions native,ring
    """
    import json

    from firetrain.cluster import identify
    from firetrain.config import load_config
    from firetrain.config.names import check_reduction
    from firetrain.config.spec import parse_list
    from firetrain.errors import UserError
    from firetrain.predict.check import foretell
    from firetrain.records.profile import Profile

    identity = identify()
    loaded = load_config(config, overrides)
    specs = parse_list(reductions) if reductions else []
    for spec in specs:
        check_reduction(spec)
    names = [str(spec) for spec in specs] or [str(loaded.config.reduction.spec)]
    if len(set(names)) < len(names):
        raise UserError(f"--reductions: one is named twice (got {reductions})")
    profile = Profile.find(profile_name) if profile_name else None
    by_hand = identity.launcher == "none"
    if profile:  # what it cannot foretell is said before anything is measured
        size = ranks if by_hand else identity.world_size
        foretell(loaded.config, profile, names, size, 1 if by_hand else size // identity.local_world_size, reads=False)
    if by_hand:
        command = ["bench", "step", config, f"--against={against}", f"--steps={steps}", f"--repeats={repeats}"]
        command += [f"--reductions={','.join(names)}"]
        result = _own_ranks(command, overrides, ranks)
        _tell_step(_with_foretold(result, loaded.config, names, profile), as_json)
        return
    from firetrain.bench.step import bench_step
    from firetrain.training.rank import fail, leave

    try:
        result = bench_step(loaded.config, identity, steps, repeats, against, names)
        result = _with_foretold(result, loaded.config, names, profile)
    except BaseException as error:
        fail(error, False)
    if identity.is_first:
        output.write_text(json.dumps(result)) if output else _tell_step(result, as_json)
    leave()


@bench.command("input")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--size",
    type=click.IntRange(8, MOST_PIXELS),
    default=224,
    show_default=True,
    help="Pixels on each side after resizing.",
)
@click.option("--count", type=click.IntRange(1, MOST_IMAGES), default=150, show_default=True, help="How many images.")
@click.option("--repeats", type=repeats_type(2), default=7, show_default=True, help="Timings of each, in turn.")
@json_option
def bench_images(folder: Path, size: int, count: int, repeats: int, as_json: bool) -> None:
    """Decode, crop, resize and flip the images below FOLDER on one core, beside the same in Pillow.

    \b
    Example:
      firetrain bench input /data/imagenet/val
    """
    from firetrain.bench.input import bench_input

    result = bench_input(folder, size, count, repeats)
    if as_json:
        echo_json(result)
        return
    click.echo(f"{result['images']} images to {size} px, {repeats} times each, in turn; per core:")
    for name, speed in result["images_per_s"].items():
        click.echo(f"{name:<12} {speed['median']:8.1f} images/s ({speed['min']:.1f} to {speed['max']:.1f})")
    _tell_ratio("firetrain / Pillow", result["ratio"])
    click.echo(f"pixels of both differ by {result['mean_difference_grey_levels']:.3f} grey levels on average")


def _tell_step(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(result)
        return
    click.echo(
        f"{result['model']} at {result['image_size']} px, global batch {result['global_batch']}, {result['world']} "
        f"over {result['transport']}; {result['steps']} steps of each, in turn, several times"
    )
    peer = list(result["step_s"])[-1]
    for name, seconds in result["step_s"].items():
        exposed, busy = _milliseconds(result["exposed_communication_s"][name]), result["busy"][name]
        cores = "" if busy is None else f"; processors {busy:.0%} busy"
        click.echo(f"{name:<28} {_milliseconds(seconds)} per step, exposed communication {exposed}{cores}")
        if foretold := result.get("foretold_s", {}).get(name):
            click.echo(
                f"{'':<28} {1e3 * foretold['value']:8.1f} ms foretold ({1e3 * foretold['low']:.1f} to "
                f"{1e3 * foretold['high']:.1f}), {foretold['error']:+.1%}"
            )
    for name, ratio in result["ratio"].items():
        _tell_ratio(f"{name} / {peer}", ratio)
    click.echo(f"gradients of all agree to {result['gradient_difference']:.1e} of the largest one")


def _own_ranks(command: list[str], overrides: tuple[str, ...], ranks: int) -> dict[str, Any]:
    """Run a command as ranks of this machine and read what rank 0 found."""
    import json
    import tempfile

    from firetrain.cluster import World
    from firetrain.launch.local import Attempt, run_ranks

    with tempfile.TemporaryDirectory(prefix="firetrain-bench-") as name:
        output = Path(name) / "result.json"
        for override in overrides:
            command += ["--set", override]
        run_ranks([*command, "--output", str(output)], Attempt(World.even(1, ranks), Path(name)))
        result: dict[str, Any] = json.loads(output.read_text())
        return result


def _with_foretold(result: dict[str, Any], config: Config, names: list[str], profile: Profile | None) -> dict[str, Any]:
    """`foretold_s` by contender, if there is a profile to foretell from."""
    if profile is None:
        return result
    from firetrain.predict.check import foretell

    rows = foretell(config, profile, names, result["ranks"], result["nodes"], reads=False)
    measured = {row.reduction: result["step_s"][f"firetrain {row.reduction}"]["median"] for row in rows}
    foretold = {
        f"firetrain {row.reduction}": {
            "value": row.step_s, "low": row.low_s, "high": row.high_s, "error": row.step_s / measured[row.reduction] - 1,
        }
        for row in rows
    }  # fmt: skip
    return {**result, "foretold_s": foretold}


def _milliseconds(seconds: dict[str, Any]) -> str:
    return f"{seconds['median'] * 1e3:8.1f} ms ({seconds['min'] * 1e3:.1f} to {seconds['max'] * 1e3:.1f})"


def _tell_ratio(title: str, ratio: dict[str, Any]) -> None:
    click.echo(f"{title}: {ratio['median']:.3f} (median of pairs; {ratio['min']:.3f} to {ratio['max']:.3f})")
