"""Versions, and the two ceilings of a GPU: how fast it copies, and how fast it multiplies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from firetrain.transport.device import device_name, is_gpu, nccl_version, visible_gpus
from firetrain.transport.timing import elapsed_s


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """Versions; bytes/s of a copy on the device, read and written bytes counted; FLOP/s of a bfloat16 matrix product."""
    yield "device", device_name(device)
    yield "torch", torch.__version__
    yield "cuda", torch.version.cuda
    yield "cudnn", torch.backends.cudnn.version()
    if is_gpu(device):
        properties = torch.cuda.get_device_properties(device)
        yield "memory_bytes", properties.total_memory
        yield "multiprocessors", properties.multi_processor_count
        yield "gpus", visible_gpus()
        yield "nccl", list(nccl_version())
    yield "copy_bytes_per_s", copy_bytes_per_s(device)
    yield "bfloat16_flop_per_s", flop_per_s(device)


def copy_bytes_per_s(device: torch.device) -> float:
    """Bytes/s of a large copy on the device; bytes that are read and written both count."""
    size_bytes = 4 << 30 if is_gpu(device) else 16 << 20
    source = torch.ones(size_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size_bytes / fastest_s(lambda: target.copy_(source), device)


def flop_per_s(device: torch.device) -> float:
    """FLOP/s of a large matrix product in bfloat16."""
    edge = 8192 if is_gpu(device) else 256
    # not equal numbers, which would take less power, and less time
    left = torch.randn(edge, edge, dtype=torch.bfloat16, device=device)
    return 2 * edge**3 / fastest_s(lambda: torch.matmul(left, left), device)


def steady_s(run: Callable[[], object], device: torch.device, calls: int, tries: int = 3) -> float:
    """Seconds of a call when `calls` calls follow one another and the host does not wait between them, the median of `tries`."""
    run()
    return median(elapsed_s(device, run, calls) for _ in range(tries))


def fastest_s(run: Callable[[], object], device: torch.device, tries: int = 10) -> float:
    """The shortest duration of a call, in seconds; the first call is not counted."""
    run()
    return min(elapsed_s(device, run) for _ in range(tries))
