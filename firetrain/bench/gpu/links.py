"""Every reduction timed among the GPUs of this machine, with the columns of nccl-tests; needs at least two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from firetrain.bench.allreduce import bench_allreduce
from firetrain.bench.gpu.ranks import on_ranks, reductions
from firetrain.reduction.context import Context
from firetrain.transport.device import is_gpu
from firetrain.transport.transport import Transport

_MOST_RANKS = 8
_SIZES_BYTES = {True: (64 << 10, 4 << 20, 64 << 20), False: (4 << 10,)}
_REPEATS = {True: 10, False: 2}


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each reduction and size: median seconds, algbw and busbw in GB/s, and the ratio of its time to native's."""
    gpus = torch.cuda.device_count() if is_gpu(device) else 2
    if gpus < 2:
        yield "skipped", "one GPU: ranks that share it say nothing about speed"
        return
    (rows, *_) = on_ranks(_rows, device, min(gpus, _MOST_RANKS))
    yield from rows.items()


def _rows(transport: Transport) -> Iterator[tuple[str, Any]]:
    gpu = is_gpu(transport.device)
    sizes, repeats = _SIZES_BYTES[gpu], _REPEATS[gpu]
    for rows in bench_allreduce(Context(transport), reductions(transport), sizes, repeats):
        native_s = next(row.median_s for row in rows if row.reduction == "native")
        for row in rows:
            yield f"{row.reduction} {row.bytes}", {
                "median_s": row.median_s, "algbw_gb_per_s": row.algbw_gb_per_s, "busbw_gb_per_s": row.busbw_gb_per_s,
                "wrong": row.wrong, "ratio_to_native": row.median_s / native_s,
            }  # fmt: skip
