"""The `bench gpu` command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from firetrain.cli.options import echo_json, json_option


@click.command()
@click.option("--checks", default="", metavar="NAME,NAME", help="Checks to run.  [default: all]")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=Path("gpu.json"), show_default=True,
    help="File that has the results after every check.",
)  # fmt: skip
@click.option("--require-gpu", is_flag=True, help="Run nothing, and fail, if there is no GPU.")
@json_option
def gpu(checks: str, out: Path, require_gpu: bool, as_json: bool) -> None:
    """Check everything that only a GPU can show.

    This takes eight minutes at most. Without a GPU the checks run on the CPU at toy size, in a few minutes. Exit code 1 if a
    check fails.

    \b
    Checks:
      facts       versions; copy and matrix-product speed, the ceilings of the device
      lost        a rank that ends in the middle of a reduction
      reductions  sums of every reduction among four ranks
      gradients   of three models, on several ranks and on one
      hook        sums that DistributedDataParallel must wait for
      strategies  steps under strategies, on several ranks and on one
      optimizers  their steps, on the device and on the CPU
      steps       host synchronisations; the same bits when repeated and resumed
      compile     compiled models: gradients, recompilations
      throughput  images per second of whole steps
      ablations   the gain of each optimisation
      inputs      training with three input paths
      links       every exact reduction timed among several GPUs
      kernels     the 15 kernels that take the most time

    \b
    Example:
      firetrain bench gpu --checks facts,reductions --out gpu.json
    """
    from firetrain.errors import UserError
    from firetrain.transport.device import visible_gpus

    has_gpu = visible_gpus() > 0
    if require_gpu and not has_gpu:
        raise UserError("--require-gpu: this machine has no GPU that torch can use")
    where = "" if has_gpu else "; there is no GPU: everything ran on the CPU, at toy size"
    _run([name for name in checks.split(",") if name], out, where, as_json)


def _run(names: list[str], out: Path, where: str, as_json: bool) -> None:
    """Run the checks, and print each when it is done; FiretrainError if one has failed."""
    from firetrain.bench.gpu.kit import run_kit
    from firetrain.errors import FiretrainError

    found: dict[str, Any] = {}
    for name, check in run_kit(out, names):
        found[name] = check
        if not as_json:
            click.echo(_in_words(name, check))
    if as_json:
        echo_json(found)
    else:
        click.echo(f"written to {out}{where}")
    if failed := [name for name, check in found.items() if "error" in check]:
        raise FiretrainError(f"{', '.join(failed)} failed, see {out}")


def _in_words(name: str, check: dict[str, Any]) -> str:
    where = f", on {check['device']} with torch {check['torch']}" if {"device", "torch"} <= check.keys() else ""
    ending = check.get("error") or (f"skipped, {check['skipped']}" if "skipped" in check else "done")
    return f"{name}: {ending} ({check['seconds']} s){where}"
