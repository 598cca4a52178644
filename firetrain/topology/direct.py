"""Direct: every rank sends every other the part that it looks after; two rounds, whatever the number of ranks."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.topology.plan import Claim, Plan, Transfer


def direct(world: World) -> Plan:
    """All-to-all reduce-scatter, then all-to-all all-gather; every sum in float32, in rank order.

    The bits of the result depend on the number of ranks and the values alone, not on which nodes the ranks are on. Depth 2
    for p > 1 ranks; each rank sends and receives 2(p-1)/p of the buffer, the least possible, in p-1 messages at once:
    best where messages are small or every pair of ranks has a link of its own.
    """
    size = world.size
    pairs = [((place + distance) % size, place) for distance in range(1, size) for place in range(size)]
    collect = sorted((Transfer(source, owner, owner, True) for source, owner in pairs), key=lambda t: t.source)
    spread = [Transfer(owner, target, owner, False) for target, owner in pairs]
    claim = Claim(2 if size > 1 else 0, Fraction(2 * (size - 1), size))
    return Plan("direct", size, size, (*collect, *spread), pipelined=True, rank_order=True, claim=claim)
