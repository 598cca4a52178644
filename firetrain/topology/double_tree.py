"""Double tree: two trees with half of the buffer each; who works in one is a leaf in the other."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.topology.plan import Claim, Plan, Transfer


def double_tree(world: World) -> Plan:
    """Two complementary binary trees, half of the buffer through each, in pieces (Sanders, Speck and Träff 2009).

    In the first tree places with an odd number are leaves. The second is its mirror image if the number of ranks p is
    even, else the first moved on by one place: there the even ones are leaves (but for one, if p is odd). Depth
    2 ceil(log2 p); from 4 ranks on the busiest sends and receives 2 times the buffer: half from each of two children and
    half from the parent in one tree, half in the other.
    """
    order, size = world.by_node, world.size
    first = [_parent(place, size) for place in range(size)]
    second: list[int | None] = [None] * size
    for place, parent in enumerate(first):
        moved, moved_parent = (
            (other if other is None else size - 1 - other if size % 2 == 0 else (other + 1) % size)
            for other in (place, parent)
        )
        second[moved or 0] = moved_parent
    transfers: list[Transfer] = []
    for chunk, parents in enumerate((first, second)):
        links = [(order[place], order[parent]) for place, parent in _from_leaves(parents)]
        transfers += [Transfer(child, parent, chunk, True) for child, parent in links]
        transfers += [Transfer(parent, child, chunk, False) for child, parent in reversed(links)]
    claim = Claim(2 * (size - 1).bit_length(), Fraction(min(size, 4), 2) if size > 1 else Fraction(0))
    return Plan("double-tree", size, 2, tuple(transfers), pipelined=True, claim=claim).in_rounds()


def _parent(place: int, size: int) -> int | None:
    """In-order binary tree over the places 0 .. size-1: a place divisible by 2^h, h largest, stands h levels over the leaves.

    Place 0 is the root, with one child. Where the parent on the next level would lie outside, it is the next one that
    does not, further left.
    """
    if place == 0:
        return None
    level = place & -place
    above = place - level | 2 * level
    return above if above < size else place - level


def _from_leaves(parents: list[int | None]) -> list[tuple[int, int]]:
    """(place, parent) for all but the root, children before their parents."""

    def depth(place: int) -> int:
        parent = parents[place]
        return 0 if parent is None else 1 + depth(parent)

    places = sorted(range(len(parents)), key=depth, reverse=True)
    return [(place, parent) for place in places if (parent := parents[place]) is not None]
