"""Versions, and the two ceilings of a GPU: how fast it copies, and how fast it multiplies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from firetrain.transport.device import device_name, is_gpu, synchronize


def measure(device: torch.device) -> dict[str, Any]:
    """Versions; bytes/s of a copy on the device, read and written bytes counted; FLOP/s of a bfloat16 matrix product."""
    gpu = is_gpu(device)
    size_bytes, edge = (4 << 30, 8192) if gpu else (16 << 20, 256)
    source = torch.ones(size_bytes // 4, device=device)
    target = torch.empty_like(source)
    left = torch.ones(edge, edge, dtype=torch.bfloat16, device=device)
    found: dict[str, Any] = {
        "device": device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "copy_bytes_per_s": 2 * size_bytes / fastest_s(lambda: target.copy_(source), device),
        "bfloat16_flop_per_s": 2 * edge**3 / fastest_s(lambda: torch.matmul(left, left), device),
    }
    if gpu:
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "nccl": list(torch.cuda.nccl.version()),
        }
    return found


def fastest_s(run: Callable[[], object], device: torch.device, tries: int = 10) -> float:
    """The least seconds of a call, the first one not counted."""
    times = []
    for _ in range(tries + 1):
        synchronize(device)
        began_s = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - began_s)
    return min(times[1:])
