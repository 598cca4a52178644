"""Execute plans over NCCL: round by round, each round one group of sends and receives, on a stream of its own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.reduction.interface import Pending
from firetrain.reduction.transport import Transport, lost_peers
from firetrain.topology import Plan


class Rounds:
    """Runs one plan over and over; on a GPU nothing here waits for the device.

    NCCL puts the operations of one communicator on one stream, in the order of issue, and asks for the same order on both
    sides: a round's transfers are issued as one `batch_isend_irecv`, in the plan's order, on every rank. Works on Gloo
    too, in lock step, which is how it is tested without a GPU.
    """

    def __init__(self, plan: Plan, transport: Transport) -> None:
        self._plan = plan
        self._transport = transport
        rank = transport.rank
        mine = [[i for i in indices if rank in plan.transfers[i][:2]] for indices in plan.rounds()]
        self._rounds = [indices for indices in mine if indices]
        self._group = dist.new_group()
        on_gpu = transport.device.type == "cuda"
        self._stream = torch.cuda.Stream(transport.device) if on_gpu else None
        self._scratch: dict[tuple[int, int], Tensor] = {}
        # the first operation on a communicator must involve all its ranks
        dist.all_reduce(torch.zeros(1, device=transport.device), group=self._group)

    def start(self, buffer: Tensor) -> Pending:
        """Issue the whole plan for `buffer`, float32 on this rank's device, to be summed in place over all ranks."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            for indices in self._rounds:
                with lost_peers(self._transport.rank, f"{self._plan.topology}, transfers {indices}"):
                    self._round(buffer, indices)
        return _Issued(self._stream)

    def close(self) -> None:
        """Nothing is held but the stream."""

    def _round(self, buffer: Tensor, indices: list[int]) -> None:
        operations, received = [], []
        for index in indices:
            source, target, chunk, adds = self._plan.transfers[index]
            start, end = self._plan.bounds(chunk, len(buffer))
            if start == end:
                continue
            part = buffer[start:end]
            if source == self._transport.rank:
                operations.append(dist.P2POp(dist.isend, part, target, self._group))
            else:
                place = self._place(len(buffer), index, part) if adds else part
                operations.append(dist.P2POp(dist.irecv, place, source, self._group))
                received += [(part, place)] if adds else []
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
        for part, place in received:
            part.add_(place)

    def _place(self, length: int, index: int, part: Tensor) -> Tensor:
        key = (length, index)
        if key not in self._scratch:
            self._scratch[key] = torch.empty_like(part)
        return self._scratch[key]


class _Issued:
    """A plan on its stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def wait(self) -> None:
        """Let the current stream wait for the plan's; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
