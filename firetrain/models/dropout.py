"""Dropout whose mask depends only on the image, so it is the same for any number of ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# modules of torch that draw from each rank's own generator, so that ranks would compute other losses than one process
RANDOM_MODULES = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d)
# int32 holds unsigned words; their order is that of the signed words with the first bit inverted
_FIRST_BIT = -(1 << 31)


class Dropout(nn.Module):
    """Zero each element with probability `p` and scale the rest by 1/(1-p) (Srivastava et al. 2014).

    The mask is a hash of (key of the image, number of the layer, position), and of how often the layer was called since
    `set_dropout_keys` has set the keys. Without keys, and if the first dimension of the input is not that of the images, the
    mask is drawn by torch in each call. If the input has only some channels of the layer, `first_channel` is the number of
    the first of them. `inplace`: change the input itself, as torch.nn.Dropout does.
    """

    def __init__(self, p: float, *, inplace: bool = False) -> None:
        super().__init__()
        self.p, self.inplace = p, inplace
        self.layer = self.first_channel = self.calls = 0
        self.keys: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Map [images, ...] to the same shape."""
        if not self.training or self.p == 0:
            return input
        if self.keys is None or len(self.keys) != len(input) or self.p == 1:
            return nn.functional.dropout(input, self.p, inplace=self.inplace)
        each, before = input.shape[1:].numel(), self.first_channel * input.shape[2:].numel()
        positions = torch.arange(before, before + each, dtype=torch.int32, device=input.device) + (self.layer << 24)
        positions = positions ^ _as_int32(self.calls * 0x9E3779B1)  # nothing at the first call
        self.calls += 1
        words = _mix(_mix(positions)[None, :] ^ self.keys[:, None])
        kept = (words ^ _FIRST_BIT) >= int(self.p * 2**32) + _FIRST_BIT
        kept = kept.view(input.shape)
        return input.mul_(kept).div_(1 - self.p) if self.inplace else input * kept / (1 - self.p)

    def extra_repr(self) -> str:
        """The text that torch prints for the layer, like that of torch.nn.Dropout."""
        return f"p={self.p}"


@dataclass(frozen=True)
class DropoutCall:
    """The call of a layer that is `number` in a pass, from 0; a model may call one layer several times."""

    layer: Dropout
    number: int

    def __call__(self, input: Tensor) -> Tensor:
        """Map [images, ...] to the same shape."""
        self.layer.calls = self.number
        output: Tensor = self.layer(input)
        return output


def set_dropout_keys(model: nn.Module, keys: Tensor) -> None:
    """Set the keys of all dropout layers: an integer per image of the next micro-batch, of which the low 32 bits are used."""
    for number, layer in enumerate(dropouts_of(model)):
        layer.layer, layer.keys, layer.calls = number, keys.to(torch.int32), 0


def dropouts_of(model: nn.Module) -> Iterable[Dropout]:
    """The dropout layers of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Dropout))


def _as_int32(word: int) -> int:
    """The low 32 bits, as a signed number."""
    return (word + (1 << 31)) % (1 << 32) - (1 << 31)


def _mix(words: Tensor) -> Tensor:
    """Mix 32-bit words by a bijection in which every input bit changes about half of the output bits.

    It is lowbias32 of C. Wellons's hash prospector; products of int32 keep the low 32 bits.
    """
    words = words ^ ((words >> 16) & 0xFFFF)
    words = words * 0x7FEB352D
    words = words ^ ((words >> 15) & 0x1FFFF)
    words = words * (0x846CA68B - (1 << 32))
    return words ^ ((words >> 16) & 0xFFFF)
