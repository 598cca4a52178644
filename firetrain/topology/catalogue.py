"""The topologies that are installed: ours and those of other packages, by entry point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from firetrain.cluster import World
from firetrain.config.names import TOPOLOGIES
from firetrain.config.spec import Spec
from firetrain.errors import FiretrainError, UserError, unknown
from firetrain.topology.plan import Plan

Topology = Callable[[World], Plan]


@cache
def installed() -> dict[str, EntryPoint]:
    """Every topology's entry point, by name."""
    return {point.name: point for point in sorted(entry_points(group=TOPOLOGIES), key=lambda point: point.name)}


def find_topology(text: str) -> Topology:
    """The pure function from a world to a plan for `name` or `name:key=value,...`; UserError if there is none such.

    A parameter that does not fit the world is a UserError when the plan is made.
    """
    spec = Spec.parse(text)
    function = load(spec.name)
    arguments = spec.arguments(function)
    if not arguments:
        return function

    def topology(world: World) -> Plan:
        return replace(function(world, **arguments), topology=str(spec))

    topology.__doc__ = function.__doc__
    return topology


def load(name: str) -> Callable[..., Plan]:
    """The function that an entry point names."""
    points = installed()
    if name not in points:
        raise UserError(unknown("topology", name, points))
    try:
        function: Callable[..., Plan] = points[name].load()
    except Exception as error:
        raise FiretrainError(f"topology {name} cannot be loaded from {points[name].value}: {error}") from error
    return function


def summary(topology: Topology) -> str:
    """The first line of a topology's docstring."""
    return (topology.__doc__ or "").strip().partition("\n")[0]
