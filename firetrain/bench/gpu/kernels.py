"""The kernels that take the most time of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from firetrain.bench.gpu.steps import one_rank
from firetrain.bench.step import make_batch
from firetrain.transport.device import is_gpu

_LARGEST = 15


def measure(device: torch.device) -> dict[str, Any]:
    """For each model its largest kernels, with microseconds in three steps and the number of calls."""
    gpu = is_gpu(device)
    size, batch = (224, 512) if gpu else (32, 4)
    activity = ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU
    found: dict[str, Any] = {}
    for model in ("googlenet", "squeezenet1_1", "alexnet") if gpu else ("squeezenet1_1",):
        worker = one_rank(
            device, f"model.name={model}", f"model.stem={'imagenet' if gpu else 'small'}", f"data.image_size={size}",
            f"batch.global_size={batch}", "precision=bfloat16",
        )  # fmt: skip
        images = make_batch(np.arange(batch), size, 10)
        with profile(activities=[activity]) as seen:
            for _ in range(3):
                worker.backward(iter([images]), 1, epoch=0)
                worker.finish(float(batch))
                worker.update(0.01)
        rows = [(one.key, _own_us(one), one.count) for one in seen.key_averages()]
        rows.sort(key=lambda row: -row[1])
        found[model] = [{"kernel": key, "us": us, "calls": count} for key, us, count in rows[:_LARGEST]]
    return found


def _own_us(event: Any) -> float:
    return float(getattr(event, "self_device_time_total", 0.0) or event.self_cpu_time_total)
