"""Timing of collective calls on the slowest rank."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from firetrain.transport.device import synchronize
from firetrain.transport.transport import Transport


def slowest_s(transport: Transport, run: Callable[[], object], calls: int = 1) -> float:
    """Seconds per call of `run`, over `calls` consecutive calls, on the rank that takes longest.

    Collective over all ranks, which start simultaneously and get the same result.
    """
    transport.barrier()
    started_s = time.perf_counter()
    for _ in range(calls):
        run()
    synchronize(transport.device)
    spent_s = (time.perf_counter() - started_s) / calls
    own = torch.tensor([spent_s], dtype=torch.float64, device=transport.device)
    return max(float(value) for value in transport.gather(own))
