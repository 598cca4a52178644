"""From a reduction's name to a reduction: the libraries' own by entry point, topologies as plans."""

from __future__ import annotations

from importlib.metadata import entry_points

from torch import Tensor

from firetrain.config.names import REDUCTIONS
from firetrain.reduction.dataflow import Dataflow
from firetrain.reduction.interface import Pending, Reduction
from firetrain.reduction.rounds import Rounds
from firetrain.reduction.transport import Transport
from firetrain.topology import find_topology


def find_reduction(name: str, transport: Transport) -> Reduction:
    """The reduction called `name` over the ranks of `transport`; one rank alone communicates with nobody."""
    if transport.size == 1:
        return Alone()
    for point in entry_points(group=REDUCTIONS, name=name):
        reduction: Reduction = point.load()(transport)
        return reduction
    plan = find_topology(name)(transport.world)
    return Rounds(plan, transport) if transport.name == "nccl" else Dataflow(plan, transport)


class Alone:
    """A world of one rank: its buffer is the sum."""

    def start(self, buffer: Tensor) -> Pending:
        """Nothing to do."""
        return self

    def wait(self) -> None:
        """Nothing to wait for."""

    def close(self) -> None:
        """Nothing is held."""
