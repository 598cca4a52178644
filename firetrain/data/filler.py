"""Fills memory with the pixels of a batch: reads, cuts, resizes and shifts each image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firetrain.data.crop import Box, centre_box, random_box, resize, shift
from firetrain.data.decode import BadImage, Pixels, Scratch
from firetrain.data.draws import uniform
from firetrain.data.images import Arrays, Images
from firetrain.data.order import Samples

# streams of random numbers
_FLIP, _AREA, _RATIO, TOP, LEFT = range(1, 6)


@dataclass(frozen=True)
class Filler:
    """The images of a split and what is done with each; it has no threads, so that another process can use a copy of it.

    Augmentation depends only on (seed, epoch, sample). `ready`: all images in their final size, if they are in memory.
    """

    images: Images
    size: int
    augmentation: str
    seed: int
    skip_bad: bool
    ready: Tensor | None = None

    def fill(
        self, buffer: Tensor, samples: Samples, positions: NDArray[Any], epoch: int, scratch: Scratch
    ) -> dict[int, str]:
        """Load samples[positions] into buffer[positions]; returns the positions of unreadable images, with the reasons.

        BadImage for the first of them, unless they are to be skipped.
        """
        if self.ready is not None:
            chosen = self.ready[torch.from_numpy(samples[positions])]
            buffer[positions[0] : positions[-1] + 1].copy_(chosen.expand(-1, 3, -1, -1))
            return {}
        draws = np.stack([uniform(self.seed, epoch, samples[positions], s) for s in (_AREA, _RATIO, TOP, LEFT)], axis=1)
        bad: dict[int, str] = {}
        for position, draw in zip(positions.tolist(), draws.tolist(), strict=True):
            try:
                self._load(self.images.read(int(samples[position]), scratch), draw, buffer[position])
            except BadImage as error:
                if not self.skip_bad:
                    raise
                bad[position] = str(error)
        return bad

    def _load(self, pixels: Pixels, draw: list[float], out: Tensor) -> None:
        height, width, _ = pixels.shape
        if self.augmentation == "random-resized-crop":
            resize(pixels, random_box(height, width, draw), out)
        else:
            resize(pixels, centre_box(height, width, self.size), out)
            if self.augmentation == "shift-flip":
                out.copy_(shift(out.clone(), *draw[2:]))


def mirrored(augmentation: str, seed: int, epoch: int, samples: Samples) -> NDArray[np.bool_]:
    """Which samples are mirrored horizontally in this epoch, [samples]."""
    if augmentation == "none":
        return np.zeros(len(samples), bool)
    return uniform(seed, epoch, samples, _FLIP) < 0.5


def in_memory(images: Arrays, size: int) -> Tensor:
    """All images of a split, resized to uint8 [samples, 1 or 3, size, size]."""
    whole = torch.from_numpy(np.ascontiguousarray(images.pixels))
    whole = whole[:, None] if whole.ndim == 3 else whole.permute(0, 3, 1, 2)
    box: Box = centre_box(whole.shape[2], whole.shape[3], size)
    whole = whole[:, :, box.top : box.top + box.height, box.left : box.left + box.width]
    if tuple(whole.shape[2:]) == (size, size):
        return whole
    resized = [
        torch.nn.functional.interpolate(some, [size, size], mode="bilinear", antialias=True)
        for some in whole.split(4096)
    ]
    return torch.cat(resized)
