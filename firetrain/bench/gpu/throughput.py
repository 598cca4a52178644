"""Images per second of whole steps, with images on the device, and the hardware limits."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from firetrain.bench.gpu import facts
from firetrain.bench.gpu.one_rank import RATE, batch_of, model_options, models, one_rank, take_step
from firetrain.data.batch import Batch
from firetrain.errors import FiretrainError
from firetrain.models.catalogue import model_by_name
from firetrain.models.inventory import inventory
from firetrain.parallel.worker import Worker
from firetrain.transport.device import is_gpu, synchronize
from firetrain.transport.timing import elapsed_s

# a training step multiplies three times as often as a forward pass
_FLOPS_OF_FORWARD = 3
# how often a training step moves an output at least, if all that can be fused is fused: written and read in the forward pass, and
# so its gradient in the backward pass, which also reads the output twice. Batch norm needs five more passes, as its statistics
# must be known before it can be applied.
_PASSES = {"Conv2d": 6, "Linear": 6, "MaxPool2d": 6, "BatchNorm2d": 5}
_BFLOAT16_SHARE = 0.5
_HOST_STEPS = 3
_MODES = {
    "eager": (), "compile": ("compile=true", "compile_unit=model"), "compile by block": ("compile=true", "compile_unit=block"),
}  # fmt: skip
_SMALLEST = "squeezenet1_1"
_LONGEST = 500  # characters of an error


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model, batch, mode and precision: images/s, their share of what the ceilings allow, host time, memory, parts."""
    gpu = is_gpu(device)
    ceilings = facts.flop_per_s(device), facts.copy_bytes_per_s(device)
    names, batches = models(device), (256, 1024) if gpu else (2,)
    # compiling takes long, so that it comes after what is measured in any case
    cases = [(model, batch, "eager", "bfloat16") for model in names for batch in reversed(batches)]
    cases += [(model, batches[0], "eager", "tf32") for model in names]
    if gpu:
        cases += [
            (model, batches[-1], "compile", "bfloat16") for model in reversed(names)
        ]  # the quickest to compile first
        cases += [(_SMALLEST, batches[-1], "compile by block", "bfloat16")]
    failed = []
    for model, batch, mode, precision in cases:
        name, most = f"{model} {batch} {mode} {precision}", most_images_per_s(device, model, *ceilings)
        try:
            yield name, _case(device, model, batch, mode, precision, most)
        except torch.OutOfMemoryError as error:
            yield name, {"error": str(error).partition(". ")[0]}
        except Exception as error:  # a compiler's, for instance: the other cases are measured nevertheless
            failed.append(name)
            yield name, {"error": f"{type(error).__name__}: {str(error)[:_LONGEST]}"}
        if gpu:
            gc.collect()  # a worker refers to itself by its hooks
            torch.cuda.empty_cache()
    if failed:
        raise FiretrainError(f"failed: {', '.join(failed)}")


def _case(device: torch.device, model: str, count: int, mode: str, precision: str, most: float) -> dict[str, Any]:
    options, size = model_options(device, model, count)
    if is_gpu(device):
        torch.cuda.reset_peak_memory_stats(device)
    # as many classes as the model has for which the ceilings are worked out
    classes = 1000 if is_gpu(device) else 10
    worker = one_rank(device, *options, f"precision={precision}", *_MODES[mode], classes=classes)
    batch = batch_of(count, size, device)
    if mode != "eager":
        worker.warm_up(size, {count}, set())
    calls, tries = (5, 3) if is_gpu(device) else (1, 1)
    seconds = facts.steady_s(lambda: take_step(worker, batch), device, calls, tries)
    found = {
        "images_per_s": count / seconds,
        "most_images_per_s": most,
        "share": count / seconds / most,
        "step_s": seconds,
        "host_s": _host_s(worker, batch, device),
        **_parts_s(worker, batch, device),
    }
    if is_gpu(device):
        found["memory_bytes"] = torch.cuda.max_memory_allocated(device)
    worker.close()
    return found


def most_images_per_s(device: torch.device, model: str, flop_per_s: float, bytes_per_s: float) -> float:
    """The images/s of training that the device's ceilings allow, whichever of FLOPs and memory traffic takes longer."""
    _, size = model_options(device, model, 1)
    layers = inventory(model_by_name(model, stem="imagenet" if is_gpu(device) else "small"), size)
    flops = _FLOPS_OF_FORWARD * sum(layer.flops for layer in layers)
    moved = sum(_PASSES.get(layer.kind, 0) * layer.activation_bytes * _BFLOAT16_SHARE for layer in layers)
    return min(flop_per_s / flops, bytes_per_s / moved)


def _host_s(worker: Worker, batch: Batch, device: torch.device) -> float:
    """Seconds in which the host issues a step, to a device that has nothing else to do; the least of several."""
    times = []
    for _ in range(_HOST_STEPS):
        synchronize(device)
        began_s = time.perf_counter()
        take_step(worker, batch)
        times.append(time.perf_counter() - began_s)
    synchronize(device)
    return min(times)


def _parts_s(worker: Worker, batch: Batch, device: torch.device) -> dict[str, float]:
    """Seconds of the passes and of the update, with a synchronisation between them."""
    parts: dict[str, Callable[[], object]] = {
        "passes_s": lambda: worker.backward(iter([batch]), [batch.samples], epoch=0),
        "finish_s": lambda: worker.finish(float(len(batch))),
        "update_s": lambda: worker.update(RATE),
    }
    return {name: elapsed_s(device, part) for name, part in parts.items()}
