"""The kernels that take the most time of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from firetrain.bench.gpu.one_rank import batch_of, model_options, models, one_rank, take_step
from firetrain.errors import FiretrainError
from firetrain.transport.device import is_gpu, synchronize

_LARGEST = 15
# in the names of copies for which the host waits
_PAGEABLE = "pageable"


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model its largest kernels, with microseconds in three steps and the number of calls.

    Images and labels come from pinned memory in every step. FiretrainError if anything is copied from pageable memory, for which
    the host waits; torch's debug mode for synchronisations does not see that.
    """
    gpu = is_gpu(device)
    activity = ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU
    for model in models(device):
        count = 512 if gpu else 4
        options, size = model_options(device, model, count)
        worker, batch = one_rank(device, *options), batch_of(count, size, device, resident=False)
        take_step(worker, batch)
        with profile(activities=[activity]) as seen:
            for _ in range(3):
                take_step(worker, batch)
            synchronize(device)
        # on a GPU the profile has calls of the host, too, which wait for the device
        rows = [(one.key, _own_us(one, gpu), one.count) for one in seen.key_averages() if not gpu or _is_kernel(one)]
        rows.sort(key=lambda row: -row[1])
        yield model, [{"kernel": key, "us": us, "calls": count} for key, us, count in rows[:_LARGEST]]
        worker.close()
        if pageable := [one.key for one in seen.key_averages() if _PAGEABLE in one.key.lower()]:
            raise FiretrainError(f"{model}: a step copies from pageable memory: {', '.join(pageable)}")


def _is_kernel(event: Any) -> bool:
    return bool(event.device_type.name == "CUDA")


def _own_us(event: Any, gpu: bool) -> float:
    return float(event.self_device_time_total if gpu else event.self_cpu_time_total)
