"""Pure functions for the order of images and the share of each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.cluster.shares import share_bounds
from firetrain.data.draws import permutation

Samples = NDArray[np.int64]


def global_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[Samples]:
    """The batches of an epoch: every sample of 0 .. count-1 exactly once, shuffled by (seed, epoch).

    They are the same for any number of ranks. The last batch may be smaller; it is also trained on.
    """
    order = permutation(seed, epoch, count)
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]


def share(samples: NDArray[Any], rank: int, ranks: int) -> NDArray[Any]:
    """The consecutive samples of a rank. Sizes differ by at most one; a share is empty if there are more ranks than samples."""
    first, end = share_bounds(len(samples), rank, ranks)
    return samples[first:end]


def micro_batches(samples: Samples, most: int | None) -> Iterator[Samples]:
    """Split a rank's share into micro-batches of nearly equal size, of at most `most` samples.

    An empty share gives one empty micro-batch.
    """
    count = 1 if most is None else max(1, -(-len(samples) // most))
    yield from (share(samples, number, count) for number in range(count))


def steps_per_epoch(count: int, batch_size: int) -> int:
    """The number of global batches in an epoch."""
    return -(-count // batch_size)
