"""firetrain bench."""

from __future__ import annotations

import click


@click.group()
def bench() -> None:
    """Measure, verify, and compare with what others use."""
