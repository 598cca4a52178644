"""Which part of an image is used, and how it becomes a square of the model's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from firetrain.data.decode import Pixels

# evaluation resizes the shorter side to 256/224 of the model's size before the centre crop
_CENTRE = 224 / 256
_PAD_SHARE = 1 / 8


class Box(NamedTuple):
    """A part of an image in pixels."""

    top: int
    left: int
    height: int
    width: int


def centre_box(height: int, width: int, size: int) -> Box:
    """The central square: 224/256 of the shorter side, all of it where that would be fewer pixels than the model takes."""
    side = min(height, width)
    if side * _CENTRE >= size:
        side = round(side * _CENTRE)
    return Box((height - side) // 2, (width - side) // 2, side, side)


def random_box(height: int, width: int, draws: Sequence[float]) -> Box:
    """Random area (8 to 100 %) and aspect ratio (3/4 to 4/3) as GoogLeNet was trained (Szegedy et al. 2015, section 6).

    `draws` in [0, 1) decide area, ratio, top and left. Where ratio and area do not fit into the image together, the ratio
    moves towards the image's own.
    """
    area_draw, ratio_draw, top_draw, left_draw = draws
    area = height * width * (0.08 + 0.92 * area_draw)
    ratio = math.exp((2 * ratio_draw - 1) * math.log(4 / 3))
    # the nearest ratio for which area fits: width = sqrt(area * ratio) <= image width, height likewise
    ratio = min(max(ratio, area / height**2), width**2 / area)
    box_height = min(height, max(1, round(math.sqrt(area / ratio))))
    box_width = min(width, max(1, round(math.sqrt(area * ratio))))
    return Box(
        int(top_draw * (height - box_height + 1)), int(left_draw * (width - box_width + 1)), box_height, box_width
    )


def resize(pixels: Pixels, box: Box, out: Tensor) -> None:
    """Write the box's content, resized with antialiasing, into `out`, uint8 [3, size, size] in channels_last memory."""
    cut = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    image = torch.from_numpy(cut[None]).permute(0, 3, 1, 2)
    size = list(out.shape[1:])
    if list(image.shape[2:]) == size:
        out.copy_(image[0])
        return
    # interpolate(..., antialias=True) by its operator: given where to write, it keeps to channels_last and takes half the
    # time; interpolate itself returns planes, which would have to be woven together again
    torch.ops.aten._upsample_bilinear2d_aa.out(image, size, False, None, None, out=out[None])


def shift(image: Tensor, top_draw: float, left_draw: float) -> Tensor:
    """Move [3, size, size] by up to an eighth of its size each way, black behind (He et al. 2016, section 4.2)."""
    size = image.shape[-1]
    pad = max(1, round(size * _PAD_SHARE))
    top, left = int(top_draw * (2 * pad + 1)), int(left_draw * (2 * pad + 1))
    padded = torch.nn.functional.pad(image, (pad, pad, pad, pad))
    return padded[:, top : top + size, left : left + size]
