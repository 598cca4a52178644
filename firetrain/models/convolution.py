"""Work and depth of a convolution by four algorithms.

Ben-Nun and Hoefler (2019, Demystifying parallel and distributed deep learning, table 6) list them. Their Winograd has tiles of
m - r + 1 inputs, but tiles of m outputs need m + r - 1 (Lavin and Gray 2016, section 4), and each element of a tile needs one
product for each pair of an input and an output channel; and their depth adds the transforms of kernels to those of inputs,
which do not need them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from firetrain.errors import UserError

# outputs of a Winograd tile along each side; larger tiles lose accuracy in float32
_TILES = (2, 4)


@dataclass(frozen=True)
class Convolution:
    """The shape of a convolution on a batch.

    - `images`: images of the batch. `inputs`, `outputs`: channels; with groups, those of one group.
    - `groups`: number of groups.
    - `height`, `width`: size of the input, with its padding. `stride`: (down, across).
    - `rows`, `columns`: size of the kernel.
    """

    name: str
    images: int
    inputs: int
    outputs: int
    groups: int
    height: int
    width: int
    rows: int
    columns: int
    stride: tuple[int, int] = (1, 1)

    @property
    def output_size(self) -> tuple[int, int]:
        """(height, width) of the output."""
        down, across = self.stride
        return (self.height - self.rows) // down + 1, (self.width - self.columns) // across + 1


class Cost(NamedTuple):
    """The cost of an algorithm.

    - `work`: multiply-adds of real numbers; torch counts each as two operations.
    - `depth`: the longest chain of operations that depend on one another, with unlimited processors.
    """

    work: int
    depth: int


def costs(one: Convolution) -> dict[str, Cost]:
    """The cost by each algorithm that computes this convolution; Winograd needs square kernels, and stride 1.

    >>> costs(Convolution("a", images=1, inputs=1, outputs=1, groups=1, height=4, width=4, rows=3, columns=3))["direct"]
    Cost(work=36, depth=4)
    """
    found = {"direct": _direct(one), "im2col": _direct(one), "FFT": _fft(one)}
    if one.rows == one.columns > 1 and one.stride == (1, 1):
        found |= {f"Winograd F({tile}, {one.rows})": winograd(one, tile) for tile in _TILES}
    return found


def winograd(one: Convolution, tile: int) -> Cost:
    """The cost of F(m x m, r x r) with m = `tile`: transforms of inputs, kernels and outputs, and the products of elements."""
    r, alpha = one.rows, tile + one.rows - 1
    height, width = one.output_size
    tiles = one.images * -(-height // tile) * -(-width // tile)
    kernels = one.inputs * one.outputs * alpha * r * (r + alpha)
    inputs = one.inputs * tiles * 2 * alpha**3
    outputs = one.outputs * tiles * tile * alpha * (alpha + tile)
    products = winograd_products(one, tile)
    # kernels are transformed while inputs are, in fewer steps
    depth = 4 * _log2(alpha) + _log2(one.inputs)
    return Cost(one.groups * (kernels + inputs + outputs) + products, depth)


def winograd_products(one: Convolution, tile: int) -> int:
    """The multiplications of transformed inputs by transformed kernels: alpha^2 for each pair of channels and tile."""
    height, width = one.output_size
    tiles = one.images * -(-height // tile) * -(-width // tile)
    return one.groups * one.inputs * one.outputs * tiles * (tile + one.rows - 1) ** 2


def _direct(one: Convolution) -> Cost:
    """Each output is a sum over input channels and kernel; im2col does the same additions as a matrix product."""
    height, width = one.output_size
    pairs = one.groups * one.inputs * one.outputs
    depth = _log2(one.inputs) + _log2(one.rows) + _log2(one.columns)
    return Cost(one.images * pairs * height * width * one.rows * one.columns, depth)


def _fft(one: Convolution) -> Cost:
    """Transforms of images, kernels and outputs by radix 2, and products of spectra; real input halves both (symmetry).

    A complex multiplication is four of real numbers. All outputs are computed, also those that a stride leaves out.
    """
    height, width = 2 ** _log2(one.height), 2 ** _log2(one.width)
    size, pairs = height * width, one.groups * one.inputs * one.outputs
    transforms = pairs + one.groups * one.images * (one.inputs + one.outputs)
    work = transforms * size * _log2(size) + one.images * pairs * 2 * size
    return Cost(work, 2 * _log2(size) + _log2(one.inputs))


def convolutions(model: nn.Module, image_size: int, images: int = 1) -> list[Convolution]:
    """The convolutions of a model in the order in which they run on a batch of `images`; nothing is computed."""
    model, found = model.to("meta").eval(), list[Convolution]()

    def note(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.append(_shape(name, cast(nn.Conv2d, module), inputs[0], images))

        return hook

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    handles = [module.register_forward_pre_hook(note(name)) for name, module in layers]
    with torch.no_grad():
        model(torch.empty(1, 3, image_size, image_size, device="meta"))
    for handle in handles:
        handle.remove()
    return found


def _shape(name: str, module: nn.Conv2d, x: Tensor, images: int) -> Convolution:
    if set(module.dilation) != {1}:
        raise UserError(f"{name} is dilated: the counts of algorithms are of convolutions without dilation")
    rows, columns = module.kernel_size
    # [left, right, top, bottom]; of padding="same" too
    left, right, top, bottom = module._reversed_padding_repeated_twice
    return Convolution(
        name, images, module.in_channels // module.groups, module.out_channels // module.groups, module.groups,
        x.shape[2] + top + bottom, x.shape[3] + left + right, rows, columns, (module.stride[0], module.stride[1]),
    )  # fmt: skip


def _log2(number: int) -> int:
    """The logarithm to base 2, rounded up."""
    return max(0, math.ceil(math.log2(number)))
