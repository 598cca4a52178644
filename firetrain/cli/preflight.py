"""firetrain preflight."""

from __future__ import annotations

import click

from firetrain.cli.options import seconds_type
from firetrain.limits import MOST_LOCAL_RANKS


@click.command(hidden=True)
@click.option(
    "--seconds", "limit_s", type=seconds_type, default=60.0, show_default=True, help="How long ranks may take to meet."
)
@click.option("--gpus", type=click.IntRange(0, MOST_LOCAL_RANKS), default=0, help="That each node has to have.")
@click.option("--interface", help="Of the network between nodes.")
@click.option("--data", multiple=True, metavar="FOLDER", help="That ranks read images from.")
@click.option("--expect-version", default="", help="Of the firetrain that submitted the job.")
def preflight(limit_s: float, gpus: int, interface: str | None, data: tuple[str, ...], expect_version: str) -> None:
    """Check the nodes of a job; run by its script as one task per rank."""
    import os

    from firetrain.bench.preflight import Expected
    from firetrain.bench.preflight import preflight as check
    from firetrain.cluster import identify
    from firetrain.training.rank import leave

    identity = identify()
    wrong = check(identity, limit_s, Expected(gpus, interface, data, expect_version))
    if wrong:
        click.echo(f"firetrain: {wrong}", err=True)
    if identity.is_first and not wrong:
        ranks = (
            "1 rank" if identity.world_size == 1 else f"{identity.world_size} ranks on the job's nodes reach each other"
        )
        click.echo(f"firetrain: {ranks}, nothing is lacking ({os.uname().nodename} first)")
    leave(69 if wrong else 0)
