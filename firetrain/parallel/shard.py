"""The part of a model that a parameter server owns: what is done with the values that workers push."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from firetrain.optim.catalogue import set_rate
from firetrain.parallel.flat import flat, joined, parts


class Update(NamedTuple):
    """An update of the weights: the images of all values that were kept since the last one, and the learning rate."""

    images: float
    rate: float


class Order(NamedTuple):
    """What becomes of a push: the same for all shards of the weights.

    - `factor`: by which the pushed values are multiplied before they are added; 0 if they are dropped.
    - `update`: the update that follows, if there is one. `released`: the workers that pull the weights then.
    """

    factor: float
    update: Update | None
    released: tuple[int, ...]


class UpdatedShard:
    """Whole parameters of a model, updated by an optimiser with the mean over the images of the gradients that were kept.

    - `number`, `count`: which of how many shards this is.
    - `whole`: all parameters of the model in one vector, float32; they are views of it. `weights`: those of this shard.
    - `bounds`: the first and the end of them in `whole`.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, number: int = 0, count: int = 1) -> None:
        self.whole = flat(model)
        self._parameters, self._optimizer = list(model.parameters()), optimizer
        self.bounds = shard_bounds([one.numel() for one in self._parameters], count)[number]
        first, end = self.bounds
        self.weights = self.whole[first:end]
        self._gradient, self._is_empty = torch.zeros_like(self.weights), True
        # the optimiser updates only parameters that have a gradient
        self._own = _overlapping(self._parameters, first, end)
        for parameter, part in parts(self._own, self._gradient):
            parameter.grad = part if parameter.requires_grad else None

    def take(self, order: Order, values: Tensor) -> None:
        """Do what is ordered with a worker's gradient for these weights."""
        if order.factor and self._is_empty:
            torch.mul(values, order.factor, out=self._gradient)
            self._is_empty = False
        elif order.factor:
            self._gradient.add_(values, alpha=order.factor)
        if order.update is None or not order.update.images:  # of the last batch of an epoch, a share may be empty
            return
        self._gradient.mul_(1.0 / order.update.images)  # as data-parallel training divides its sums
        set_rate(self._optimizer, order.update.rate)
        self._optimizer.step()
        self._is_empty = True

    @property
    def steps(self) -> int:
        """The steps that the optimiser has counted; 0 if it counts none."""
        return max((group.get("step", 0) for group in self._optimizer.param_groups), default=0)

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimiser's values for these weights, by name, each in the order of the weights."""
        state = self._optimizer.state
        keys = sorted({key for one in self._own for key in state.get(one, {})})
        own = [state.get(one, {}) for one in self._own]
        return {
            key: joined(
                [found.get(key, torch.zeros_like(one)) for found, one in zip(own, self._own, strict=True)], self._own
            )
            for key in keys
        }

    def keep_optimizer_state(self, key: str, bounds: tuple[int, int], values: Tensor) -> None:
        """Keep the optimiser's values for the weights of another shard, for a checkpoint."""
        for parameter, part in parts(_overlapping(self._parameters, *bounds), values):
            if parameter.requires_grad:
                self._optimizer.state[parameter][key] = part.clone()


class AveragedShard:
    """Whole parameters of a model, replaced by the mean of the weights that workers push, weighted by their images.

    The attributes are those of `UpdatedShard`.
    """

    steps = 0

    def __init__(self, model: nn.Module, number: int = 0, count: int = 1) -> None:
        self.whole = flat(model)
        self.bounds = shard_bounds([one.numel() for one in model.parameters()], count)[number]
        self.weights = self.whole[self.bounds[0] : self.bounds[1]]
        # in float64 the mean of a single worker has the bits of its weights
        self._sum = torch.zeros_like(self.weights, dtype=torch.float64)

    def take(self, order: Order, values: Tensor) -> None:
        """Do what is ordered with a worker's values of these weights."""
        if order.factor:
            self._sum.add_(values, alpha=order.factor)
        if order.update is None:
            return
        if order.update.images:
            self.weights.copy_(self._sum.div_(order.update.images))
        self._sum.zero_()


Shard = UpdatedShard | AveragedShard


def shard_bounds(sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """The (first, end) of each of `count` shards of parameters with these sizes: whole parameters, about equally many numbers.

    >>> shard_bounds([5, 1, 1, 5], count=2)
    [(0, 6), (6, 12)]
    """
    ends, total = [0], sum(sizes)
    for size in sizes:
        ends.append(ends[-1] + size)
    cuts = [min(ends, key=lambda end: abs(end - total * number / count)) for number in range(count + 1)]
    return list(zip(cuts, cuts[1:], strict=False))


def _overlapping(parameters: Sequence[nn.Parameter], first: int, end: int) -> list[nn.Parameter]:
    """The parameters whose numbers are from `first` to `end` of the model's vector."""
    found, offset = [], 0
    for parameter in parameters:
        if first <= offset < end:
            found.append(parameter)
        offset += parameter.numel()
    return found
