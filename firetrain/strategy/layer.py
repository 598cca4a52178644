"""What a placement has to know of a model: its layers, without weights and without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# how the output channels of a layer depend on its input channels
Kind = Literal["weights", "channels", "whole"]


@dataclass(frozen=True)
class Layer:
    """A layer, with the operations that follow it up to the next layers.

    - `name`: name of its module, or of its first operation.
    - `kind`: `weights`: every output needs all inputs, and each pair has weights of its own (convolution, fully connected);
      `channels`: an output channel needs the input channel of the same number only (ReLU, pooling);
      `whole`: anything else, which needs all channels of an image in one place (local response normalisation, the loss).
    - `sources`: names of the layers whose outputs, one after another along the channels, are the input; empty: the images.
    - `inputs`, `outputs`: numbers of channels.
    - `spread`: channels into which the operations that follow divide each output: the positions of an image if they flatten it.
    - `made_elements`, `output_elements`: numbers per image in each output, and in each channel when all operations are done.
    - `weights`: weights of each pair of an input and an output; of kind `whole`: all its parameters.
    - `biases`: parameters of each output besides.
    - `operations`: multiply-adds per image.
    - `is_loss`: whether this is a loss, which needs labels.
    - `is_linear`: whether it is fully connected.

    >>> layer = Layer("classifier.6", "weights", ("classifier.4",), inputs=4096, outputs=1000, weights=1, biases=1)
    >>> layer.parameters
    4097000
    """

    name: str
    kind: Kind
    sources: tuple[str, ...]
    inputs: int
    outputs: int
    spread: int = 1
    made_elements: int = 1
    output_elements: int = 1
    weights: int = 0
    biases: int = 0
    operations: int = 0
    is_loss: bool = False
    is_linear: bool = False

    @property
    def channels(self) -> int:
        """The number of channels that the next layers see."""
        return self.outputs * self.spread

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        pairs = self.inputs * self.outputs if self.kind == "weights" else 1
        return self.weights * pairs + self.biases * self.outputs
