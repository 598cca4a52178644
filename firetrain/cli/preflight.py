"""firetrain preflight."""

from __future__ import annotations

import click


@click.command(hidden=True)
@click.option(
    "--seconds", "limit_s", type=float, default=60.0, show_default=True, help="How long ranks may take to meet."
)
def preflight(limit_s: float) -> None:
    """Check the nodes of a job; run by its script as one task per rank."""
    import os

    from firetrain.bench.preflight import preflight as check
    from firetrain.cluster import identify
    from firetrain.training.rank import leave

    identity = identify()
    wrong = check(identity, limit_s)
    if wrong:
        click.echo(f"firetrain: {wrong}", err=True)
    if identity.is_first and not wrong:
        click.echo(
            f"firetrain: {identity.world_size} ranks on the job's nodes reach each other ({os.uname().nodename} first)"
        )
    leave(69 if wrong else 0)
