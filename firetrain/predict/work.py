"""Seconds in which a rank computes its slices of layers: as they were measured, or in proportion to their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Protocol

from firetrain.records.measured_slice import Ceilings
from firetrain.strategy.layer import Layer
from firetrain.strategy.pipeline import OPERATIONS_OF_A_GRADIENT
from firetrain.strategy.slice import Slice
from firetrain.strategy.traffic import FLOAT_BYTES

# of a backward pass, for each one of the forward pass: for the gradients of the weights and of the input
_BACKWARD_PRODUCTS = 2
# (forward pass, backward pass)
PassSeconds = tuple[float, float]


class Work(Protocol):
    """The computing time of slices. `is_of_slowest`: whether it is that of the slowest rank, not that of most."""

    @property
    def is_of_slowest(self) -> bool: ...

    def seconds(self, layer: Layer, share: Slice) -> PassSeconds:
        """Seconds of the forward and of the backward pass."""

    def slower(self, factor: float) -> Work:
        """The same work, which takes `factor` times as long."""


@dataclass(frozen=True)
class ProportionalWork:
    """Time in proportion to operations and parameters.

    - `operation_s`: seconds of a multiply-add, forward and backward together.
    - `parameter_s`: seconds for a parameter in each micro-batch, to read it and to add its gradient, for any number of images.
    - `backward_share`: the backward pass's share of this time.
    """

    operation_s: float
    parameter_s: float
    backward_share: float
    is_of_slowest = False

    @classmethod
    def of(
        cls, layers: Sequence[Layer], batch: int, image_s: float, fixed_s: float, backward_share: float
    ) -> ProportionalWork:
        """The work of a model whose step takes `image_s` for each image and `fixed_s` besides, measured with `batch` images.

        If `fixed_s` is 0, because only one batch was measured, parameters get the share that pipelines assume (see `balanced`).
        """
        operations, parameters = sum(layer.operations for layer in layers), sum(layer.parameters for layer in layers)
        if not fixed_s:
            of_parameters = OPERATIONS_OF_A_GRADIENT * parameters
            fixed_s = image_s * batch * of_parameters / (of_parameters + operations * batch)
            image_s -= fixed_s / batch
        return cls(image_s / max(1, operations), fixed_s / max(1, parameters), backward_share)

    def seconds(self, layer: Layer, share: Slice) -> PassSeconds:
        """Seconds of the forward and of the backward pass."""
        whole_s = share.operations(layer) * self.operation_s + share.parameters(layer) * self.parameter_s
        return whole_s * (1 - self.backward_share), whole_s * self.backward_share

    def slower(self, factor: float) -> ProportionalWork:
        """The same work, which takes `factor` times as long."""
        return replace(self, operation_s=self.operation_s * factor, parameter_s=self.parameter_s * factor)


@dataclass(frozen=True)
class MeasuredWork:
    """The measured time of slices; for others a lower bound from what the device can do at best (roofline).

    - `measured`: the seconds of each slice. `ceilings`: what the device can do at best.
    - `in_a_model`: the factor of measured times in a whole model, by number of images (see `whole_to_layers`); for other numbers
      the median. Lower bounds are multiplied by the least of them, if it is below 1. `pace`: all times are multiplied by it.
    """

    measured: Mapping[Slice, PassSeconds]
    ceilings: Ceilings
    in_a_model: Mapping[int, float] = field(default_factory=dict)
    pace: float = 1.0

    def seconds(self, layer: Layer, share: Slice) -> PassSeconds:
        """Seconds of the forward and of the backward pass."""
        found = self.measured.get(share)
        forward_s, backward_s = found or self._least(layer, share)
        # what is not measured may turn out to have any of the factors
        factor = self.in_a_model.get(share.images, self._usual_factor) if found else self._least_factor
        return self.pace * factor * forward_s, self.pace * factor * backward_s

    def slower(self, factor: float) -> MeasuredWork:
        """The same work, which takes `factor` times as long."""
        return replace(self, pace=self.pace * factor)

    @property
    def is_of_slowest(self) -> bool:
        """Slices are those of the slowest rank (see `bench slices`), unless a whole model's time has replaced theirs."""
        return not self.in_a_model

    @cached_property
    def _usual_factor(self) -> float:
        return median(self.in_a_model.values()) if self.in_a_model else 1.0

    @cached_property
    def _least_factor(self) -> float:
        return min([1.0, *self.in_a_model.values()])

    def _least(self, layer: Layer, share: Slice) -> PassSeconds:
        """The larger of the times for the multiply-adds and for reading the weights and writing their gradients."""
        computing_s = share.operations(layer) / self.ceilings.operations_per_s
        reading_s = share.parameters(layer) * FLOAT_BYTES / self.ceilings.bytes_per_s
        least_s = max(computing_s, reading_s)
        return least_s, least_s * (_BACKWARD_PRODUCTS if layer.sources else 1)  # images have no gradient


def whole_to_layers(
    measured: Mapping[Slice, PassSeconds], layers: Sequence[Layer], whole_s: Mapping[int, float]
) -> dict[int, float]:
    """A whole model's passes relative to the sum of its layers', by number of images, where all layers were measured.

    It is below 1 where a model finds activations in caches. Seconds that are not positive, as a line may have that was fitted to
    other numbers of images, are left out. `whole_s`: seconds of the forward and backward passes of a whole
    model on one rank, without what is done with gradients before and after them, by number of images.
    """
    working, found = [layer for layer in layers if not layer.is_loss], {}
    for images, seconds in whole_s.items():
        own = [measured.get(Slice(layer.name, images, layer.outputs, layer.inputs)) for layer in working]
        layers_s = sum(sum(one) for one in own if one)
        if all(own) and layers_s > 0 and seconds > 0:
            found[images] = seconds / layers_s
    return found
