"""Execute plans over NCCL: wave by wave, each wave one group of sends and receives, on a stream of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.reduction.dataflow import piece_elements
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.transport import lost_peers
from firetrain.reduction.wire import Wire
from firetrain.reduction.wiring import Wiring
from firetrain.topology import Plan
from firetrain.topology.program import Program, Receive, Send, program

Wave = tuple[list[Receive], list[Send]]


class Rounds(Reduction):
    """Runs one plan over and over; on a GPU nothing here waits for the device.

    NCCL puts the operations of one communicator on one stream, in the order of issue, and asks for the same order on both
    sides: a wave's messages are issued as one `batch_isend_irecv`, in the plan's order, on every rank. Works on Gloo
    too, in lock step, which is how it is tested without a GPU. `members` are the ranks that the plan's numbers stand for (all of
    them, if not given) and `group` is their process group.
    """

    def __init__(
        self, plan: Plan, wiring: Wiring, members: Sequence[int] = (), group: dist.ProcessGroup | None = None
    ) -> None:
        self._plan, self._transport = plan, wiring.transport
        self._members = tuple(members) or tuple(range(plan.ranks))
        self._own = group is None
        self._group = group or dist.new_group()
        device = wiring.transport.device
        self._link = wiring.link() if plan.pipelined else None
        self._wire = Wire(wiring.dtype, device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._waves: dict[int, list[Wave]] = {}
        # the first operation on a communicator must involve all its ranks
        dist.all_reduce(torch.zeros(1, device=device), group=self._group)

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Work out this rank's waves for each length."""
        for bucket in buckets:
            self._program(len(bucket))

    def plan(self, length: int) -> Plan:
        """The one plan."""
        return self._plan

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Issue the whole plan for `bucket`, on this rank's device, to be summed in place over all ranks."""
        where = f"step {step}, bucket {bucket.number}: {self._plan.topology}"
        waves = self._program(len(bucket))
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            for number, (receives, sends) in enumerate(waves):
                transfers = [part.message.transfer for part in receives] + [part.message.transfer for part in sends]
                with lost_peers(self._transport.rank, f"{where}, wave {number + 1}, transfers {transfers}"):
                    self._exchange(bucket.buffer, receives, sends)
        return Issued(self._stream)

    def close(self) -> None:
        """Give up the process group, if it was made for this."""
        if self._own:
            dist.destroy_process_group(self._group)

    def _program(self, length: int) -> list[Wave]:
        if length not in self._waves:
            piece = piece_elements(self._plan, self._link, length, self._wire.dtype.itemsize)
            mine = program(self._plan, self._members.index(self._transport.rank), length, piece)
            self._waves[length] = _waves(mine)
        return self._waves[length]

    def _exchange(self, buffer: Tensor, receives: Sequence[Receive], sends: Sequence[Send]) -> None:
        operations, landed = [], []
        for number, send in enumerate(sends):
            part = buffer[send.message.start : send.message.end]
            wire = self._wire.departure(number, part)
            self._wire.depart(send, part, wire)
            operations.append(dist.P2POp(dist.isend, wire, self._members[send.message.target], self._group))
        for number, receive in enumerate(receives):
            part = buffer[receive.message.start : receive.message.end]
            place = self._wire.landing(number, receive, part)
            operations.append(dist.P2POp(dist.irecv, place, self._members[receive.message.source], self._group))
            landed.append((receive, part, place))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for receive, part, place in landed:
            self._wire.land(receive, part, place)


def _waves(mine: Program) -> list[Wave]:
    """A rank's messages, grouped by wave."""
    waves: dict[int, Wave] = defaultdict(lambda: ([], []))
    for receive in mine.receives:
        waves[receive.message.wave][0].append(receive)
    for send in mine.sends:
        waves[send.message.wave][1].append(send)
    return [waves[number] for number in sorted(waves)]


class Issued:
    """A plan on its stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def wait(self) -> None:
        """Let the current stream wait for the plan's; the host does not wait."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
