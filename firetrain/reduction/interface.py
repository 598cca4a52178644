"""What a reduction is to the rest of firetrain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from firetrain.topology import Plan


@dataclass(frozen=True, eq=False)
class Bucket:
    """A flat buffer of gradients that is reduced at once: contiguous, of one dimension, float32.

    `number` counts the buckets of a step from 0; `shapes` are those of the gradients that lie in it one after another.
    """

    buffer: Tensor
    number: int = 0
    shapes: tuple[torch.Size, ...] = ()

    def __len__(self) -> int:
        """Elements."""
        return len(self.buffer)


class Pending(Protocol):
    """A reduction under way."""

    def wait(self) -> None:
        """Return once the buffer holds the sum; on a GPU, once the current stream will see it. LostPeer if a rank is gone."""


class Reduction:
    """Sums buckets over all ranks.

    Contract: every rank calls `prepare` once and then `start`, with buckets of the same lengths in the same order; a buffer
    is neither read nor written by the caller until `wait` returns. Then every rank holds the same bits in it: the sum over
    all ranks, or what a lossy reduction makes of it.
    """

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Begin to sum the bucket in place; does not block. `step` is for messages about what went wrong."""
        raise NotImplementedError

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Get ready for buckets like these, all ranks together; their content is left alone."""

    def plan(self, length: int) -> Plan | None:
        """The plan that a bucket of `length` elements goes through, if it is one."""
        return None

    def facts(self) -> dict[str, Any]:
        """What a run's record should say about this reduction, JSON-ready."""
        return {}

    def close(self) -> None:
        """Let go of threads, process groups and streams."""


class Alone(Reduction):
    """A rank by itself: its buffer is the sum."""

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Nothing to do."""
        return self

    def wait(self) -> None:
        """Nothing to wait for."""
