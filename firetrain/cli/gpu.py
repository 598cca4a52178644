"""The `bench gpu` command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from firetrain.cli.options import echo_json, json_option


@click.command()
@click.option("--parts", default="", metavar="NAME,NAME", help="Parts to run.  [default: all]")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("gpu.json"), show_default=True,
    help="File that has the results after every part.",
)  # fmt: skip
@json_option
def gpu(parts: str, out: Path, as_json: bool) -> None:
    """Check everything that only a GPU can show, in less than eight minutes; without a GPU, on the CPU at toy size.

    Exit code 1 if a part fails.

    \b
    Parts:
      facts       versions; copy and matrix-product speed, the ceilings of the device
      reductions  sums of every reduction among four ranks
      gradients   of three models, on several ranks and on one
      optimizers  their steps, on the device and on the CPU
      steps       host synchronisations; the same bits when repeated and resumed
      compile     compiled models: gradients, recompilations
      throughput  images per second of whole steps
      ablations   the gain of each optimisation
      inputs      training with three input paths
      links       every reduction timed among several GPUs
      kernels     the 15 kernels that take the most time

    \b
    Example:
      firetrain bench gpu --parts facts,reductions --out gpu.json
    """
    from firetrain.bench.gpu.kit import run_kit
    from firetrain.errors import FiretrainError

    found: dict[str, Any] = {}
    for name, part in run_kit(out, [name for name in parts.split(",") if name]):
        found[name] = part
        if not as_json:
            click.echo(f"{name}: {part.get('error') or 'done'} ({part['seconds']} s)")
    if as_json:
        echo_json(found)
    else:
        click.echo(f"written to {out}")
    failed = [name for name, part in found.items() if "error" in part]
    if failed:
        raise FiretrainError(f"{', '.join(failed)} failed, see {out}")
