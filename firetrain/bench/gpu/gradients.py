"""Compares the gradients of three models on several ranks with those of one rank that has the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from firetrain.bench.gpu.one_rank import batch_of, models, one_rank
from firetrain.bench.gpu.ranks import on_ranks
from firetrain.bench.step import make_batch
from firetrain.config import load_config
from firetrain.data.order import share
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.worker import Worker
from firetrain.transport.transport import Transport

_RANKS, _IMAGES, _SIZE = 2, 8, 28
_REDUCTIONS = ("native", "ring", "tree")


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model and reduction: the largest difference to one rank's gradient, relative to the largest gradient."""
    found = on_ranks(_cases, device, _RANKS)
    yield from {name: max(one.get(name, float("inf")) for one in found) for name in found[0] if name != "error"}.items()
    if errors := [one["error"] for one in found if "error" in one]:
        raise RuntimeError(errors[0])


def _cases(transport: Transport) -> Iterator[tuple[str, float]]:
    # batch norm would differ by rank; these models have none
    for model in (name.replace("googlenet", "googlenet_paper") for name in models(transport.device)):
        options = [
            f"model.name={model}", "model.stem=small", f"data.image_size={_SIZE}", f"batch.global_size={_IMAGES}",
            "deterministic=true",
        ]  # fmt: skip
        whole = _gradient(one_rank(transport.device, *options), batch_of(_IMAGES, _SIZE, transport.device))
        for name in _REDUCTIONS:
            config = load_config("squeezenet-digits", [*options, f"reduction.name={name}"]).config
            worker = make_worker(config, 10, transport, {})
            mine = make_batch(share(np.arange(_IMAGES), transport.rank, transport.size), _SIZE, 10)
            summed = _gradient(worker, mine)
            worker.close()
            yield f"{model} {name}", float((summed - whole).abs().max() / whole.abs().max())


def _gradient(worker: Worker, batch: Any) -> torch.Tensor:
    worker.backward(iter([batch]), 1, epoch=0)
    worker.finish(float(_IMAGES))
    model = worker.model  # type: ignore[attr-defined]
    return torch.cat([p.grad.detach().flatten().double() for p in model.parameters()])
