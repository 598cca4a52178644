"""One optimizer step: the exact mean gradient of a global batch, however it is spread over ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.config import Config
from firetrain.data.draws import words
from firetrain.data.loader import Batch
from firetrain.models.catalogue import auxiliary_weight
from firetrain.models.dropout import set_dropout_keys
from firetrain.reduction.gradients import Gradients

_DROPOUT = 30


class ForwardBackward:
    """One micro-batch through a model and back, in the precision of a config; gradients are added to what is there."""

    def __init__(self, model: nn.Module, config: Config, device: torch.device) -> None:
        self._model, self._config, self._device = model, config, device
        self._auxiliary_weight = auxiliary_weight(config.model)

    def __call__(self, batch: Batch, epoch: int) -> Tensor:
        """[sum of losses, images], float64. What is differentiated is the sum over the images, not their mean."""
        images, labels = batch.on_device(self._device)
        keys = words(self._config.seed, epoch, batch.samples, _DROPOUT).astype("int64")
        set_dropout_keys(self._model, torch.from_numpy(keys).to(self._device))
        with autocast(self._device, self._config.precision):
            total, main = losses(self._model(images), labels, self._auxiliary_weight, self._config.label_smoothing)
        total.backward()
        count = torch.tensor(len(batch), dtype=torch.float64, device=self._device)
        return torch.stack([main.detach().double(), count])


def accumulate(
    forward_backward: ForwardBackward,
    batches: Iterator[Batch],
    pieces: int,
    gradients: Gradients,
    epoch: int,
    mark: Callable[[str], None] = lambda part: None,
) -> Tensor:
    """A rank's next `pieces` micro-batches, one after another; the reduction starts during the last backward
    and is wholly under way on return, so that whatever is exchanged next comes in the same order on all ranks.

    `mark` is told when data has come and when it has been computed with. Returns this rank's [sum of losses, images],
    float64. Gradients are sums over images: who calls divides them by the images of all ranks, so that a rank weighs
    |B_i| / n.
    """
    gradients.zero()
    totals = torch.zeros(2, dtype=torch.float64, device=gradients.buckets[0].buffer.device)
    for number in range(pieces):
        batch = next(batches)
        mark("data")
        gradients.armed = number == pieces - 1
        if len(batch):
            totals += forward_backward(batch, epoch)
        mark("compute")
    gradients.flush()
    return totals


def losses(
    outputs: Tensor | tuple[Tensor, ...], labels: Tensor, auxiliary_weight: float, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(what is differentiated, the main classifier's part of it), both sums over the images, in float32."""
    main, *extra = outputs if isinstance(outputs, tuple) else (outputs,)
    main_loss = _cross_entropy(main, labels, label_smoothing)
    return main_loss + auxiliary_weight * sum(
        _cross_entropy(head, labels, label_smoothing) for head in extra
    ), main_loss


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 where torch holds it to be safe; parameters, gradients and their sums stay float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=smoothing)
