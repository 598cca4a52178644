"""What a message costs: latency and bandwidth between neighbours, measured in a fraction of a second."""

from __future__ import annotations

import time
from functools import cache
from statistics import median

import torch

from firetrain.cluster import Link
from firetrain.reduction.transport import Transport, lost_peers

_TRIES = 8
_SMALL_REPEATS = 5
_LARGE_REPEATS = 2
_LARGE_BYTES = 4 << 20


@cache
def measure_link(transport: Transport) -> Link:
    """The worst latency and bandwidth between neighbours, node after node, all at once; every rank gets the same.

    Measured once for a transport: all ranks must ask together. Each rank sends to the next and receives from the previous
    one.
    """
    order = transport.world.by_node
    place = order.index(transport.rank)
    after, before = order[(place + 1) % len(order)], order[place - 1]
    large = torch.zeros(_LARGE_BYTES, dtype=torch.uint8, device=transport.device)
    landing = torch.empty_like(large)

    def exchange(length: int, repeats: int) -> float:
        """Seconds per exchange; the first, in which late ranks are waited for, is not counted."""
        for number in range(-1, repeats):
            if number == 0:
                started_s = time.perf_counter()
            transport.exchange((after, large[:length]), (before, landing[:length]))
            if transport.device.type == "cuda":
                torch.cuda.synchronize()
        return (time.perf_counter() - started_s) / repeats

    transport.connect_to({before, after})
    with lost_peers(transport.rank, "the measurement of the links"):
        small_s = [exchange(1, _SMALL_REPEATS) for _ in range(_TRIES)]
        # the least of them is the link's: whatever disturbs adds; what is usual is the processors' share
        latency_s, overhead_s = min(small_s), median(small_s)
        transfer_s = exchange(_LARGE_BYTES, _LARGE_REPEATS) - latency_s
    mine = torch.tensor([latency_s, overhead_s, max(transfer_s, 1e-6)], device=transport.device)
    latency_s, overhead_s, transfer_s = torch.stack(transport.gather(mine)).amax(0).tolist()
    return Link(latency_s, _LARGE_BYTES / transfer_s, overhead_s)
