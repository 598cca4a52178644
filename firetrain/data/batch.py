"""A batch of images in host memory, and its transfer to the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from firetrain.data.order import Samples
from firetrain.transport.device import copy_to_device, is_gpu, issued_on, now, use_after

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
        """Flipped uint8 images, and labels, on `device`; copying does not block the host."""
        moved = self.moved(device)
        images, labels = moved.images, moved.labels
        if self.flips.any():
            flips = copy_to_device(torch.from_numpy(self.flips), device)[:, None, None, None]
            images = torch.where(flips, images.flip(-1), images)
        return images, labels

    def moved(self, device: torch.device) -> Batch:
        """The batch with its images and labels on `device`; the host does not wait for the copy."""
        if self.images.device == device:
            return self
        images, labels = copy_to_device(self.images, device), copy_to_device(self.labels, device)
        self.copied.append(now(device))
        return Batch(images, labels, self.samples, self.flips)


def prefetched(batches: Iterator[Batch], device: torch.device, stream: Any) -> Iterator[Batch]:
    """The same batches; each is copied to a GPU on `stream`, while the GPU computes with the one before, then waited for.

    One stream serves all epochs, because torch keeps the memory that was copied on one stream from being used on another.
    """
    if not is_gpu(device):
        yield from batches
        return
    ahead: tuple[Batch, Any] | None = None
    for batch in batches:
        with issued_on(stream, waits=False):
            copied = batch.moved(device), now(device)
        if ahead is not None:
            yield _arrived(*ahead)
        ahead = copied
    if ahead is not None:
        yield _arrived(*ahead)


def _arrived(batch: Batch, copied: Any) -> Batch:
    """The batch, which the current stream uses after the event `copied`."""
    use_after(copied, batch.images, batch.labels)
    return batch


def blank_batch(count: int, size: int) -> Batch:
    """A batch of `count` black images of class 0, with `size` pixels a side."""
    images = torch.zeros(count, 3, size, size, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    return Batch(images, torch.zeros(count, dtype=torch.int64), np.arange(count), np.zeros(count, bool))


class Normalised(nn.Module):
    """A model whose inputs are uint8 images; a compiler can fuse the normalisation with the model's first layers.

    `channels_last`: layout of the model's inputs in memory.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, device: torch.device, *, channels_last: bool = True) -> None:
        super().__init__()
        self.model, self._channels_last = model, channels_last
        # buffers, because making them in every step would make the host wait for a GPU
        self.register_buffer("mean", torch.tensor(MEAN, device=device).view(1, 3, 1, 1) * 255, persistent=False)
        scale = 1 / (torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1) * 255)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, images: Tensor) -> Any:
        """Map uint8 [n, 3, size, size] to the outputs of the model for normalised float32 images."""
        return self.model(self.normalise(images))

    def normalise(self, images: Tensor) -> Tensor:
        """Map uint8 [n, 3, size, size] to float32 with mean 0 and deviation 1 in each channel of ImageNet."""
        normalised = (images.float() - self.mean) * self.scale
        # a convolution is computed in channels_last if either its input or its weight is
        return normalised if self._channels_last else normalised.contiguous()
