"""Every exact reduction timed among the GPUs of this machine, with the columns of nccl-tests; needs at least two GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch

from firetrain.bench.allreduce import bench_allreduce
from firetrain.bench.gpu.captured import Captured
from firetrain.bench.gpu.ranks import on_ranks, raise_errors, reductions
from firetrain.errors import FiretrainError
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket
from firetrain.reduction.nccl_executor import NcclExecutor
from firetrain.topology import find_topology
from firetrain.transport.device import is_gpu, visible_gpus
from firetrain.transport.timing import slowest_s
from firetrain.transport.transport import Transport

_MOST_RANKS = 8
_SIZES_BYTES = {True: (64 << 10, 4 << 20, 64 << 20), False: (4 << 10,)}
_REPEATS = {True: 10, False: 2}


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each reduction and size: median seconds, algbw and busbw in GB/s, and the ratio of its time to native's."""
    gpus = visible_gpus() if is_gpu(device) else 2
    if gpus < 2:
        yield "skipped", "one GPU: ranks that share it say nothing about speed"
        return
    found = on_ranks(_rows, device, min(gpus, _MOST_RANKS))
    yield from ((name, row) for name, row in found[0].items() if name != "error")
    raise_errors(found)


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
    if gpu:
        for size_bytes in sizes:
            try:
                yield f"ring as CUDA graph {size_bytes}", _captured(transport, size_bytes // 4, repeats)
            except RuntimeError as error:  # an experiment that training does not use: its failure is a result
                yield "rings as CUDA graphs", {"failed": str(error).partition("\n")[0]}
                return


def _execute(executor: NcclExecutor, bucket: Bucket) -> None:
    executor.start(bucket).wait()


def _captured(transport: Transport, length: int, repeats: int) -> dict[str, float]:
    """Seconds of a ring as a CUDA graph and wave by wave, in turn; the sums of both must be the same."""
    bucket = Bucket(torch.full((length,), transport.rank + 1.0, device=transport.device))
    plan, context = find_topology("ring")(transport.world), Context(transport)
    executors = {"graph_s": Captured(plan, context), "waves_s": NcclExecutor(plan, context)}
    sums, times = [], {name: [0.0] * repeats for name in executors}
    for executor in executors.values():
        executor.prepare([bucket])
        bucket.buffer.fill_(transport.rank + 1.0)
        executor.start(bucket).wait()
        sums.append(float(bucket.buffer.double().sum()))
    for repeat in range(repeats):
        for name, executor in executors.items():
            bucket.buffer.fill_(0.0)
            times[name][repeat] = slowest_s(transport, partial(_execute, executor, bucket))
    for executor in executors.values():
        executor.close()
    if sums[0] != sums[1]:
        raise FiretrainError(f"a ring as CUDA graph sums to {sums[0]}, wave by wave to {sums[1]}")
    return {name: median(some) for name, some in times.items()}
