"""Torus: the ranks form a grid; sums along rows, then along columns, then copies along rows."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.topology.hierarchical import hierarchical
from firetrain.topology.plan import Claim, Plan, Transfer


def torus(world: World, columns: int = 0) -> Plan:
    """Rings along the rows of a grid, then along its columns with the share that each rank holds (Mikami et al. 2018).

    Rows have `columns` ranks, filled node by node. columns=0: the divisor of the number of ranks p that makes the grid most
    nearly square, with rows at least as long as columns; a prime p gives one ring. With rows of x and columns of y ranks:
    depth 2(x-1) + 2(y-1); each rank sends and receives 2(p-1)/p of the buffer, the least possible.
    """
    size = world.size
    across = columns or size // next(side for side in range(math.isqrt(size), 0, -1) if size % side == 0)
    if not 1 <= across <= size or size % across:
        raise UserError(f"torus: columns must divide the number of ranks (columns: {columns}, ranks: {size})")
    rows = World.even(size // across, across)
    order = world.by_node
    plan = hierarchical(rows)
    transfers = (Transfer(order[source], order[target], chunk, adds) for source, target, chunk, adds in plan.transfers)
    claim = Claim(2 * (across - 1) + 2 * (size // across - 1), Fraction(2 * (size - 1), size))
    return replace(plan, topology="torus", transfers=tuple(transfers), claim=claim)
