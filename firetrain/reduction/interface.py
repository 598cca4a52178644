"""The interface of reductions: buckets, pending sums and the base class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from firetrain.errors import FiretrainError
from firetrain.topology import Plan

__all__ = ["SUMMED", "Bucket", "Pending", "Reduction"]

# the types in which reductions add
SUMMED = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Bucket:
    """Gradients that are reduced together.

    - `buffer`: flat and contiguous, float32 or float64, [elements]; it is summed in its type. FiretrainError for others.
    - `number`: number of the bucket within a step, from 0.
    - `shapes`: shapes of the gradients in the buffer, in order.
    - `starts`: first element of each gradient; by default they follow one another without gaps.

    >>> len(Bucket(torch.zeros(6), shapes=(torch.Size([2, 2]), torch.Size([2]))))
    6
    """

    buffer: Tensor
    number: int = 0
    shapes: tuple[torch.Size, ...] = ()
    starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.buffer.dtype not in SUMMED or self.buffer.dim() != 1 or not self.buffer.is_contiguous():
            raise FiretrainError(
                f"a bucket must be flat and contiguous memory of float32 or float64 (got {self.buffer.dtype}, shape "
                f"{list(self.buffer.shape)}, strides {list(self.buffer.stride())}): copy the gradients into one"
            )

    def __len__(self) -> int:
        """The number of elements."""
        return len(self.buffer)

    @property
    def key(self) -> tuple[object, ...]:
        """The same for buckets of the same gradients in different steps, wherever their memory is."""
        return self.number, self.buffer.dtype, len(self), self.shapes


class Pending(Protocol):
    """A reduction under way.

    >>> bucket = Bucket(torch.ones(2))
    >>> pending = Alone().start(bucket)
    >>> pending.wait()
    >>> bucket.buffer
    tensor([1., 1.])
    """

    def wait(self) -> None:
        """Return when the buffer contains the sum; on a GPU, when the current stream waits for it. LostPeer if a rank died."""


class Reduction:
    """Sums buckets over all ranks.

    Contract: every rank calls `prepare` once and then `start`, with buckets of the same lengths in the same order. The caller
    neither reads nor writes a buffer until `wait` returns. Then it contains the same bits on every rank: the sum over all
    ranks, or a lossy reduction's approximation of it.

    >>> class GatherAndAdd(Reduction):
    ...     def __init__(self, context):
    ...         self._transport = context.transport
    ...     def start(self, bucket, step=0):
    ...         bucket.buffer.copy_(torch.stack(self._transport.gather(bucket.buffer)).sum(0))
    ...         return self  # the sum is complete
    ...     def wait(self):
    ...         pass
    """

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Start to sum the bucket in place, without blocking. `step` is used in error messages."""
        raise NotImplementedError

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Prepare for buckets of these lengths; collective over all ranks. The content of the buckets does not change."""

    def forget(self, bucket: Bucket) -> None:
        """Release what is kept for a bucket that does not come again, such as what was not sent of its gradients."""

    def plan(self, length: int) -> Plan | None:
        """The plan that reduces a bucket of `length` elements; None if the reduction is not a plan."""
        return None

    def facts(self) -> dict[str, Any]:
        """Facts about this reduction for a run's record, ready for JSON."""
        return {}

    def close(self) -> None:
        """Release threads, process groups and streams."""


class Alone(Reduction):
    """The reduction of a single rank, whose buffer already is the sum."""

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Return a completed reduction."""
        return self

    def wait(self) -> None:
        """Return immediately."""
