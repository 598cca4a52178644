"""Parameter server: all ranks send to one rank, or to a few; the baseline of all comparisons."""

from __future__ import annotations

from fractions import Fraction

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.topology.plan import Claim, Plan, Transfer


def parameter_server(world: World, servers: int = 1) -> Plan:
    """All ranks send to rank 0, which adds in rank order and sends the sum back (Iandola et al. 2016, section 4).

    With k `servers`, spread evenly over the ranks, each server sums 1/k of the buffer. Depth 2 for p > 1 ranks. A server
    receives, and sends, (p-1)/k of the buffer as a server and (k-1)/k as a rank, so its link is the bottleneck.
    """
    if not 1 <= servers <= world.size:
        raise UserError(
            f"parameter-server: servers must be from 1 to the number of ranks (servers: {servers}, {world})"
        )
    up, down = [], []
    for chunk in range(servers):
        server = chunk * world.size // servers
        workers = [rank for rank in range(world.size) if rank != server]
        up += [Transfer(worker, server, chunk, True) for worker in workers]
        down += [Transfer(server, worker, chunk, False) for worker in workers]
    alone = world.size == 1
    claim = Claim(0 if alone else 2, Fraction(0) if alone else Fraction(world.size + servers - 2, servers))
    return Plan("parameter-server", world.size, servers, (*up, *down), rank_order=True, claim=claim)
