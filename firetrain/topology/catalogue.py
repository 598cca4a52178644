"""Finds topologies of firetrain and of other packages by entry point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from firetrain.cluster import World
from firetrain.config.names import TOPOLOGIES, load_entry_point
from firetrain.config.spec import Spec
from firetrain.topology.plan import Plan

Topology = Callable[[World], Plan]


def find_topology(text: str) -> Topology:
    """The topology `name` or `name:key=value,...`: a pure function from a world to a plan.

    UserError if there is no such topology. The function raises UserError if a parameter does not fit the world.

    >>> plan = find_topology("ring")(World.even(nodes=2, ranks_per_node=2))
    >>> plan.depth, len(plan.transfers)
    (6, 24)
    >>> find_topology("hierarchical:inner=direct")(World.even(2, 2)).topology
    'hierarchical:inner=direct'
    """
    spec = Spec.parse(text)
    function: Callable[..., Plan] = load_entry_point(TOPOLOGIES, spec.name)
    arguments = spec.arguments(function)
    if not arguments:
        return function

    def topology(world: World) -> Plan:
        return replace(function(world, **arguments), topology=str(spec))

    topology.__doc__ = function.__doc__
    return topology


def summary(topology: Topology) -> str:
    """The first line of a topology's docstring."""
    return (topology.__doc__ or "").strip().partition("\n")[0]
