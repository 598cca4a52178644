"""The numbers that determine how long a rank computes its share of a layer."""

from __future__ import annotations

from typing import NamedTuple

from firetrain.cluster.shares import share_bounds
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.split import Split


class Slice(NamedTuple):
    """A layer's work on so many images, with so many of its output and of its input channels.

    >>> layer = Layer("fc", "weights", ("conv",), inputs=6, outputs=4, weights=1, operations=24)
    >>> share = slice_of(layer, Split((0, 1), outputs=2), 0, images=3)
    >>> share, share.operations(layer)
    (Slice(layer='fc', images=3, outputs=2, inputs=6), 36.0)
    """

    layer: str
    images: int
    outputs: int
    inputs: int

    def operations(self, layer: Layer) -> float:
        """Multiply-adds of the forward pass."""
        of_inputs = self.inputs / layer.inputs if layer.kind == "weights" else 1.0
        return layer.operations * self.images * self.outputs / layer.outputs * of_inputs

    def parameters(self, layer: Layer) -> int:
        """Number of parameters."""
        if layer.kind == "whole":
            return layer.parameters
        pairs = self.outputs * self.inputs if layer.kind == "weights" else 1
        return layer.weights * pairs + layer.biases * self.outputs


def slice_of(layer: Layer, split: Split, rank: int, images: int) -> Slice | None:
    """What a rank computes of a layer for a batch of `images`; None if it computes nothing."""
    needed, made = split.needs(layer, rank, images), split.makes(layer, rank, images)
    if not made.size or not needed.size:
        return None
    return Slice(layer.name, made.images, made.channels, needed.channels)


def slices_of(placement: Placement, images: int) -> set[Slice]:
    """All slices that ranks compute of a batch of `images`, in micro-batches."""
    bounds = (share_bounds(images, number, placement.micro_batches) for number in range(placement.micro_batches))
    found = (
        slice_of(layer, placement.splits[layer.name], rank, size)
        for size in {end - first for first, end in bounds}
        for layer in placement.layers
        for rank in placement.splits[layer.name].ranks
    )
    return {one for one in found if one is not None}


def working_slices(placement: Placement, images: int) -> set[Slice]:
    """As `slices_of`, without those of losses, whose time does not count."""
    return {one for one in slices_of(placement, images) if not placement.by_name[one.layer].is_loss}
