"""Weights that stay zero, or go on sharing a value, whatever the optimiser does (Han, Mao and Dally 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from firetrain.coding.tensor import is_weight

# a tensor with more distinct values is one that was not quantised
_MOST_VALUES = 256


class _Keeper(Protocol):
    """Keeps zeros or shared values of a parameter: `before` an update it changes the gradient, `after` it the parameter."""

    def before(self, gradient: Tensor) -> None: ...

    def after(self) -> None: ...


def keep_weights(optimizer: torch.optim.Optimizer, keep: Literal["zeros", "values"]) -> None:
    """Keep the zeros, or the shared values, that the matrices and filters of an optimiser have before its first step.

    Of a resumed run these are those of its checkpoint, whatever has become of the file that it began with.
    """
    keepers: dict[nn.Parameter, _Keeper] = {}
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    has_begun = False

    @torch.no_grad()
    def before(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        nonlocal has_begun
        if not has_begun:
            keepers.update(_keepers(parameters, keep))
            has_begun = True
        for parameter, one in keepers.items():
            if parameter.grad is not None:
                one.before(parameter.grad)

    @torch.no_grad()
    def after(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        for parameter, one in keepers.items():
            if parameter.grad is not None:
                one.after()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _keepers(
    parameters: list[nn.Parameter], keep: Literal["zeros", "values"]
) -> Iterator[tuple[nn.Parameter, _Keeper]]:
    for parameter in parameters:
        if not is_weight(parameter.dim()):
            continue
        if keep == "values" and len(parameter.detach().unique()) <= _MOST_VALUES:
            yield parameter, _KeepValues(parameter)
        elif bool((parameter == 0).any()):
            yield parameter, _KeepZeros(parameter)


class _KeepZeros:
    """Keeps pruned weights at zero, even under an optimiser that moves weights without gradients."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter, self._pruned = parameter, parameter.data == 0

    def before(self, gradient: Tensor) -> None:
        gradient.masked_fill_(self._pruned, 0.0)

    def after(self) -> None:
        self._parameter.data.masked_fill_(self._pruned, 0.0)


class _KeepValues:
    """Keeps weights equal that share a value: the gradient of a value is the sum over its weights (section 3.3). Zero stays zero.

    Each weight gets the gradient of its value, so that momentum and decay are those of the value. The weights of a value are
    then made equal again, because an optimiser's kernels may round them differently.
    """

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter
        values, codes = parameter.data.flatten().unique(return_inverse=True)
        self._codes, self._zero = codes, values == 0
        self._order, self._counts = codes.argsort(stable=True), codes.bincount(minlength=len(values))
        self._first = self._order[self._counts.cumsum(0) - self._counts]

    def before(self, gradient: Tensor) -> None:
        sums = torch.segment_reduce(gradient.flatten()[self._order], "sum", lengths=self._counts)
        gradient.copy_(sums.masked_fill(self._zero, 0.0)[self._codes].view_as(gradient))

    def after(self) -> None:
        weights = self._parameter.data
        values = weights.flatten()[self._first].masked_fill(self._zero, 0.0)
        weights.copy_(values[self._codes].view_as(weights))
