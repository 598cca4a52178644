"""Which image is trained on when, and by which rank: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.data.draws import permutation

Samples = NDArray[np.int64]


def global_batches(count: int, batch_size: int, seed: int, epoch: int) -> list[Samples]:
    """An epoch's steps: every sample of 0 .. count-1 exactly once, shuffled by (seed, epoch).

    The same for any number of ranks. The last batch is the rest and may be smaller; it is trained on too.
    """
    order = permutation(seed, epoch, count)
    return [order[start : start + batch_size] for start in range(0, count, batch_size)]


def part(samples: NDArray[Any], rank: int, ranks: int) -> NDArray[Any]:
    """The rank's share of a batch: consecutive, sizes differ by at most one, empty where there are more ranks than samples."""
    return samples[rank * len(samples) // ranks : (rank + 1) * len(samples) // ranks]


def micro_batches(samples: Samples, most: int | None) -> Iterator[Samples]:
    """A rank's share in pieces of at most `most` samples, of nearly equal size; one empty piece for an empty share."""
    pieces = 1 if most is None else max(1, -(-len(samples) // most))
    yield from (part(samples, piece, pieces) for piece in range(pieces))


def steps_per_epoch(count: int, batch_size: int) -> int:
    """How many global batches an epoch has."""
    return -(-count // batch_size)
