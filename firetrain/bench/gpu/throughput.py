"""Images per second of whole steps on images that are on the device, beside the two floors that bound them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from firetrain.bench.gpu import facts
from firetrain.bench.gpu.steps import one_rank
from firetrain.bench.step import make_batch
from firetrain.models.catalogue import model_by_name
from firetrain.models.inventory import inventory
from firetrain.transport.device import is_gpu

_MODELS = ("googlenet", "squeezenet1_1", "alexnet")
# a training step multiplies three times as often as a forward pass
_FLOPS_OF_FORWARD = 3


def measure(device: torch.device) -> dict[str, Any]:
    """For each model, batch and mode: images/s, and their share of what the matrix products alone would allow."""
    gpu = is_gpu(device)
    size, batches = (224, (256, 1024)) if gpu else (32, (2,))
    ceiling = facts.measure(device)["bfloat16_flop_per_s"]
    found: dict[str, Any] = {}
    for model in _MODELS:
        layers = inventory(model_by_name(model, stem="imagenet" if gpu else "small"), size)
        flops = _FLOPS_OF_FORWARD * sum(layer.flops for layer in layers)
        for batch in batches:
            for mode in ("eager", "compile") if gpu else ("eager",):
                name = f"{model} {batch} {mode}"
                try:
                    speed = _images_per_s(device, model, batch, size, mode)
                except torch.OutOfMemoryError as error:
                    found[name] = {"error": str(error).partition(". ")[0]}
                else:
                    found[name] = {"images_per_s": speed}
                    if gpu:
                        found[name]["share_of_flop_ceiling"] = speed * flops / ceiling
                if gpu:
                    torch.cuda.empty_cache()
    return found


def _images_per_s(device: torch.device, model: str, batch: int, size: int, mode: str) -> float:
    stem = "imagenet" if is_gpu(device) else "small"
    worker = one_rank(
        device, f"model.name={model}", f"model.stem={stem}", f"data.image_size={size}", f"batch.global_size={batch}",
        "precision=bfloat16", f"compile={str(mode == 'compile').lower()}",
    )  # fmt: skip
    images = make_batch(np.arange(batch), size, 10)

    def step() -> None:
        worker.backward(iter([images]), 1, epoch=0)
        worker.finish(float(batch))
        worker.update(0.01)

    return batch / facts.fastest_s(step, device, tries=5 if is_gpu(device) else 1)
