"""Samples to batches: threads decode into preallocated uint8 memory while the model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firetrain.data.crop import Box, centre_box, random_box, resize, shift
from firetrain.data.decode import BadImage, Pixels, Scratch
from firetrain.data.draws import uniform
from firetrain.data.images import Arrays, Images
from firetrain.data.order import Samples, part

# ImageNet's mean and standard deviation per channel, of pixels from 0 to 1
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)

_AHEAD = 2
_FLIP, _AREA, _RATIO, _TOP, _LEFT = range(1, 6)


@dataclass
class Batch:
    """uint8 `images` [n, 3, size, size] in channels_last memory, int64 `labels` [n], and which samples they are.

    The memory belongs to the loader: it is valid until the next batch is asked for.
    """

    images: Tensor
    labels: Tensor
    samples: Samples
    flips: Tensor
    copied: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.samples)

    def on_device(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Float images, flipped and normalised, and labels, on `device`; the copy does not block the host."""
        images = self.images.to(device, non_blocking=True)
        labels, flips = self.labels.to(device, non_blocking=True), self.flips.to(device, non_blocking=True)
        if device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            self.copied.append(event)
        if bool(self.flips.any()):
            images = torch.where(flips[:, None, None, None], images.flip(-1), images)
        mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1) * 255
        scale = 1 / (torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1) * 255)
        return (images.float() - mean) * scale, labels


class Loader:
    """Loads batches of one split, at most `batch_size` samples each, ahead of their use.

    `augmentation` as in the config, drawn from (seed, epoch, sample) alone: neither the number of threads nor that of
    ranks changes a pixel. `skip_bad`: leave out images that cannot be read and count them; else BadImage ends the run.
    """

    def __init__(
        self,
        images: Images,
        size: int,
        batch_size: int,
        *,
        augmentation: str = "none",
        seed: int = 0,
        threads: int = 1,
        skip_bad: bool = False,
        pin_memory: bool = False,
    ) -> None:
        self._images, self._size, self._seed = images, size, seed
        self._augmentation, self._skip_bad = augmentation, skip_bad
        self._labels = torch.from_numpy(images.labels)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="loader")
        shape = (max(1, batch_size), 3, size, size)
        self._buffers = [_buffer(shape, pin_memory) for _ in range(_AHEAD + 1)]
        self._ready = _in_memory(images, size) if augmentation in ("none", "flip") else None
        self._scratch = Scratch()
        self.bad: dict[int, str] = {}

    def batches(self, pieces: Iterable[Samples], epoch: int) -> Iterator[Batch]:
        """One batch per piece, in order; an empty piece gives an empty batch."""
        upcoming, free = iter(pieces), deque(self._buffers)
        under_way: deque[tuple[Samples, Tensor, list[Future[list[int]]]]] = deque()
        while True:
            while len(under_way) < _AHEAD and (samples := next(upcoming, None)) is not None:
                buffer = free.popleft()
                under_way.append((samples, buffer, self._begin(samples, buffer, epoch)))
            if not under_way:
                return
            samples, buffer, parts = under_way.popleft()
            batch = self._complete(samples, buffer, [bad for future in parts for bad in future.result()], epoch)
            yield batch
            for event in batch.copied:
                event.synchronize()  # the GPU may still be reading what is about to be overwritten
            free.append(buffer)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, samples: Samples, buffer: Tensor, epoch: int) -> list[Future[list[int]]]:
        places = np.arange(len(samples))
        shares = [part(places, thread, self._threads) for thread in range(self._threads)]
        return [self._pool.submit(self._fill, buffer, samples, share, epoch) for share in shares if len(share)]

    def _fill(self, buffer: Tensor, samples: Samples, places: NDArray[Any], epoch: int) -> list[int]:
        """Load samples[places] into buffer[places]; the places of images that cannot be read."""
        if self._ready is not None:
            chosen = self._ready[torch.from_numpy(samples[places])]
            buffer[places[0] : places[-1] + 1].copy_(chosen.expand(-1, 3, -1, -1))
            return []
        draws = np.stack([uniform(self._seed, epoch, samples[places], s) for s in (_AREA, _RATIO, _TOP, _LEFT)], axis=1)
        bad = []
        for place, draw in zip(places.tolist(), draws.tolist(), strict=True):
            try:
                self._load(self._images.read(int(samples[place]), self._scratch), draw, buffer[place])
            except BadImage as error:
                if not self._skip_bad:
                    raise
                self.bad[int(samples[place])] = str(error)
                bad.append(place)
        return bad

    def _load(self, pixels: Pixels, draw: list[float], out: Tensor) -> None:
        height, width, _ = pixels.shape
        if self._augmentation == "random-resized-crop":
            resize(pixels, random_box(height, width, draw), out)
        else:
            resize(pixels, centre_box(height, width, self._size), out)
            if self._augmentation == "shift-flip":
                out.copy_(shift(out.clone(), *draw[2:]))

    def _complete(self, samples: Samples, buffer: Tensor, bad: list[int], epoch: int) -> Batch:
        images = buffer[: len(samples)]
        if bad:
            kept = np.setdiff1d(np.arange(len(samples)), bad)
            images, samples = images[torch.from_numpy(kept)], samples[kept]
        flips = np.zeros(len(samples), bool)
        if self._augmentation in ("flip", "shift-flip", "random-resized-crop"):
            flips = uniform(self._seed, epoch, samples, _FLIP) < 0.5
        return Batch(images, self._labels[torch.from_numpy(samples)], samples, torch.from_numpy(flips))


def _buffer(shape: tuple[int, ...], pin_memory: bool) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory).contiguous(memory_format=torch.channels_last)


def _in_memory(images: Images, size: int) -> Tensor | None:
    """All images of a split that is in memory, at the model's size, uint8 [samples, 1 or 3, size, size]; else None."""
    if not isinstance(images, Arrays):
        return None
    whole = torch.from_numpy(np.ascontiguousarray(images.pixels))
    whole = whole[:, None] if whole.ndim == 3 else whole.permute(0, 3, 1, 2)
    box: Box = centre_box(whole.shape[2], whole.shape[3], size)
    whole = whole[:, :, box.top : box.top + box.height, box.left : box.left + box.width]
    if tuple(whole.shape[2:]) == (size, size):
        return whole
    pieces = [
        torch.nn.functional.interpolate(piece, [size, size], mode="bilinear", antialias=True)
        for piece in whole.split(4096)
    ]
    return torch.cat(pieces)
