"""Divergence: if gradients are not finite, all ranks end the run together."""

from __future__ import annotations

import torch
from torch import Tensor

from firetrain.errors import FiretrainError
from firetrain.transport.device import is_gpu


class Diverged(FiretrainError):
    """Gradients are not finite. All ranks raise this error at the same step."""


class Divergence:
    """Keeps a flag on the device: whether all gradients so far have been finite.

    On a GPU the flag is read only at steps that are logged, checkpointed or evaluated, to avoid synchronisation. Divergence may
    then be detected some steps later.
    """

    def __init__(self, device: torch.device) -> None:
        self._finite = torch.tensor(True, device=device)

    def seen(self, finite: Tensor, *, look: bool) -> bool:
        """Update the flag by the gradients of a step; returns whether divergence is known. On a GPU it is only read if `look`."""
        self._finite = finite & self._finite
        if is_gpu(self._finite.device) and not look:
            return False
        return not self._finite.item()


def diverged(step: int, loss: float, rate: float) -> Diverged:
    """The error at `step` (from 1), with its loss, its learning rate and advice."""
    return Diverged(
        f"diverged at step {step}: the loss is {loss:.4g}, gradients are not finite (learning rate {rate:g}). Lower "
        "learning_rate.base or peak, set warmup_epochs, or, if the batch is large and the model has no batch norm, use "
        "optimizer.name lars; the newest checkpoint was saved before this step"
    )
