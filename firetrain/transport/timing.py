"""Timing of work on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from firetrain.transport.device import synchronize
from firetrain.transport.transport import Transport


def elapsed_s(device: torch.device, run: Callable[[], object], calls: int = 1) -> float:
    """Seconds per call of `run`, over `calls` consecutive calls, from an idle device until all of their work is done."""
    synchronize(device)
    began_s = time.perf_counter()
    for _ in range(calls):
        run()
    synchronize(device)
    return (time.perf_counter() - began_s) / calls


def slowest_s(transport: Transport, run: Callable[[], object], calls: int = 1) -> float:
    """Seconds per call of `run`, over `calls` consecutive calls, on the rank that takes longest.

    Collective over all ranks, which start simultaneously and get the same result.
    """
    transport.barrier()
    return max(of_every_rank(transport, elapsed_s(transport.device, run, calls)))


def of_every_rank(transport: Transport, own: float) -> list[float]:
    """The number `own` of each rank, in order of ranks. Collective."""
    values = torch.tensor([own], dtype=torch.float64, device=transport.device)
    return [float(one) for one in transport.gather(values)]
