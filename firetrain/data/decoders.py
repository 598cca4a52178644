"""Decoding of images, by threads of this process or by a process of its own."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import torch.multiprocessing
from torch import Tensor

from firetrain.cluster.parent import end_with_parent
from firetrain.data.decode import Scratch
from firetrain.data.filler import Filler
from firetrain.data.order import Samples, share
from firetrain.errors import FiretrainError


class Threads:
    """Fills batches by threads, each with its share of a batch. `buffers`: the memory of the batches."""

    def __init__(self, filler: Filler, buffers: Sequence[Tensor], threads: int) -> None:
        self._filler, self._buffers, self._threads = filler, buffers, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="loader")
        self._scratch = Scratch()

    def begin(self, buffer: int, samples: Samples, epoch: int) -> list[Future[dict[int, str]]]:
        """Begin to fill `buffer`; the results are the positions of unreadable images with the reasons (`Filler.fill`)."""
        positions = np.arange(len(samples))
        shares = [share(positions, thread, self._threads) for thread in range(self._threads)]
        arguments = (self._buffers[buffer], samples)
        return [
            self._pool.submit(self._filler.fill, *arguments, mine, epoch, self._scratch) for mine in shares if len(mine)
        ]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Process:
    """Fills batches by the threads of another process, so that they do not compete with training for the GIL.

    `buffers` must be in shared memory (`Tensor.share_memory_`).
    """

    def __init__(self, filler: Filler, buffers: Sequence[Tensor], threads: int) -> None:
        self._pool = ProcessPoolExecutor(
            1, torch.multiprocessing.get_context("spawn"), initializer=_serve, initargs=(filler, buffers, threads)
        )

    def begin(self, buffer: int, samples: Samples, epoch: int) -> list[Future[dict[int, str]]]:
        """As `Threads.begin`."""
        try:
            return [self._pool.submit(_fill, buffer, samples, epoch)] if len(samples) else []
        except BrokenProcessPool as error:
            raise lost_decoder() from error

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def lost_decoder() -> FiretrainError:
    """The error if the decoding process has ended by itself."""
    return FiretrainError(
        "the process that decodes images has ended, perhaps because memory ran out: set data.decode_in: threads, or lower "
        "data.threads"
    )


# set in the decoding process
_threads: Threads | None = None


def _serve(filler: Filler, buffers: Sequence[Tensor], threads: int) -> None:
    """Prepare the decoding process, which ends with the process that it serves."""
    global _threads
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that it serves
    torch.set_num_threads(1)
    _threads = Threads(filler, buffers, threads)


def _fill(buffer: int, samples: Samples, epoch: int) -> dict[int, str]:
    assert _threads is not None, "internal error: not in the decoding process"
    found: dict[int, str] = {}
    for future in _threads.begin(buffer, samples, epoch):
        found |= future.result()
    return found
