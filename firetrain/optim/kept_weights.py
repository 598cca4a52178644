"""Weights that stay zero, or go on sharing a value, whatever the optimiser does (Han, Mao and Dally 2016)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from firetrain.coding.tensor import is_weight

MOST_VALUES = 256  # a tensor with more distinct values is one that was not quantised


class Values(Protocol):
    """The values that weights share. A placement supplies a version for ranks that hold shards of tensors."""

    def distinct(self, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """The values of each parameter's whole tensor, sorted, or None if there are more than MOST_VALUES."""

    def total(self, parameters: Sequence[nn.Parameter], parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """For each parameter, what all shards of its tensor have together: float64, with an element for each value."""


class WholeValues:
    """The values of tensors that this rank holds whole."""

    def distinct(self, parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
        return [few_values(one) for one in parameters]

    def total(self, parameters: Sequence[nn.Parameter], parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return parts


def few_values(parameter: nn.Parameter) -> Tensor | None:
    """The values of a parameter, sorted, or None if there are more than MOST_VALUES."""
    values = parameter.detach().unique()
    return values if len(values) <= MOST_VALUES else None


def keep_weights(
    optimizer: torch.optim.Optimizer, keep: Literal["zeros", "values"], values: Values | None = None
) -> None:
    """Keep the zeros, or the shared values, that the matrices and filters of an optimiser have before its first step.

    Of a resumed run these are those of its checkpoint, whatever has become of the file that it began with.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"] if is_weight(one.dim())]
    values = values or WholeValues()
    pruned: list[_Pruned] = []
    shared: list[_Shared] = []
    has_begun = False

    @torch.no_grad()
    def before(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        nonlocal has_begun
        if not has_begun:
            found = values.distinct(parameters) if keep == "values" else [None] * len(parameters)
            for parameter, few in zip(parameters, found, strict=True):
                if few is not None:
                    shared.append(_Shared(parameter, few))
                elif bool((parameter == 0).any()):
                    pruned.append(_Pruned(parameter))
            together(_Shared.counts, _Shared.set_counts, shared)
            has_begun = True
        for one in pruned:
            one.before()
        together(_Shared.gradients, _Shared.set_gradients, updated())

    @torch.no_grad()
    def after(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        for one in pruned:
            one.after()
        together(_Shared.weights, _Shared.set_weights, updated())

    def updated() -> list[_Shared]:
        return [one for one in shared if one.parameter.grad is not None]

    def together(
        part: Callable[[_Shared], Tensor], set_total: Callable[[_Shared, Tensor], None], some: list[_Shared]
    ) -> None:
        if keep == "values":  # on all ranks, also on one that has no weights
            totals = values.total([one.parameter for one in some], [part(one) for one in some])
            for one, total in zip(some, totals, strict=True):
                set_total(one, total)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


class _Pruned:
    """Keeps pruned weights at zero, even under an optimiser that moves weights without gradients."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter, self._zeros = parameter, parameter.data == 0

    def before(self) -> None:
        if self._parameter.grad is not None:
            self._parameter.grad.masked_fill_(self._zeros, 0.0)

    def after(self) -> None:
        if self._parameter.grad is not None:
            self._parameter.data.masked_fill_(self._zeros, 0.0)


class _Shared:
    """Keeps weights equal that share a value: the gradient of a value is the sum over its weights (section 3.3). Zero stays zero.

    Each weight gets the gradient of its value, so that momentum and decay are those of the value. The weights of a value are
    then made equal again, because an optimiser's kernels may round them differently.

    - `values`: of the whole tensor, of which this parameter may be a shard.
    """

    def __init__(self, parameter: nn.Parameter, values: Tensor) -> None:
        self.parameter = parameter
        codes = torch.searchsorted(values, parameter.data.flatten())
        self._codes, self._zero = codes.clamp(max=len(values) - 1), values == 0  # nan comes after all values
        self._order, self._counts = self._codes.argsort(stable=True), self._codes.bincount(minlength=len(values))
        # a weight of each value; of a value that this shard does not have, any
        self._first = self._order[(self._counts.cumsum(0) - self._counts).clamp(max=len(self._order) - 1)]
        self._whole = self._counts

    def counts(self) -> Tensor:
        """The numbers of this shard's weights, by value."""
        return self._counts.double()

    def set_counts(self, total: Tensor) -> None:
        self._whole = total

    def gradients(self) -> Tensor:
        """The sums of the gradients of this shard's weights, by value."""
        gradient = self.parameter.grad
        assert gradient is not None
        return torch.segment_reduce(gradient.flatten()[self._order].double(), "sum", lengths=self._counts)

    def set_gradients(self, total: Tensor) -> None:
        gradient = self.parameter.grad
        assert gradient is not None
        gradient.copy_(self._by_weight(total).view_as(gradient))

    def weights(self) -> Tensor:
        """The sums of this shard's weights, by value. Those of a shard are equal, but for the optimiser's rounding."""
        return self.parameter.data.flatten()[self._first].double() * self._counts

    def set_weights(self, total: Tensor) -> None:
        weights = self.parameter.data
        weights.copy_(self._by_weight(total / self._whole).view_as(weights))

    def _by_weight(self, by_value: Tensor) -> Tensor:
        """For each weight what its value has, in the weights' type; 0 for zero."""
        return by_value.masked_fill(self._zero, 0.0).to(self.parameter.dtype)[self._codes]
