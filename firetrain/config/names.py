"""Names that installed packages bring: topologies and reductions, read from entry points without importing them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

TOPOLOGIES = "firetrain.topologies"
REDUCTIONS = "firetrain.reductions"


@cache
def reduction_names() -> tuple[str, ...]:
    """Every valid `reduction.name`: the topologies (run as plans) and the libraries' own reductions."""
    return tuple(sorted({point.name for group in (TOPOLOGIES, REDUCTIONS) for point in entry_points(group=group)}))
