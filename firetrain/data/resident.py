"""Batches from a split that is kept on the device, so that no image has to be copied there in a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from firetrain.data.batch import Batch
from firetrain.data.crop import shifts
from firetrain.data.draws import uniform
from firetrain.data.filler import LEFT, TOP, in_memory, mirrored
from firetrain.data.images import Arrays, Images
from firetrain.data.order import Samples
from firetrain.transport.device import copy_to_device, free_bytes

# the share of a device's free memory that the images of a split may take
_SHARE = 0.25


def fits(images: Images, size: int, augmentation: str, device: torch.device) -> bool:
    """Whether a split can be kept on `device`: it is in memory, small enough, and its augmentation does not resize images."""
    if not isinstance(images, Arrays) or augmentation == "random-resized-crop":
        return False
    return len(images.labels) * 3 * size**2 <= _SHARE * free_bytes(device)


class ResidentLoader:
    """Loads batches of a split from the device's memory; pixels have the same bits as those of `Loader`.

    Augmentation uses the same draws, which depend only on (seed, epoch, sample).
    """

    def __init__(self, images: Arrays, size: int, device: torch.device, augmentation: str, seed: int) -> None:
        self._size, self._device, self._augmentation, self._seed = size, device, augmentation, seed
        self._images, self._labels = in_memory(images, size).to(device), torch.from_numpy(images.labels).to(device)
        self.bad: dict[int, str] = {}

    def batches(self, wanted: Iterable[Samples], epoch: int) -> Iterator[Batch]:
        """The images of each entry of `wanted`, in order; an empty entry gives an empty batch."""
        for samples in wanted:
            numbers = copy_to_device(torch.from_numpy(samples), self._device)
            images = self._images.index_select(0, numbers).expand(-1, 3, -1, -1)
            if self._augmentation == "shift-flip":
                images = self._shifted(images, samples, epoch)
            flips = mirrored(self._augmentation, self._seed, epoch, samples)
            images = images.contiguous(memory_format=torch.channels_last)
            yield Batch(images, self._labels.index_select(0, numbers), samples, flips)

    def close(self) -> None:
        """No-op: the memory is freed with the loader."""

    def _shifted(self, images: Tensor, samples: Samples, epoch: int) -> Tensor:
        draws = np.stack([uniform(self._seed, epoch, samples, stream) for stream in (TOP, LEFT)], axis=1)
        pad, places = shifts(self._size, draws)
        top, left = copy_to_device(torch.from_numpy(places), self._device).unbind(1)
        padded = torch.nn.functional.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
        along = torch.arange(self._size, device=self._device)
        which = torch.arange(len(samples), device=self._device)[:, None, None]
        rows, columns = (top[:, None] + along)[:, :, None], (left[:, None] + along)[:, None, :]
        return padded[which, rows, columns].permute(0, 3, 1, 2)
