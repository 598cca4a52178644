"""Top-k: every rank sends only the largest elements of each bucket, and adds the others to its next gradient."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.wire import type_on_wire
from firetrain.transport.device import is_gpu
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport
from firetrain.transport.watchdog import Collective


class TopK(Reduction):
    """Lossy, with error feedback (Aji and Heafield 2017; Stich, Cordonnier and Jaggi 2018, algorithm 1).

    For a bucket of n elements each rank sends k = density * n of them, with their indices, to all others. About 8kp bytes
    arrive at each of p ranks (6kp with a 16-bit wire dtype), compared with 8n(p-1)/p in a ring, so it can be faster if density
    is well below 1/p. Elements that are not sent, and rounding errors, are added to the rank's next gradient of that bucket.
    """

    def __init__(self, context: Context, density: float) -> None:
        self._transport, self._dtype = context.transport, context.dtype
        self._density = density
        self._errors: dict[tuple[object, ...], Tensor] = {}

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Choose the largest elements, and start to gather those of all ranks."""
        total, error = bucket.buffer, self._error(bucket)
        total.add_(error)
        count = max(1, round(self._density * len(total)))
        indices = total.abs().topk(count, sorted=False).indices
        values = total[indices].to(type_on_wire(total, self._dtype))
        error.copy_(total)
        error[indices] -= values.to(total.dtype)
        size = self._transport.size
        all_indices = [torch.empty_like(indices, dtype=torch.int32) for _ in range(size)]
        all_values = [torch.empty_like(values) for _ in range(size)]
        works = [
            dist.all_gather(all_indices, indices.to(torch.int32), group=self._transport.group, async_op=True),
            dist.all_gather(all_values, values, group=self._transport.group, async_op=True),
        ]
        where = f"top-k, step {step}, bucket {bucket.number}"
        if is_gpu(values.device):
            self._transport.watchdog.watch(Collective(works[-1]), lambda: where)
        return _Gathering(works, all_indices, all_values, total, self._transport, where)

    def error(self, bucket: Bucket) -> Tensor:
        """The part of earlier gradients of `bucket` that this rank has not sent yet, [elements]."""
        return self._error(bucket)

    def forget(self, bucket: Bucket) -> None:
        """Release the error of a bucket."""
        self._errors.pop(bucket.key, None)

    def _error(self, bucket: Bucket) -> Tensor:
        key = bucket.key
        if key not in self._errors:
            self._errors[key] = torch.zeros_like(bucket.buffer)
        return self._errors[key]


class _Gathering:
    """The chosen elements of all ranks, while they are being gathered."""

    def __init__(
        self,
        works: list[dist.Work],
        indices: list[Tensor],
        values: list[Tensor],
        buffer: Tensor,
        transport: Transport,
        where: str,
    ) -> None:
        self._works, self._indices, self._values = works, indices, values
        self._buffer, self._transport, self._where = buffer, transport, where

    def wait(self) -> None:
        """Sum contributions in rank order. Indices within one rank are unique, so the result is deterministic."""
        with lost_peers(self._transport.identity.rank, self._where):
            for work in self._works:
                work.wait()
        self._buffer.zero_()
        for indices, values in zip(self._indices, self._values, strict=True):
            self._buffer.index_add_(0, indices, values.to(self._buffer.dtype))
