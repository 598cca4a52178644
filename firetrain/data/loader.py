"""Batches of images: threads decode them into preallocated uint8 memory while the model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firetrain.data.batch import Batch
from firetrain.data.crop import Box, centre_box, random_box, resize, shift
from firetrain.data.decode import BadImage, Pixels, Scratch
from firetrain.data.draws import uniform
from firetrain.data.images import Arrays, Images
from firetrain.data.order import Samples, share

_AHEAD = 2
# streams of random numbers
_FLIP, _AREA, _RATIO, TOP, LEFT = range(1, 6)


class Loader:
    """Loads batches of one split ahead of their use, each with at most `batch_size` samples.

    Augmentation depends only on (seed, epoch, sample), so pixels do not depend on the number of threads or ranks. `skip_bad`:
    leave out images that cannot be read, and record them in `bad`; otherwise BadImage ends the run.
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
        self._buffers = [
            _Buffer(torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory, memory_format=torch.channels_last))
            for _ in range(_AHEAD + 1)
        ]
        self._ready = (
            in_memory(images, size) if augmentation in ("none", "flip") and isinstance(images, Arrays) else None
        )
        self._scratch = Scratch()
        self.bad: dict[int, str] = {}

    def batches(self, wanted: Iterable[Samples], epoch: int) -> Iterator[Batch]:
        """The images of each entry of `wanted`, in order; an empty entry gives an empty batch."""
        upcoming, free = iter(wanted), deque(self._buffers)
        under_way: deque[tuple[Samples, _Buffer, list[Future[list[int]]]]] = deque()
        while True:
            while len(under_way) < _AHEAD and (samples := next(upcoming, None)) is not None:
                buffer = free.popleft()
                under_way.append((samples, buffer, self._begin(samples, buffer, epoch)))
            if not under_way:
                return
            samples, buffer, parts = under_way.popleft()
            yield self._complete(samples, buffer, [bad for future in parts for bad in future.result()], epoch)
            free.append(buffer)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, samples: Samples, buffer: _Buffer, epoch: int) -> list[Future[list[int]]]:
        buffer.wait()
        places = np.arange(len(samples))
        shares = [share(places, thread, self._threads) for thread in range(self._threads)]
        return [self._pool.submit(self._fill, buffer.images, samples, mine, epoch) for mine in shares if len(mine)]

    def _fill(self, buffer: Tensor, samples: Samples, places: NDArray[Any], epoch: int) -> list[int]:
        """Load samples[places] into buffer[places]; returns the places of unreadable images."""
        if self._ready is not None:
            chosen = self._ready[torch.from_numpy(samples[places])]
            buffer[places[0] : places[-1] + 1].copy_(chosen.expand(-1, 3, -1, -1))
            return []
        draws = np.stack([uniform(self._seed, epoch, samples[places], s) for s in (_AREA, _RATIO, TOP, LEFT)], axis=1)
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

    def _complete(self, samples: Samples, buffer: _Buffer, bad: list[int], epoch: int) -> Batch:
        images = buffer.images[: len(samples)]
        if bad:
            kept = np.setdiff1d(np.arange(len(samples)), bad)
            images, samples = images[torch.from_numpy(kept)], samples[kept]
        flips = mirrored(self._augmentation, self._seed, epoch, samples)
        return Batch(images, self._labels[torch.from_numpy(samples)], samples, flips, buffer.copied)


class _Buffer:
    """Memory for a batch. `copied`: events of a GPU after which it has copied the batch."""

    def __init__(self, images: Tensor) -> None:
        self.images = images
        self.copied: list[Any] = []

    def wait(self) -> None:
        """Wait until the memory may be overwritten, also after an epoch that was abandoned."""
        while self.copied:
            self.copied.pop().synchronize()


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
