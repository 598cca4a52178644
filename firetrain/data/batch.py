"""A batch of images in host memory, and its transfer to the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firetrain.data.order import Samples
from firetrain.transport.device import copy_to_device, is_gpu

# ImageNet's mean and standard deviation per channel, for pixels from 0 to 1
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)


@dataclass
class Batch:
    """A batch of n images. Its memory belongs to the loader and is valid until the next batch is requested.

    - `images`: uint8 [n, 3, size, size] in channels_last memory.
    - `labels`: int64 [n].
    - `samples`: the images' numbers in the split, [n].
    - `flips`: bool [n]; which images to mirror horizontally on the device.
    - `copied`: GPU events that mark the end of copies from this memory.
    """

    images: Tensor
    labels: Tensor
    samples: Samples
    flips: NDArray[np.bool_]
    copied: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.samples)

    def on_device(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Flipped and normalised float32 images, and labels, on `device`; copying does not block the host."""
        images, labels = copy_to_device(self.images, device), copy_to_device(self.labels, device)
        if is_gpu(device):
            event = torch.cuda.Event(blocking=True)
            event.record()
            self.copied.append(event)
        if self.flips.any():
            flips = copy_to_device(torch.from_numpy(self.flips), device)[:, None, None, None]
            images = torch.where(flips, images.flip(-1), images)
        mean, scale = _normal(device)
        return (images.float() - mean) * scale, labels


@cache
def _normal(device: torch.device) -> tuple[Tensor, Tensor]:
    """(mean, 1 / deviation) for pixels from 0 to 255, [1, 3, 1, 1]; made only once, because making them waits for the GPU."""
    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1) * 255
    return mean, 1 / (torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1) * 255)
