"""The reduction by torch.distributed's all_reduce."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.errors import UserError
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.wire import Slots
from firetrain.transport import nccl_log
from firetrain.transport.device import is_gpu, nccl_version, synchronize
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport, destroy
from firetrain.transport.watchdog import Collective


class Native(Reduction):
    """The all-reduce of the transport's library, Gloo or NCCL.

    With a 16-bit wire dtype the library also adds in that dtype. With an `algorithm` NCCL uses a separate communicator, which
    is made while NCCL_ALGO is set; `facts` then reports the algorithms that NCCL used according to its log.
    """

    def __init__(self, context: Context, algorithm: str = "") -> None:
        self._transport, self._dtype = context.transport, context.dtype
        self._algorithm = algorithm
        self._group = context.transport.group
        self._sizes: set[int] = set()
        self._wires = Slots(context.transport.device)
        if algorithm and not context.transport.on_nccl:
            raise UserError(
                f"native: algorithm={algorithm} is for NCCL; {context.transport.name} has one algorithm: omit it"
            )
        if algorithm and context.transport.members:
            raise UserError(f"native: algorithm={algorithm} sums over all ranks only; among some of them omit it")
        if algorithm:
            with _environment(NCCL_ALGO=_choice(algorithm, nccl_version())):
                ranks = range(context.transport.size)
                self._group = cast(Transport, context.transport.subgroup(ranks)).group
                # NCCL reads the variable when it makes the communicator, which happens at the first use
                with context.transport.waiting(f"the first collective of native:algorithm={algorithm}"):
                    dist.all_reduce(torch.zeros(1, device=context.transport.device), group=self._group)
                    synchronize(context.transport.device)

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Start the all_reduce; on NCCL it runs on a stream of the library."""
        wire = bucket.buffer if self._dtype == torch.float32 else self._rounded(bucket)
        where = f"torch.distributed's all_reduce of step {step}, bucket {bucket.number}"
        self._sizes.add(wire.numel() * wire.element_size())
        work = dist.all_reduce(wire, group=self._group, async_op=True)
        if is_gpu(wire.device):
            self._transport.watchdog.watch(Collective(work), lambda: where)
        return _CollectiveWork(work, bucket.buffer, wire, self._transport.identity.rank, where)

    def _rounded(self, bucket: Bucket) -> Tensor:
        """The bucket in the wire dtype, in memory that its next sum uses again."""
        return self._wires.take(bucket.number, len(bucket), self._dtype).copy_(bucket.buffer)

    def facts(self) -> dict[str, Any]:
        """The given algorithm, and those that NCCL used for buckets according to its log; empty without a given algorithm."""
        return {"algorithm": self._algorithm, "used": nccl_log.used(self._sizes)} if self._algorithm else {}

    def close(self) -> None:
        """Destroy the communicator of the algorithm."""
        if self._algorithm:
            destroy(self._group)


class _CollectiveWork:
    """An all_reduce under way."""

    def __init__(self, work: dist.Work, buffer: Tensor, wire: Tensor, rank: int, where: str) -> None:
        self._work, self._buffer, self._wire = work, buffer, wire
        self._rank, self._where = rank, where

    def wait(self) -> None:
        """Wait for the sum; on NCCL the current stream waits, not the host."""
        with lost_peers(self._rank, self._where):
            self._work.wait()
        if self._wire is not self._buffer:
            self._buffer.copy_(self._wire)


def _choice(algorithm: str, version: tuple[int, ...]) -> str:
    """The value of NCCL_ALGO; NCCL before 2.24 knows no prefix for the collective.

    >>> _choice("tree", (2, 28, 9)), _choice("tree", (2, 21, 5))
    ('allreduce:tree', 'tree')
    """
    return f"allreduce:{algorithm}" if version >= (2, 24) else algorithm


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Context manager: set these environment variables, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
