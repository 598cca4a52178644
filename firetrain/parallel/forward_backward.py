"""Forward and backward passes: the exact gradient of a global batch for any number of ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.config import Config
from firetrain.data.batch import Batch
from firetrain.data.draws import words
from firetrain.generators import seed_generators
from firetrain.models.catalogue import auxiliary_weight
from firetrain.models.dropout import dropouts_of, set_dropout_keys
from firetrain.parallel.compiled import nothing_recompiled
from firetrain.records.parts import COMPUTE, DATA, Part
from firetrain.reduction.gradients import Gradients
from firetrain.transport.device import copy_to_device

# streams of random numbers: for dropout, and for whatever a model of the user's own draws
DROPOUT, OWN = 30, 31


class ForwardBackward:
    """Forward and backward pass of one micro-batch in the config's precision; gradients are accumulated.

    `model`: maps uint8 images to logits (`Normalised`).
    """

    def __init__(self, model: nn.Module, config: Config, device: torch.device) -> None:
        self._model, self._config, self._device = model, config, device
        self._auxiliary_weight = auxiliary_weight(config.model)
        self._has_dropout = any(dropouts_of(model))

    def __call__(self, batch: Batch, epoch: int) -> Tensor:
        """Return [sum of losses, images], float64, on the device. The differentiated loss is the sum over the images."""
        images, labels = batch.on_device(self._device)
        if self._has_dropout:
            keys = words(self._config.seed, epoch, batch.samples, DROPOUT).astype("uint32").view("int32")
            set_dropout_keys(self._model, copy_to_device(torch.from_numpy(keys), self._device))
        if self._config.model.own:  # the same after a restart, but not on another number of ranks
            seed_generators(int(words(self._config.seed, epoch, batch.samples[:1], OWN)[0] >> 1))
        with nothing_recompiled(), autocast(self._device, self._config.precision):
            total, main = losses(self._model(images), labels, self._auxiliary_weight, self._config.label_smoothing)
        total.backward()
        count = torch.full((), len(batch), dtype=torch.float64, device=self._device)  # without waiting for the device
        return torch.stack([main.detach().double(), count])


def accumulate(
    forward_backward: ForwardBackward,
    batches: Iterator[Batch],
    count: int,
    gradients: Gradients,
    epoch: int,
    lap: Callable[[Part], None] = lambda part: None,
) -> Tensor:
    """Forward and backward passes of a rank's next `count` micro-batches; returns its [sum of losses, images], float64.

    The reduction of the first buckets starts during the last backward pass. All buckets are started on return, so that the
    next collective is in the same order on all ranks. `lap(DATA)` is called when a micro-batch has been loaded, and
    `lap(COMPUTE)` after its backward pass. Gradients are sums over images; the caller divides them by the number of images
    on all ranks.
    """
    gradients.zero()
    totals = torch.zeros(2, dtype=torch.float64, device=gradients.buckets[0].buffer.device)
    for number in range(count):
        batch = next(batches)
        lap(DATA)
        gradients.last_pass = number == count - 1
        if len(batch):
            totals += forward_backward(batch, epoch)
        lap(COMPUTE)
    gradients.flush()
    return totals


def losses(
    outputs: Tensor | tuple[Tensor, ...], labels: Tensor, auxiliary_weight: float, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """(the loss to differentiate, the main classifier's part of it), both summed over the images, in float32."""
    main, *extra = outputs if isinstance(outputs, tuple) else (outputs,)
    main_loss = _cross_entropy(main, labels, label_smoothing)
    return main_loss + auxiliary_weight * sum(
        _cross_entropy(head, labels, label_smoothing) for head in extra
    ), main_loss


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Context manager: compute in bfloat16, if that is the precision, where torch considers it safe.

    Parameters, gradients and their sums stay float32.
    """
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=smoothing)
