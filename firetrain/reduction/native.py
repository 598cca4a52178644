"""torch.distributed's own all_reduce."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from firetrain.reduction.interface import Pending
from firetrain.reduction.transport import Transport, lost_peers


class Native:
    """What the transport's library does by itself: Gloo's ring, or whatever NCCL chooses."""

    def __init__(self, transport: Transport) -> None:
        self._rank = transport.rank

    def start(self, buffer: Tensor) -> Pending:
        """Begin all_reduce; on NCCL it runs on the library's own stream."""
        return _Work(dist.all_reduce(buffer, async_op=True), self._rank)

    def close(self) -> None:
        """Nothing is held."""


class _Work:
    """An all_reduce under way."""

    def __init__(self, work: dist.Work, rank: int) -> None:
        self._work = work
        self._rank = rank

    def wait(self) -> None:
        """Until the sum is there; on NCCL the current stream waits, not the host."""
        with lost_peers(self._rank, "torch.distributed's all_reduce"):
            self._work.wait()
