"""Ring: every rank talks to its two neighbours only, and every link carries the same load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firetrain.cluster import World
from firetrain.topology.plan import Plan, Transfer


def ring(world: World) -> Plan:
    """Reduce-scatter, then all-gather, around a ring in rank order (Patarasuk and Yuan 2009).

    Depth 2(p-1) for p ranks; each rank sends and receives 2(p-1)/p of the buffer, which is the least possible.
    """
    ranks = range(world.size)
    parts = [[chunk] for chunk in ranks]
    transfers = (*reduce_scatter(ranks, parts), *all_gather(ranks, parts))
    return Plan("ring", world.size, world.size, transfers)


def reduce_scatter(ranks: Sequence[int], parts: Sequence[Sequence[int]]) -> Iterator[Transfer]:
    """Around the ring of `ranks`: the chunks of `parts[i]` end, summed over all of them, at `ranks[i]`."""
    size = len(ranks)
    for step in range(1, size):
        for place in range(size):
            source, target = ranks[(place + step) % size], ranks[(place + step + 1) % size]
            yield from (Transfer(source, target, chunk, True) for chunk in parts[place])


def all_gather(ranks: Sequence[int], parts: Sequence[Sequence[int]]) -> Iterator[Transfer]:
    """Around the ring of `ranks`: the chunks of `parts[i]` are copied from `ranks[i]` to all others."""
    size = len(ranks)
    for step in range(size - 1):
        for place in range(size):
            source, target = ranks[(place + step) % size], ranks[(place + step + 1) % size]
            yield from (Transfer(source, target, chunk, False) for chunk in parts[place])
