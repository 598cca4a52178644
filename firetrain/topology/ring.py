"""Ring: every rank communicates only with its two neighbours, and every link carries the same load."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.topology.plan import Claim, Plan, Transfer


def ring(world: World) -> Plan:
    """Reduce-scatter, then all-gather, around a ring that visits node after node (Patarasuk and Yuan 2009).

    Depth 2(p-1) for p ranks; each rank sends and receives 2(p-1)/p of the buffer, the least possible.
    """
    order, size = world.by_node, world.size
    transfers = []
    for step in range(2 * (size - 1)):
        for chunk in range(size):
            source, target = order[(chunk + step + 1) % size], order[(chunk + step + 2) % size]
            transfers.append(Transfer(source, target, chunk, adds=step < size - 1))
    claim = Claim(2 * (size - 1), Fraction(2 * (size - 1), size))
    return Plan("ring", size, size, tuple(transfers), pipelined=True, claim=claim)
