"""Parameter server: everybody sends to one rank. The baseline that everything else is compared with."""

from __future__ import annotations

from firetrain.cluster import World
from firetrain.topology.plan import Plan, Transfer


def parameter_server(world: World) -> Plan:
    """All ranks send to rank 0, which adds in rank order and sends the sum back (Iandola et al. 2016, section 4).

    Depth 2 for p > 1 ranks; rank 0 receives, and sends, p-1 whole buffers: its link is the limit.
    """
    workers = range(1, world.size)
    up = [Transfer(worker, 0, 0, True) for worker in workers]
    down = [Transfer(0, worker, 0, False) for worker in workers]
    return Plan("parameter-server", world.size, 1, (*up, *down))
