"""The steps that a worker makes by itself, between two averages of the workers' weights."""

from __future__ import annotations

import torch
from torch import nn

from firetrain.optim.catalogue import set_rate


class LocalSteps:
    """Updates the model of a worker by its own gradients. Momentum is the worker's own, and is never averaged.

    - `step`: the number of steps that were made.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer, self.step = model, optimizer, 0

    def make(self, images: int, rate: float) -> None:
        """Make a step with gradients of the loss summed over `images` images."""
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / max(1, images))
        set_rate(self._optimizer, rate)
        self._optimizer.step()
        self.step += 1
