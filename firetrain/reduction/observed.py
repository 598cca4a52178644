"""A reduction that also measures the gradients of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.topology import Plan


class Observed(Reduction):
    """Wraps a reduction; `take` returns the squared norm of all buckets started since the last call."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._squared: list[Tensor] = []

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Measure the bucket, and start to sum it."""
        self._squared.append(bucket.buffer.double().square().sum())
        return self._reduction.start(bucket, step)

    def take(self) -> Tensor:
        """The squared norm since the last call, as a float64 scalar on the buckets' device."""
        squared, self._squared = torch.stack(self._squared).sum(), []
        return squared

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        self._reduction.prepare(buckets)

    def forget(self, bucket: Bucket) -> None:
        self._reduction.forget(bucket)

    def plan(self, length: int) -> Plan | None:
        return self._reduction.plan(length)

    def facts(self) -> dict[str, Any]:
        return self._reduction.facts()

    def close(self) -> None:
        self._reduction.close()
