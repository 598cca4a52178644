"""A reduction that notes how large each rank's own gradients were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.topology import Plan


class Observed(Reduction):
    """The same reduction; `take` gives the squared norm, in float64, of all that this rank has put in since the last call."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._squared: list[Tensor] = []

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Look at the bucket before it is summed."""
        self._squared.append(bucket.buffer.double().square().sum())
        return self._reduction.start(bucket, step)

    def take(self) -> Tensor:
        """One value on the buckets' device."""
        squared, self._squared = torch.stack(self._squared).sum(), []
        return squared

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """The reduction's."""
        self._reduction.prepare(buckets)

    def plan(self, length: int) -> Plan | None:
        """The reduction's."""
        return self._reduction.plan(length)

    def facts(self) -> dict[str, Any]:
        """The reduction's."""
        return self._reduction.facts()

    def close(self) -> None:
        """The reduction's."""
        self._reduction.close()
