"""Batches of images, which are decoded into preallocated uint8 memory while the model computes."""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from firetrain.data.batch import Batch
from firetrain.data.decoders import Process, Threads, lost_decoder
from firetrain.data.filler import Filler, in_memory, mirrored
from firetrain.data.images import Arrays, Images
from firetrain.data.order import Samples
from firetrain.transport.device import pin, unpin

_AHEAD = 2


class Loader:
    """Loads batches of one split ahead of their use, each with at most `batch_size` samples.

    Augmentation depends only on (seed, epoch, sample), so pixels do not depend on the number of threads or ranks.

    - `skip_bad`: leave out images that cannot be read, and record them in `bad`; otherwise BadImage ends the run.
    - `apart`: decode in a process of its own.
    - `pin_memory`: for a GPU, which copies pinned memory without the host.
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
        apart: bool = False,
        pin_memory: bool = False,
    ) -> None:
        self._augmentation, self._seed = augmentation, seed
        self._labels = torch.from_numpy(images.labels)
        shape = (max(1, batch_size), 3, size, size)
        memory = [torch.empty(shape, dtype=torch.uint8, memory_format=torch.channels_last) for _ in range(_AHEAD + 1)]
        if apart:
            memory = [one.share_memory_() for one in memory]
        self._pinned = pin_memory
        if pin_memory:
            memory = [pin(one) for one in memory]
        self._buffers = [_Buffer(number, one) for number, one in enumerate(memory)]
        whole = isinstance(images, Arrays) and augmentation in ("none", "flip")
        ready = in_memory(cast(Arrays, images), size) if whole else None
        filler = Filler(images, size, augmentation, seed, skip_bad, ready)
        self._decoder = (Process if apart else Threads)(filler, memory, threads)
        self.bad: dict[int, str] = {}

    def batches(self, wanted: Iterable[Samples], epoch: int) -> Iterator[Batch]:
        """The images of each entry of `wanted`, in order; an empty entry gives an empty batch."""
        upcoming, free = iter(wanted), deque(self._buffers)
        under_way: deque[tuple[Samples, _Buffer, list[Future[dict[int, str]]]]] = deque()
        while True:
            while len(under_way) < _AHEAD and (samples := next(upcoming, None)) is not None:
                buffer = free.popleft()
                buffer.wait()
                buffer.filling = self._decoder.begin(buffer.number, samples, epoch)
                under_way.append((samples, buffer, buffer.filling))
            if not under_way:
                return
            samples, buffer, parts = under_way.popleft()
            yield self._complete(samples, buffer, parts, epoch)
            free.append(buffer)

    @property
    def is_pinned(self) -> bool:
        """Whether batches are in page-locked memory, from which a GPU copies while the host goes on."""
        return all(buffer.images.is_pinned() for buffer in self._buffers)

    def close(self) -> None:
        """End the threads, or the process, and give the memory back."""
        self._decoder.close()
        for buffer in self._buffers if self._pinned else ():
            buffer.wait()
            unpin(buffer.images)
        self._pinned = False

    def _complete(
        self, samples: Samples, buffer: _Buffer, parts: Sequence[Future[dict[int, str]]], epoch: int
    ) -> Batch:
        try:
            bad = {position: reason for part in parts for position, reason in part.result().items()}
        except BrokenProcessPool as error:
            raise lost_decoder() from error
        self.bad |= {int(samples[position]): reason for position, reason in bad.items()}
        images = buffer.images[: len(samples)]
        if bad:
            kept = np.setdiff1d(np.arange(len(samples)), list(bad))
            images, samples = images[torch.from_numpy(kept)], samples[kept]
        flips = mirrored(self._augmentation, self._seed, epoch, samples)
        return Batch(images, self._labels[torch.from_numpy(samples)], samples, flips, buffer.copied)


class _Buffer:
    """Memory for a batch. `filling`: what writes into it. `copied`: events of a GPU after which it has copied the batch."""

    def __init__(self, number: int, images: Tensor) -> None:
        self.number, self.images = number, images
        self.copied: list[Any] = []
        self.filling: Sequence[Future[dict[int, str]]] = ()

    def wait(self) -> None:
        """Wait until the memory may be overwritten, also after an epoch that was abandoned."""
        concurrent.futures.wait(self.filling)
        while self.copied:
            self.copied.pop().synchronize()
