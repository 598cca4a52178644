"""From a reduction's name to a reduction: the libraries' own by entry point, topologies as plans."""

from __future__ import annotations

from importlib.metadata import entry_points

from firetrain.config.names import REDUCTIONS
from firetrain.config.spec import Spec
from firetrain.reduction.dataflow import Dataflow
from firetrain.reduction.interface import Alone, Reduction
from firetrain.reduction.rounds import Rounds
from firetrain.reduction.wiring import Factory, Wiring
from firetrain.topology import find_topology


def find_reduction(text: str, wiring: Wiring) -> Reduction:
    """The reduction `name` or `name:key=value,...` over the ranks of `wiring`; one rank alone communicates with nobody.

    All ranks call it together. UserError if there is no such reduction, or if a parameter does not fit these ranks.
    """
    if wiring.transport.size == 1:
        return Alone()
    spec = Spec.parse(text)
    for point in entry_points(group=REDUCTIONS, name=spec.name):
        factory: Factory = point.load()
        return factory(wiring, **spec.arguments(factory))
    plan = find_topology(text)(wiring.transport.world)
    return Rounds(plan, wiring) if wiring.transport.name == "nccl" else Dataflow(plan, wiring)
