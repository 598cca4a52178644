"""How one layer is divided among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from firetrain.cluster.shares import share_bounds
from firetrain.strategy.layer import Layer
from firetrain.strategy.region import NOTHING, Region


class Block(NamedTuple):
    """The weights of a layer from inputs `first_input` to `end_input` - 1 to outputs `first_output` to `end_output` - 1."""

    first_output: int
    end_output: int
    first_input: int
    end_input: int

    @property
    def has_bias(self) -> bool:
        """Whether the biases of these outputs belong to the block: they are added once, with the first inputs."""
        return self.first_input == 0 < self.end_input


@dataclass(frozen=True)
class Split:
    """A layer on images x outputs x inputs ranks: the batch is cut into `images` shares, the layer's channels likewise.

    The ranks form a grid of images x outputs x inputs: `ranks[(i * outputs + o) * inputs + k]` has share i of the images, o of
    the output channels and k of the input channels. With `inputs` > 1 the ranks of one (i, o) make partial sums, which are
    then summed; each of them keeps the share k of their channels. ValueError if the number of ranks is not the product, or if
    one is listed twice.

    >>> layer = Layer("fc", "weights", ("conv",), inputs=6, outputs=4)
    >>> split = Split(ranks=(0, 1), outputs=2)
    >>> tuple(split.needs(layer, 1, images=3)), tuple(split.settles(layer, 1, images=3))
    ((0, 3, 0, 6), (0, 3, 2, 4))
    """

    ranks: tuple[int, ...]
    images: int = 1
    outputs: int = 1
    inputs: int = 1

    def __post_init__(self) -> None:
        if self.images * self.outputs * self.inputs != len(self.ranks) or len(set(self.ranks)) != len(self.ranks):
            raise ValueError(
                f"{self.images} x {self.outputs} x {self.inputs} shares (images, outputs, inputs) need as many different ranks "
                f"(ranks: {list(self.ranks)})"
            )

    def needs(self, layer: Layer, rank: int, images: int) -> Region:
        """The part of the layer's input that a rank needs of a batch of `images`."""
        if rank not in self.ranks:
            return NOTHING
        image, output, inner = self.coordinates(rank)
        if layer.kind == "channels":
            return Region(*share_bounds(images, image, self.images), *share_bounds(layer.inputs, output, self.outputs))
        return Region(*share_bounds(images, image, self.images), *share_bounds(layer.inputs, inner, self.inputs))

    def makes(self, layer: Layer, rank: int, images: int) -> Region:
        """The part of the layer's output that a rank computes, or computes a partial sum of."""
        if rank not in self.ranks:
            return NOTHING
        image, output, _ = self.coordinates(rank)
        return Region(*share_bounds(images, image, self.images), *share_bounds(layer.outputs, output, self.outputs))

    def settles(self, layer: Layer, rank: int, images: int) -> Region:
        """The part of the layer's output that a rank has after partial sums have been summed."""
        made = self.makes(layer, rank, images)
        if self.inputs == 1 or rank not in self.ranks:
            return made
        first, end = share_bounds(made.channels, self.coordinates(rank)[2], self.inputs)
        return made._replace(first_channel=made.first_channel + first, end_channel=made.first_channel + end)

    def block(self, layer: Layer, rank: int) -> Block | None:
        """The shard of the weights that a rank holds; None on other ranks."""
        if rank not in self.ranks:
            return None
        _, output, inner = self.coordinates(rank)
        return Block(
            *share_bounds(layer.outputs, output, self.outputs), *share_bounds(layer.inputs, inner, self.inputs)
        )

    def sharers(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the same shard of the weights as `rank`, ascending; their gradients are summed."""
        if rank not in self.ranks:
            return ()
        _, output, inner = self.coordinates(rank)
        return tuple(sorted(other for other in self.ranks if self.coordinates(other)[1:] == (output, inner)))

    def fault(self, layer: Layer) -> str:
        """Why this layer cannot be divided like this; empty if it can."""
        if layer.kind == "whole" and self.outputs * self.inputs > 1:
            return f"{layer.name} needs all channels of an image in one place: only its images can be divided"
        if layer.kind == "channels" and self.inputs > 1:
            return f"{layer.name} has no weights that could be divided by inputs"
        return ""

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """The shares of a rank, from 0: (of images, of outputs, of inputs)."""
        rest, inner = divmod(self.ranks.index(rank), self.inputs)
        return (*divmod(rest, self.outputs), inner)
