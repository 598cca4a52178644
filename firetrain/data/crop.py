"""Select the part of an image that is used, and resize it to the model's square input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firetrain.data.decode import Pixels

# evaluation resizes the shorter side to 256/224 of the model's size before the centre crop
_CENTRE = 224 / 256
_PAD_SHARE = 1 / 8


class Box(NamedTuple):
    """A rectangular part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


def centre_box(height: int, width: int, size: int) -> Box:
    """The central square with 224/256 of the shorter side, or the whole side if that is less than the model's `size`."""
    side = min(height, width)
    if side * _CENTRE >= size:
        side = round(side * _CENTRE)
    return Box((height - side) // 2, (width - side) // 2, side, side)


def random_box(height: int, width: int, draws: Sequence[float]) -> Box:
    """A box of random area (8 to 100 %) and aspect ratio (3/4 to 4/3), as for GoogLeNet (Szegedy et al. 2015, section 6).

    `draws`: four numbers in [0, 1) for area, ratio, top and left. If a box of this ratio and area does not fit into the image,
    the ratio is moved towards that of the image.
    """
    area_draw, ratio_draw, top_draw, left_draw = draws
    area = height * width * (0.08 + 0.92 * area_draw)
    ratio = math.exp((2 * ratio_draw - 1) * math.log(4 / 3))
    # the nearest ratio for which the area fits: width = sqrt(area * ratio) <= image width, height likewise
    ratio = min(max(ratio, area / height**2), width**2 / area)
    box_height = min(height, max(1, round(math.sqrt(area / ratio))))
    box_width = min(width, max(1, round(math.sqrt(area * ratio))))
    return Box(
        int(top_draw * (height - box_height + 1)), int(left_draw * (width - box_width + 1)), box_height, box_width
    )


def resize(pixels: Pixels, box: Box, out: Tensor) -> None:
    """Resize the content of `box` with antialiasing into `out`, uint8 [3, size, size] in channels_last memory."""
    cut = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    image = torch.from_numpy(cut[None]).permute(0, 3, 1, 2)
    size = list(out.shape[1:])
    if list(image.shape[2:]) == size:
        out.copy_(image[0])
        return
    # the operator that interpolate(..., antialias=True) calls: with a given output it writes channels_last and takes half the
    # time; interpolate returns contiguous planes, which would have to be interleaved again
    torch.ops.aten._upsample_bilinear2d_aa.out(image, size, False, None, None, out=out[None])


def shifts(size: int, draws: NDArray[np.float64]) -> tuple[int, NDArray[np.int64]]:
    """How images of `size` pixels are shifted by up to an eighth of their size (He et al. 2016, section 4.2).

    Returns the black pixels to add on each side, and the first row and column to keep of each image, [images, 2]. `draws`:
    numbers in [0, 1), [images, 2].
    """
    pad = max(1, round(size * _PAD_SHARE))
    return pad, (draws * (2 * pad + 1)).astype(np.int64)


def shift(image: Tensor, top_draw: float, left_draw: float) -> Tensor:
    """Shift an image [3, size, size] as `shifts` says."""
    size = image.shape[-1]
    pad, corners = shifts(size, np.array([[top_draw, left_draw]]))
    top, left = corners[0].tolist()
    padded = torch.nn.functional.pad(image, (pad, pad, pad, pad))
    return padded[:, top : top + size, left : left + size]
