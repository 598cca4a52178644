"""Images per second of whole steps on images that are on the device, beside the ceilings that bound them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from firetrain.bench.gpu import facts
from firetrain.bench.gpu.one_rank import batch_of, model_options, one_rank, take_step
from firetrain.data.batch import Batch
from firetrain.models.catalogue import model_by_name
from firetrain.models.inventory import inventory
from firetrain.parallel.worker import Worker
from firetrain.transport.device import is_gpu, synchronize

MODELS = ("googlenet", "squeezenet1_1", "alexnet")
# a training step multiplies three times as often as a forward pass
_FLOPS_OF_FORWARD = 3
_HOST_STEPS = 3


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model, batch and mode: images/s, their share of the ceiling of matrix products, host time, memory, parts."""
    gpu = is_gpu(device)
    ceiling = facts.flop_per_s(device)
    cases = [(model, batch, "eager") for model in MODELS for batch in ((256, 1024) if gpu else (2,))]
    for model, batch, mode in [*cases, *((model, 1024, "compile") for model in MODELS if gpu)]:
        try:
            yield f"{model} {batch} {mode}", _case(device, model, batch, mode, ceiling)
        except torch.OutOfMemoryError as error:
            yield f"{model} {batch} {mode}", {"error": str(error).partition(". ")[0]}
        if gpu:
            torch.cuda.empty_cache()


def _case(device: torch.device, model: str, count: int, mode: str, ceiling: float) -> dict[str, Any]:
    options, size = model_options(device, model, count)
    worker = one_rank(device, *options, f"compile={str(mode == 'compile').lower()}")
    batch = batch_of(count, size, device)
    if mode == "compile":
        worker.warm_up(size, {count}, set())
    seconds = facts.fastest_s(lambda: take_step(worker, batch), device, tries=5 if is_gpu(device) else 1)
    layers = inventory(model_by_name(model, stem="imagenet" if is_gpu(device) else "small"), size)
    flops = _FLOPS_OF_FORWARD * sum(layer.flops for layer in layers)
    found = {
        "images_per_s": count / seconds,
        "share_of_flop_ceiling": count / seconds * flops / ceiling,
        "step_s": seconds,
        "host_s": _host_s(worker, batch, device),
        **_parts_s(worker, batch, device),
    }
    if is_gpu(device):
        found["memory_bytes"] = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    worker.close()
    return found


def _host_s(worker: Worker, batch: Batch, device: torch.device) -> float:
    """Seconds in which the host issues a step; the device is idle if this is more than it needs."""
    synchronize(device)
    began_s = time.perf_counter()
    for _ in range(_HOST_STEPS):
        take_step(worker, batch)
    host_s = (time.perf_counter() - began_s) / _HOST_STEPS
    synchronize(device)
    return host_s


def _parts_s(worker: Worker, batch: Batch, device: torch.device) -> dict[str, float]:
    """Seconds of the passes and of the update, with a synchronisation between them."""
    times = []
    for part in (
        lambda: worker.backward(iter([batch]), 1, epoch=0),
        lambda: worker.finish(float(len(batch))),
        lambda: worker.update(0.01),
    ):
        synchronize(device)
        began_s = time.perf_counter()
        part()
        synchronize(device)
        times.append(time.perf_counter() - began_s)
    return {"passes_s": times[0], "finish_s": times[1], "update_s": times[2]}
