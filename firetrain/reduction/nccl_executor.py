"""Executes plans over NCCL, wave by wave; each wave is one group of sends and receives on a separate stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.wire import Wire
from firetrain.topology import Plan
from firetrain.topology.program import Program, Receive, Send, program
from firetrain.transport.device import end_of, issued_on, new_stream, synchronize, wait_for
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import own_group

# messages that do not begin at such a multiple are copied by slower kernels
_ALIGNED_BYTES = 16

Wave = tuple[list[Receive], list[Send]]


class NcclExecutor(Reduction):
    """Executes a plan for each bucket; on a GPU the host never waits for the device.

    NCCL runs the operations of a communicator on one stream in the order of issue, and expects the same order on both sides.
    Therefore every rank issues the messages of a wave as one `batch_isend_irecv`, in the plan's order. This also works on Gloo,
    where it is tested without a GPU; there all ranks proceed in lock step.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        self._plan, self._context, self._transport = plan, context, context.transport
        # use a separate process group for a plan of all ranks; a subgroup already has its own
        self._own = self._transport.group is None
        self._group = own_group(self._transport)
        device = self._transport.device
        if plan.pipelined:
            context.link()  # measure the link now, while all ranks are in this constructor (collective)
        self._wire = Wire(context.dtype, device)
        self._stream = new_stream(device)
        self._waves: dict[int, list[Wave]] = {}
        # the first operation on a communicator must involve all its ranks
        with self._transport.waiting(f"the first contact of the ranks of {plan.topology}"):
            dist.all_reduce(torch.zeros(1, device=device), group=self._group)
            synchronize(device)

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Compute the waves of this rank for each length."""
        for bucket in buckets:
            self._program(len(bucket))

    def plan(self, length: int) -> Plan:
        """The plan, which is the same for all lengths."""
        return self._plan

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Issue the whole plan for `bucket`, which is then summed in place over all ranks."""
        where = f"step {step}, bucket {bucket.number}: {self._plan.topology}"
        waves = self._program(len(bucket))
        ends: list[Any] = []
        with (
            issued_on(self._stream),
            lost_peers(self._transport.identity.rank, lambda: f"{where}, {_name(len(ends), waves[len(ends)])}"),
        ):
            for wave in waves:
                self._exchange(bucket.buffer, *wave)
                ends.append(end_of(self._stream))
        if ends and self._stream is not None:
            self._transport.watchdog.watch(ends[-1], lambda: f"{where}, {_unfinished(ends, waves)}")
        return Issued(end_of(self._stream))

    def close(self) -> None:
        """Destroy the process group if only this plan uses it."""
        if self._own:
            dist.destroy_process_group(self._group)

    def _program(self, length: int) -> list[Wave]:
        if length not in self._waves:
            piece = self._context.piece_elements(self._plan, length)
            mine = program(
                self._plan, self._transport.identity.rank, length, piece, _ALIGNED_BYTES // self._context.dtype.itemsize
            )
            self._waves[length] = _waves(mine)
        return self._waves[length]

    def _exchange(self, buffer: Tensor, receives: Sequence[Receive], sends: Sequence[Send]) -> None:
        operations, landed = [], []
        for number, send in enumerate(sends):
            span = buffer[send.message.start : send.message.end]
            wire = self._wire.departure(number, span)
            self._wire.depart(send, span, wire)
            operations.append(dist.P2POp(dist.isend, wire, send.message.target, self._group))
        for number, receive in enumerate(receives):
            span = buffer[receive.message.start : receive.message.end]
            landing = self._wire.landing(number, receive, span)
            operations.append(dist.P2POp(dist.irecv, landing, receive.message.source, self._group))
            landed.append((receive, span, landing))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        for receive, span, landing in landed:
            self._wire.land(receive, span, landing)


def _waves(mine: Program) -> list[Wave]:
    """The messages of a rank, grouped by wave and in order of waves."""
    waves: dict[int, Wave] = defaultdict(lambda: ([], []))
    for receive in mine.receives:
        waves[receive.message.wave][0].append(receive)
    for send in mine.sends:
        waves[send.message.wave][1].append(send)
    return [waves[number] for number in sorted(waves)]


def _name(number: int, wave: Wave) -> str:
    """The number of a wave, from 1, and the transfers of the plan that are in it."""
    receives, sends = wave
    transfers = [receive.message.transfer for receive in receives] + [send.message.transfer for send in sends]
    return f"wave {number + 1}, transfers {transfers}"


def _unfinished(ends: Sequence[Any], waves: Sequence[Wave]) -> str:
    """The first wave whose end the device has not reached."""
    number = next((number for number, end in enumerate(ends) if not end.query()), len(waves) - 1)
    return _name(number, waves[number])


class Issued:
    """A reduction that has been issued on a stream. `end`: the event at its end; None on the CPU, where it is complete."""

    def __init__(self, end: Any) -> None:
        self._end = end

    def wait(self) -> None:
        """Make the current stream wait for the reduction; the host does not wait."""
        wait_for(self._end)
