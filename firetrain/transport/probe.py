"""Measures latency and bandwidth between neighbouring ranks in a fraction of a second."""

from __future__ import annotations

import time
from functools import cache
from statistics import median

import torch

from firetrain.cluster import Link
from firetrain.cluster.link import largest_bytes
from firetrain.transport.device import synchronize
from firetrain.transport.transport import Transport

_TRIES = 8
_SMALL_REPEATS = 5
_LARGE_REPEATS = 2
# large enough that the time is dominated by the transfer, and not by the start of a message
_LARGE_BYTES = {"gloo": 4 << 20, "nccl": 128 << 20}


@cache
def measure_link(transport: Transport) -> Link:
    """Highest latency and lowest bandwidth between neighbouring ranks (ordered by node) while all ranks send.

    Each rank sends to the next and receives from the previous rank. The result is the same on every rank. Collective over all
    ranks; measured once per transport.
    """
    order = [transport.number_of(rank) for rank in transport.world.by_node]
    index = order.index(transport.identity.rank)
    after, before = order[(index + 1) % len(order)], order[index - 1]
    large_bytes = _LARGE_BYTES[transport.name]
    large = torch.zeros(large_bytes, dtype=torch.uint8, device=transport.device)
    landing = torch.empty_like(large)

    def exchange(length: int, repeats: int) -> float:
        """Seconds per exchange; the first exchange, which waits for late ranks, is not counted."""
        for number in range(-1, repeats):
            if number == 0:
                started_s = time.perf_counter()
            transport.exchange((after, large[:length]), (before, landing[:length]))
            synchronize(transport.device)
        return (time.perf_counter() - started_s) / repeats

    transport.connect_to({before, after})
    with transport.waiting("the measurement of the links"):
        small_s = [exchange(1, _SMALL_REPEATS) for _ in range(_TRIES)]
        # the latency is the minimum, because disturbances only add to it; the overhead is the median
        latency_s, overhead_s = min(small_s), median(small_s)
        transfer_s = exchange(large_bytes, _LARGE_REPEATS) - latency_s
    mine = torch.tensor([latency_s, overhead_s, max(transfer_s, 1e-6)], device=transport.device)
    latency_s, overhead_s, transfer_s = torch.stack(transport.gather(mine)).amax(0).tolist()
    return Link(latency_s, large_bytes / transfer_s, overhead_s, largest_bytes(transport.name))
