"""The `preflight` command, for job scripts."""

from __future__ import annotations

import click

from firetrain.cli.options import seconds_type
from firetrain.limits import MOST_LOCAL_RANKS


@click.command(hidden=True)
@click.option(
    "--seconds",
    "limit_s",
    type=seconds_type,
    default=60.0,
    show_default=True,
    help="Seconds in which all ranks must connect.",
)
@click.option("--gpus", type=click.IntRange(0, MOST_LOCAL_RANKS), default=0, help="GPUs that each node must have.")
@click.option("--interface", help="Interface of the network between nodes.")
@click.option("--data", multiple=True, metavar="FOLDER", help="Folder that ranks read; of older scripts.")
@click.option(
    "--dataset",
    multiple=True,
    type=(str, str),
    metavar="NAME FOLDER",
    help="Dataset, and the folder from which ranks read it.",
)
@click.option("--expect-version", default="", help="Version of firetrain that submitted the job.")
def preflight(
    limit_s: float,
    gpus: int,
    interface: str | None,
    data: tuple[str, ...],
    dataset: tuple[tuple[str, str], ...],
    expect_version: str,
) -> None:
    """Check the nodes of a job. The job's script runs it as one task per rank."""
    import os

    from firetrain.bench.preflight import Expected
    from firetrain.bench.preflight import preflight as check
    from firetrain.cluster import identify
    from firetrain.training.process import leave

    identity = identify()
    wrong = check(
        identity, limit_s, Expected(gpus, interface, [*(("", one) for one in data), *dataset], expect_version)
    )
    if wrong:
        click.echo(f"firetrain: {wrong}", err=True)
    if identity.is_first and wrong is None:
        ranks = "1 rank" if identity.world_size == 1 else f"{identity.world_size} ranks reach each other"
        click.echo(f"firetrain: preflight passed: {ranks} (first node: {os.uname().nodename})")
    leave(0 if wrong is None else 69)
