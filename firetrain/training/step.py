"""One optimizer step: the exact mean gradient of a global batch, however it is spread over ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.data.draws import words
from firetrain.data.loader import Batch
from firetrain.models.dropout import set_dropout_keys
from firetrain.reduction.gradients import Gradients
from firetrain.reduction.transport import Transport

_DROPOUT = 30


def accumulate(
    model: nn.Module, batches: Iterable[Batch], pieces: int, gradients: Gradients, transport: Transport,
    *, precision: str, auxiliary_weight: float, seed: int, epoch: int, watch: Any = None,
) -> Tensor:  # fmt: skip
    """Forward and backward over a rank's `pieces` micro-batches; their gradients stand summed in `gradients`.

    The reduction starts during the last backward. Returns [sum of losses, images] of this rank, float64. What is summed
    is per image; who calls divides by the images of all ranks, so a rank's weight is its share |B_i| / n.
    """
    gradients.zero()
    totals = torch.zeros(2, dtype=torch.float64, device=transport.device)
    for number, batch in enumerate(batches):
        if watch is not None:
            watch.mark("data")
        gradients.armed = number == pieces - 1
        if len(batch):
            images, labels = batch.on_device(transport.device)
            keys = words(seed, epoch, batch.samples, _DROPOUT).astype("int64")
            set_dropout_keys(model, torch.from_numpy(keys).to(transport.device))
            with autocast(transport.device, precision):
                loss, main = losses(model(images), labels, auxiliary_weight)
            loss.backward()  # type: ignore[no-untyped-call]
            totals += torch.stack([main.detach().double(), torch.tensor(float(len(batch)), device=main.device).double()])
        if watch is not None:
            watch.mark("compute")
        if number == pieces - 1:
            break
    return totals


def losses(outputs: Tensor | tuple[Tensor, ...], labels: Tensor, auxiliary_weight: float) -> tuple[Tensor, Tensor]:
    """(what is differentiated, the main classifier's part of it), both sums over the images, in float32."""
    main, *extra = outputs if isinstance(outputs, tuple) else (outputs,)
    main_loss = _cross_entropy(main, labels)
    return main_loss + auxiliary_weight * sum(_cross_entropy(head, labels) for head in extra), main_loss


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """bfloat16 where torch holds it to be safe; parameters, gradients and their sums stay float32."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
