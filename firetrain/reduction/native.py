"""torch.distributed's own all_reduce."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.errors import UserError
from firetrain.reduction import nccl_log
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.transport import lost_peers
from firetrain.reduction.wiring import Wiring


class Native(Reduction):
    """What the transport's library does by itself.

    With a wire dtype of half the bytes the library adds in it too. With an `algorithm` NCCL gets a communicator of its own,
    made while NCCL_ALGO says so; `facts` tells what NCCL's log says it used.
    """

    def __init__(self, wiring: Wiring, algorithm: str = "") -> None:
        self._transport, self._dtype = wiring.transport, wiring.dtype
        self._algorithm = algorithm
        self._group: dist.ProcessGroup | None = None
        if algorithm and wiring.transport.name != "nccl":
            raise UserError(
                f"native: algorithm={algorithm} is for NCCL; {wiring.transport.name} has one algorithm, leave it away"
            )
        if algorithm:
            with _environment(NCCL_ALGO=f"allreduce:{algorithm}"):
                self._group = dist.new_group()
                # NCCL reads the variable when the communicator is made, which is at its first use
                dist.all_reduce(torch.zeros(1, device=wiring.transport.device), group=self._group)
                torch.cuda.synchronize()

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Begin all_reduce; on NCCL it runs on the library's own stream."""
        wire = bucket.buffer if self._dtype == torch.float32 else bucket.buffer.to(self._dtype)
        where = f"torch.distributed's all_reduce of step {step}, bucket {bucket.number}"
        return _Work(
            dist.all_reduce(wire, group=self._group, async_op=True), bucket.buffer, wire, self._transport.rank, where
        )

    def facts(self) -> dict[str, Any]:
        """The algorithm asked for and those that NCCL says it used."""
        return {"algorithm": self._algorithm, "used": nccl_log.used()} if self._algorithm else {}


class _Work:
    """An all_reduce under way."""

    def __init__(self, work: dist.Work, buffer: Tensor, wire: Tensor, rank: int, where: str) -> None:
        self._work, self._buffer, self._wire = work, buffer, wire
        self._rank, self._where = rank, where

    def wait(self) -> None:
        """Until the sum is there; on NCCL the current stream waits, not the host."""
        with lost_peers(self._rank, self._where):
            self._work.wait()
        if self._wire is not self._buffer:
            self._buffer.copy_(self._wire)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """With these variables set; as they were afterwards."""
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
