"""Direct: every rank sends each other rank its part of the buffer; two rounds for any number of ranks."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.topology.plan import Claim, Plan, Transfer


def direct(world: World) -> Plan:
    """All-to-all reduce-scatter, then all-to-all all-gather; every sum in float32, in rank order.

    The bits of the result depend only on the number of ranks and the values, not on the nodes of the ranks. Depth 2 for p > 1
    ranks; each rank sends and receives 2(p-1)/p of the buffer, the least possible, in p-1 simultaneous messages per round. It
    suits small messages, and networks in which every pair of ranks has its own link.
    """
    size = world.size
    pairs = [((position + distance) % size, position) for distance in range(1, size) for position in range(size)]
    collect = sorted((Transfer(source, owner, owner, True) for source, owner in pairs), key=lambda t: t.source)
    spread = [Transfer(owner, target, owner, False) for target, owner in pairs]
    claim = Claim(2 if size > 1 else 0, Fraction(2 * (size - 1), size))
    return Plan("direct", size, size, (*collect, *spread), pipelined=True, rank_order=True, claim=claim)
