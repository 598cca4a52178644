"""The topologies that are installed: ours and those of other packages, by entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from firetrain.cluster import World
from firetrain.config.names import TOPOLOGIES
from firetrain.errors import FiretrainError, UserError, unknown
from firetrain.topology.plan import Plan

Topology = Callable[[World], Plan]


def installed() -> dict[str, EntryPoint]:
    """Every topology's entry point, by name."""
    return {point.name: point for point in sorted(entry_points(group=TOPOLOGIES), key=lambda point: point.name)}


def find_topology(name: str) -> Topology:
    """The pure function from a world to a plan; UserError if the name is unknown."""
    points = installed()
    if name not in points:
        raise UserError(unknown("topology", name, points))
    try:
        topology: Topology = points[name].load()
    except Exception as error:
        raise FiretrainError(f"topology {name} cannot be loaded from {points[name].value}: {error}") from error
    return topology


def summary(topology: Topology) -> str:
    """The first line of a topology's docstring."""
    return (topology.__doc__ or "").strip().partition("\n")[0]
