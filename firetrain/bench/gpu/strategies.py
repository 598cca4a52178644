"""Compares a training step under several strategies on four ranks with the same step of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firetrain.bench.gpu.gradients import too_far
from firetrain.bench.gpu.one_rank import RATE, one_rank
from firetrain.bench.gpu.ranks import on_ranks_sharing, raise_errors
from firetrain.bench.step import make_batch, one_step
from firetrain.bench.strategies import weights_of
from firetrain.config import load_config
from firetrain.errors import FiretrainError
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.worker import Worker
from firetrain.transport.device import is_gpu
from firetrain.transport.transport import Transport

_RANKS, _IMAGES, _SIZE, _CLASSES = 4, 7, 28, 10
# each with an optimiser besides SGD, whose norms of layers are sums over the ranks that hold their shards
_MODELS = {"lenet": "lars", "googlenet_mini": "lamb"}
_STRATEGIES = (
    "one-weird-trick",
    "tensor-parallel:split=alternate",
    "grid:images=2,outputs=2",
    "pipeline:stages=2,micro_batches=3,schedule=1f1b,replicas=2",
)

# noise of 1e-6 in each layer moved a step of LAMB, which divides by the root of the squared gradient, by 2e-2
_MOST, _MOST_OF_LAMB = 1e-2, 1e-1


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model and strategy: the norm of the difference of the weights' changes, relative to the change on one rank."""
    library, found = on_ranks_sharing(_cases, device, _RANKS)
    yield "transport", library
    yield from found[0].items()
    raise_errors(found)
    differences = {name: value for name, value in found[0].items() if not isinstance(value, str)}
    if wrong := [
        told
        for name, value in differences.items()
        for told in too_far({name: value}, _MOST_OF_LAMB if " lamb " in name else _MOST)
    ]:
        raise FiretrainError(f"a step changes weights differently than one rank's step: {', '.join(wrong)}")


def _cases(transport: Transport) -> Iterator[tuple[str, float | str]]:
    if is_gpu(transport.device) and not transport.on_nccl:
        yield "skipped", "Gloo does not exchange activations that are on a GPU"
        return
    for model, optimizer in _MODELS.items():
        options = [
            f"model.name={model}", "model.stem=small", f"data.image_size={_SIZE}", f"batch.global_size={_IMAGES}",
            "deterministic=true",
        ]  # fmt: skip
        yield from _differences(transport, model, _STRATEGIES, options)
        options.append(f"optimizer.name={optimizer}")
        yield from _differences(transport, f"{model} {optimizer}", _STRATEGIES[:1], options)


def _differences(
    transport: Transport, name: str, strategies: Sequence[str], options: Sequence[str]
) -> Iterator[tuple[str, float]]:
    """The difference to one rank's change of the weights for each strategy; only on rank 0, which has the whole state."""
    expected = _change(one_rank(transport.device, *options, classes=_CLASSES))
    for strategy in strategies:
        config = load_config("squeezenet-digits", [*options, f"strategy.name={strategy}"]).config
        change = _change(make_worker(config, _CLASSES, transport, {}))
        if transport.rank == 0:
            yield f"{name} {strategy}", float((change - expected).norm() / expected.norm())


def _change(worker: Worker) -> Tensor:
    """The change of all weights in a step, float64 [parameters]; the worker is closed."""
    before = weights_of(worker).double()
    pieces = worker.micro_batches(np.arange(_IMAGES))
    one_step(worker, [make_batch(worker.reads(piece), _SIZE, _CLASSES) for piece in pieces], pieces, _IMAGES, RATE)
    change = weights_of(worker).double() - before
    worker.close()
    return change
