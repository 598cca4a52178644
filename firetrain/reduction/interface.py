"""What a reduction is to the rest of firetrain."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Pending(Protocol):
    """A reduction under way."""

    def wait(self) -> None:
        """Return once the buffer holds the sum; on a GPU, once the current stream will see it. LostPeer if a rank is gone."""


class Reduction(Protocol):
    """Sums flat buffers over all ranks.

    Contract: every rank calls `start` with buffers of the same lengths in the same order; buffers are contiguous, of one
    dimension, float32, and neither read nor written by the caller until `wait` returns. Then every rank holds the same
    bits in them: the sum over all ranks.
    """

    def start(self, buffer: Tensor) -> Pending:
        """Begin to sum `buffer` in place; does not block."""

    def close(self) -> None:
        """Let go of threads and streams."""
