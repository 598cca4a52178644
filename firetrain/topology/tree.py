"""Tree of FireCaffe: pairs of ranks merge their buffers, then pairs of pairs; the sum returns the same way."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.topology.plan import Claim, Plan, Transfer


def tree(world: World) -> Plan:
    """Binomial tree reduce to rank 0, then binomial broadcast, of the whole buffer (Iandola et al. 2016, section 4).

    Depth 2 floor(log2 p) for p ranks; rank 0 receives, and sends, ceil(log2 p) whole buffers one after another over its link,
    which takes 2 ceil(log2 p) times the transfer of the buffer. Not pipelined, because it is the baseline as published.
    """
    merges = []
    distance = 1
    while distance < world.size:
        merges += [(rank, rank - distance) for rank in range(distance, world.size, 2 * distance)]
        distance *= 2
    up = [Transfer(child, parent, 0, True) for child, parent in merges]
    down = [Transfer(parent, child, 0, False) for child, parent in reversed(merges)]
    claim = Claim(2 * (world.size.bit_length() - 1), Fraction((world.size - 1).bit_length()))
    return Plan("tree", world.size, 1, (*up, *down), claim=claim)
