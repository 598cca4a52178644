"""Dropout whose mask belongs to the image, not to the process: the same for any number of ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

_LOW_32 = 0xFFFFFFFF


class Dropout(nn.Module):
    """Zero each element with probability `p` and scale the rest by 1/(1-p) (Srivastava et al. 2014).

    The mask is a hash of (key of the image, number of the layer, position), with keys from `set_dropout_keys`; without keys
    it is torch's own, drawn anew at each call.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.layer = 0
        self.keys: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[images, ...] to the same shape."""
        if not self.training or self.p == 0:
            return input
        if self.keys is None:
            return nn.functional.dropout(input, self.p)
        positions = torch.arange(input[0].numel(), device=input.device) + (self.layer << 24)
        words = _mix(_mix(positions)[None, :] ^ self.keys[:, None])
        kept = words >= int(self.p * 2**32)
        return input * kept.view(input.shape) / (1 - self.p)

    def extra_repr(self) -> str:
        """As torch.nn.Dropout shows itself."""
        return f"p={self.p}"


def set_dropout_keys(model: nn.Module, keys: Tensor) -> None:
    """Give all dropout layers one int64 key per image of the coming micro-batch; only the low 32 bits are used."""
    for number, layer in enumerate(layers_of(model)):
        layer.layer, layer.keys = number, keys & _LOW_32


def layers_of(model: nn.Module) -> Iterable[Dropout]:
    """The dropout layers of a model, in order."""
    return (module for module in model.modules() if isinstance(module, Dropout))


def _mix(words: Tensor) -> Tensor:
    """A bijection of 32-bit words that changes about half of the bits for each bit of the input.

    Multiply and shift with the constants of C. Wellons's hash prospector (lowbias32); int64 holds unsigned 32-bit words.
    """
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & _LOW_32
    words = words ^ (words >> 15)
    words = (words * 0x846CA68B) & _LOW_32
    return words ^ (words >> 16)
