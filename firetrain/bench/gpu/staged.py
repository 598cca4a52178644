"""Reductions of buckets on a GPU through the host and Gloo, for ranks that share a GPU if NCCL refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.transport.device import is_gpu, synchronize


def make_reduction(name: str, context: Context) -> Reduction:
    """The reduction on the transport's device, or on the host if that is a GPU without NCCL."""
    staged = is_gpu(context.transport.device) and not context.transport.on_nccl
    return Staged(name, context) if staged else find_reduction(name, context)


class Staged(Reduction):
    """Copies each bucket to the host, reduces it there, and copies the sum back; the host waits for the device."""

    def __init__(self, name: str, context: Context) -> None:
        on_host = replace(context.transport, device=torch.device("cpu"))
        self._reduction = find_reduction(name, replace(context, transport=on_host))
        self._on_host: dict[Bucket, Bucket] = {}

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Allocate the host's buffers."""
        self._on_host = {one: replace(one, buffer=torch.empty(len(one), dtype=one.buffer.dtype)) for one in buckets}
        self._reduction.prepare(list(self._on_host.values()))

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Start to sum the bucket, which must be prepared."""
        host = self._on_host[bucket]
        host.buffer.copy_(bucket.buffer)
        return _StagedSum(self._reduction.start(host, step), bucket, host)

    def close(self) -> None:
        """Close the reduction on the host."""
        self._reduction.close()


class _StagedSum:
    """A bucket whose copy on the host is being reduced."""

    def __init__(self, pending: Pending, bucket: Bucket, host: Bucket) -> None:
        self._pending, self._bucket, self._host = pending, bucket, host

    def wait(self) -> None:
        """Wait for the sum, and copy it to the device."""
        self._pending.wait()
        self._bucket.buffer.copy_(self._host.buffer)
        synchronize(self._bucket.buffer.device)
