"""Batches from a split that is kept on the device, so that no image has to be copied there in a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from firetrain.data.batch import Batch
from firetrain.data.crop import shifts
from firetrain.data.draws import uniform
from firetrain.data.filler import LEFT, TOP, in_memory, mirrored
from firetrain.data.images import Arrays, Images
from firetrain.data.order import Samples
from firetrain.data.packed import Packed
from firetrain.transport.device import copy_to_device, free_bytes, synchronize

# the share of a device's free memory that the images of a split may take
_SHARE = 0.25


def fits(images: Images, size: int, augmentation: str, device: torch.device) -> bool:
    """Whether a split can be kept on `device`: its images are arrays, small enough, and its augmentation does not resize them."""
    if augmentation == "random-resized-crop" or len(images.labels) * 3 * size**2 > _SHARE * free_bytes(device):
        return False
    return bool(_arrays(images))


def _arrays(images: Images) -> Sequence[Arrays]:
    """The images of a split as arrays, in order; empty if they are files, or differ in size."""
    return [images] if isinstance(images, Arrays) else images.arrays() if isinstance(images, Packed) else []


class ResidentLoader:
    """Loads batches of a split from the device's memory; pixels have the same bits as those of `Loader`.

    Augmentation uses the same draws, which depend only on (seed, epoch, sample).
    """

    def __init__(self, images: Images, size: int, device: torch.device, augmentation: str, seed: int) -> None:
        self._size, self._device, self._augmentation, self._seed = size, device, augmentation, seed
        arrays = [in_memory(some, size).to(device) for some in _arrays(images)]
        # [images, height, width, channels]: then a batch that is selected has the memory layout that convolutions want
        self._images = torch.cat(arrays).permute(0, 2, 3, 1).contiguous()
        self._labels = torch.from_numpy(np.ascontiguousarray(images.labels)).to(device)
        synchronize(device)  # batches may be selected on another stream
        self.bad: dict[int, str] = {}

    def batches(self, wanted: Iterable[Samples], epoch: int) -> Iterator[Batch]:
        """The images of each entry of `wanted`, in order; an empty entry gives an empty batch."""
        for samples in wanted:
            numbers = copy_to_device(torch.from_numpy(samples), self._device)
            if self._augmentation == "shift-flip":
                images = self._shifted(numbers, samples, epoch)
            else:
                images = self._images.index_select(0, numbers)
            images = images.expand(-1, -1, -1, 3).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
            flips = mirrored(self._augmentation, self._seed, epoch, samples)
            yield Batch(images, self._labels.index_select(0, numbers), samples, flips)

    def close(self) -> None:
        """No-op: the memory is freed with the loader."""

    def _shifted(self, numbers: Tensor, samples: Samples, epoch: int) -> Tensor:
        """The images `numbers`, each shifted by its own draw over a black border."""
        draws = np.stack([uniform(self._seed, epoch, samples, stream) for stream in (TOP, LEFT)], axis=1)
        pad, corners = shifts(self._size, draws)
        top, left = copy_to_device(torch.from_numpy(corners - pad), self._device).unbind(1)
        along = torch.arange(self._size, device=self._device)
        rows, columns = (top[:, None] + along)[:, :, None], (left[:, None] + along)[:, None, :]
        inside = (rows >= 0) & (rows < self._size) & (columns >= 0) & (columns < self._size)
        last = self._size - 1
        shifted = self._images[numbers[:, None, None], rows.clamp(0, last), columns.clamp(0, last)]
        return shifted.mul_(inside[..., None])
