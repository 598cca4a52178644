"""Double tree: two trees with half of the buffer each; the inner ranks of one tree are leaves of the other."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.topology.plan import Claim, Plan, Transfer


def double_tree(world: World) -> Plan:
    """Two complementary binary trees, half of the buffer through each, in pieces (Sanders, Speck and Träff 2009).

    In the first tree, odd positions are leaves. If the number of ranks p is even, the second tree is its mirror image;
    otherwise it is the first tree shifted by one. Its leaves are the even positions (except one, if p is odd). Depth
    2 ceil(log2 p). From 4 ranks on, the busiest rank sends and receives 2 times the buffer: in one tree half from each of two
    children and half from the parent, and half in the other tree.
    """
    order, size = world.by_node, world.size
    first = [_parent(position, size) for position in range(size)]
    second: list[int | None] = [None] * size
    for position, parent in enumerate(first):
        moved, moved_parent = (
            (other if other is None else size - 1 - other if size % 2 == 0 else (other + 1) % size)
            for other in (position, parent)
        )
        second[moved or 0] = moved_parent
    transfers: list[Transfer] = []
    for chunk, parents in enumerate((first, second)):
        links = [(order[position], order[parent]) for position, parent in _from_leaves(parents)]
        transfers += [Transfer(child, parent, chunk, True) for child, parent in links]
        transfers += [Transfer(parent, child, chunk, False) for child, parent in reversed(links)]
    claim = Claim(2 * (size - 1).bit_length(), Fraction(min(size, 4), 2) if size > 1 else Fraction(0))
    return Plan("double-tree", size, 2, tuple(transfers), pipelined=True, claim=claim).in_rounds()


def _parent(position: int, size: int) -> int | None:
    """The parent of a position in an in-order binary tree over the positions 0 .. size-1; None for the root.

    A position divisible by 2^h, for the largest such h, is h levels above the leaves. Position 0 is the root, and has one
    child. If the parent on the next level would be outside, it is the next ancestor to the left that is inside.
    """
    if position == 0:
        return None
    level = position & -position
    above = position - level | 2 * level
    return above if above < size else position - level


def _from_leaves(parents: list[int | None]) -> list[tuple[int, int]]:
    """(position, parent) of all positions except the root, children before their parents."""

    def depth(position: int) -> int:
        parent = parents[position]
        return 0 if parent is None else 1 + depth(parent)

    positions = sorted(range(len(parents)), key=depth, reverse=True)
    return [(position, parent) for position in positions if (parent := parents[position]) is not None]
