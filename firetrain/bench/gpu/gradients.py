"""Compares the gradients of three models on several ranks with those of one rank that has the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from firetrain.bench.gpu.one_rank import gradient_of, models, one_rank, paper_model
from firetrain.bench.gpu.ranks import on_ranks_sharing, raise_errors
from firetrain.bench.gpu.staged import make_reduction
from firetrain.bench.step import make_batch
from firetrain.config import load_config
from firetrain.data.order import share
from firetrain.errors import FiretrainError
from firetrain.parallel.catalogue import replicate
from firetrain.parallel.data_parallel import DataParallel
from firetrain.transport.transport import Transport

_RANKS, _IMAGES, _SIZE = 2, 8, 28
_REDUCTIONS = ("native", "ring", "tree")
# Another batch may have another kernel, whose rounding can turn a ReLU or move a maximum: noise of 1e-6 in each layer moved
# gradients by up to 9e-3, except those of LeNet (3e-6). A share that is missing moves them by 0.5.
_MOST = {"lenet": 1e-4}
_MOST_OF_OTHERS = 3e-2


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model and reduction: the norm of the difference to one rank's gradient, relative to the norm of that gradient.

    If NCCL refuses ranks that share a GPU, their buckets are reduced on the host.
    """
    library, found = on_ranks_sharing(_cases, device, _RANKS)
    yield "transport", library
    differences = {name: max(one.get(name, float("inf")) for one in found) for name in found[0] if name != "error"}
    yield from differences.items()
    raise_errors(found)
    if wrong := too_far(differences):
        raise FiretrainError(f"gradients differ by too much of their norm: {', '.join(wrong)}")


def too_far(differences: Mapping[str, float], most_of_others: float = _MOST_OF_OTHERS) -> list[str]:
    """The cases, named MODEL ..., whose difference is larger than rounding can make it, with their differences."""
    return [
        f"{name} ({difference:.1e})"
        for name, difference in differences.items()
        if not difference < _MOST.get(name.partition(" ")[0], most_of_others)
    ]


def _cases(transport: Transport) -> Iterator[tuple[str, float]]:
    # batch norm would differ by rank; these models have none
    device = transport.device
    for model in (name.replace("googlenet", paper_model(device)) for name in models(device)):
        options = [
            f"model.name={model}", "model.stem=small", f"data.image_size={_SIZE}", f"batch.global_size={_IMAGES}",
            "deterministic=true",
        ]  # fmt: skip
        alone = one_rank(device, *options)
        whole = gradient_of(alone, make_batch(np.arange(_IMAGES), _SIZE, 10), _IMAGES)
        for name in _REDUCTIONS:
            config = load_config("squeezenet-digits", [*options, f"reduction.name={name}"]).config
            net = replicate(config, 10, transport)
            worker = DataParallel(config, net, transport, make_reduction=make_reduction)
            mine = make_batch(share(np.arange(_IMAGES), transport.rank, transport.size), _SIZE, 10)
            summed = gradient_of(worker, mine, _IMAGES)
            worker.close()
            yield f"{model} {name}", float((summed - whole).norm() / whole.norm())
