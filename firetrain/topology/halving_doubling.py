"""Halving-doubling: partners at doubling distances exchange halves of their parts, and gather them in reverse order."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.topology.plan import Claim, Plan, Transfer


def halving_doubling(world: World) -> Plan:
    """Recursive halving reduce-scatter, recursive doubling all-gather (Thakur, Rabenseifner and Gropp 2005).

    The first and largest exchange is with the neighbour, which is on the same node if nodes have several ranks. Let q be the
    largest power of two up to the number of ranks p. Then p-q ranks first send their buffers to a neighbour, which returns the
    result at the end. Depth 2 log2 q, and 2 more if p > q; the busiest rank receives 2(q-1)/q of the buffer, and one buffer
    more if p > q.
    """
    order, size = world.by_node, world.size
    levels = size.bit_length() - 1
    core = 1 << levels
    extra = size - core
    folded = [(order[2 * pair + 1], order[2 * pair]) for pair in range(extra)]
    active = [order[2 * position] if position < extra else order[position + extra] for position in range(core)]

    # (round, transfer); a rank's transfers of one level are sent together, although some of them could be sent earlier
    fold = [(0, Transfer(away, partner, chunk, True)) for away, partner in folded for chunk in range(core)]
    halve: list[tuple[int, Transfer]] = []
    held = [range(core)] * core  # the chunks that each position still reduces
    for level in range(levels):
        kept = [_half(chunks, position >> level & 1) for position, chunks in enumerate(held)]
        for position, rank in enumerate(active):
            partner = position ^ 1 << level
            halve += [(level + bool(extra), Transfer(rank, active[partner], chunk, True)) for chunk in kept[partner]]
        held = kept
    depth = 2 * levels + (2 if extra else 0)
    back = [(depth - 1 - number, Transfer(t.target, t.source, t.chunk, False)) for number, t in (*fold, *halve)]
    steps = sorted((*fold, *halve, *back), key=lambda step: step[0])

    claim = Claim(depth, Fraction(2 * (core - 1), core) + (1 if extra else 0))
    not_before, transfers = zip(*steps, strict=True) if steps else ((), ())
    return Plan("halving-doubling", size, core, transfers, pipelined=True, not_before=not_before, claim=claim)


def _half(chunks: range, upper: int) -> range:
    middle = (chunks.start + chunks.stop) // 2
    return range(middle, chunks.stop) if upper else range(chunks.start, middle)
