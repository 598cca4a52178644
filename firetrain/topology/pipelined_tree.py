"""Pipelined tree: the buffer moves in pieces through a tree of small degree, up and down at the same time."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.topology.plan import Claim, Plan, Transfer


def pipelined_tree(world: World, arity: int = 2) -> Plan:
    """Reduce to the root of a tree in which every rank has up to `arity` children, then broadcast, in pieces.

    Rank i, counted node by node, has the children 2i+1 and 2i+2 (arity 2). Depth 2 floor(log2 p); for p > 4 ranks the busiest
    rank receives 3 times the buffer (from two children, then the result), which determines the time of a long pipeline. Arity
    1 is a chain with 2 times the buffer and depth 2(p-1).
    """
    if arity < 1:
        raise UserError(f"pipelined-tree: arity must be 1 or more (arity: {arity})")
    order, size = world.by_node, world.size
    links = [(order[position], order[(position - 1) // arity]) for position in range(1, size)]
    up = [Transfer(child, parent, 0, True) for child, parent in reversed(links)]
    down = [Transfer(parent, child, 0, False) for child, parent in links]
    children = [min(arity, max(0, size - 1 - position * arity)) for position in range(size)]
    busiest = max(count + (position > 0) for position, count in enumerate(children))
    claim = Claim(2 * _height(size, arity), Fraction(busiest))
    return Plan("pipelined-tree", size, 1, (*up, *down), pipelined=True, claim=claim)


def _height(size: int, arity: int) -> int:
    """The number of levels below the root of a full tree with `size` ranks."""
    height, position = 0, size - 1
    while position > 0:
        height, position = height + 1, (position - 1) // arity
    return height
