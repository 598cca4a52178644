"""Execute plans over Gloo: a send leaves as soon as what it depends on has come, receives are posted ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.errors import LostPeer
from firetrain.reduction.interface import Pending
from firetrain.reduction.program import Program, Receive, program
from firetrain.reduction.transport import Transport
from firetrain.topology import Plan

WINDOW = 16


class Dataflow:
    """Runs one plan over and over on buffers of any length, each rank in a thread of its own beside backward.

    Buffers are reduced one after another in the order in which they were started. Errors: LostPeer, which names the
    transfer that did not come.
    """

    def __init__(self, plan: Plan, transport: Transport) -> None:
        self._plan = plan
        self._transport = transport
        self._limit = timedelta(seconds=transport.timeout_s)
        # two process groups, two sockets between each pair: both directions at once do not wait for each other
        self._up, self._down = dist.new_group(), dist.new_group()
        self._programs: dict[int, Program] = {}
        self._scratch = torch.empty(0)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reduction")

    def start(self, buffer: Tensor) -> Pending:
        """Queue `buffer`, float32 on the CPU, to be summed in place over all ranks."""
        return _Queued(self._thread.submit(self._run, buffer))

    def close(self) -> None:
        """End the thread; what is still queued is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, buffer: Tensor) -> None:
        steps = self._program(len(buffer))
        slots = self._slots(buffer)
        works: dict[int, dist.Work] = {}
        posted: deque[tuple[Tensor, dist.Work]] = deque()
        upcoming = iter(steps.receives)
        for count in range(len(steps.receives) + 1):
            self._post(upcoming, posted, buffer, slots)
            for send in steps.sends[count]:
                works[send.number] = self._send(buffer, send.number)
            if count < len(steps.receives):
                receive = steps.receives[count]
                landed, work = posted.popleft()
                self._wait(work, receive.number)
                for index in receive.after_sends:
                    if index in works:  # Gloo's sends can be waited for only once
                        self._wait(works.pop(index), index)
                self._take(buffer, receive, landed)
        for index, work in works.items():
            self._wait(work, index)

    def _program(self, length: int) -> Program:
        if length not in self._programs:
            self._programs[length] = program(self._plan, self._transport.rank, length)
        return self._programs[length]

    def _slots(self, buffer: Tensor) -> Iterator[Tensor]:
        """Scratch for WINDOW receives, used in turn."""
        longest = -(-len(buffer) // self._plan.chunks)
        if self._scratch.numel() < WINDOW * longest:
            self._scratch = torch.empty(WINDOW * longest, dtype=buffer.dtype)
        slots = self._scratch[: WINDOW * longest].view(WINDOW, longest)
        return (slots[number % WINDOW] for number in range(len(self._plan.transfers)))

    def _post(
        self,
        upcoming: Iterator[Receive],
        posted: deque[tuple[Tensor, dist.Work]],
        buffer: Tensor,
        slots: Iterator[Tensor],
    ) -> None:
        while len(posted) < WINDOW and (receive := next(upcoming, None)) is not None:
            start, end = self._plan.bounds(receive.chunk, len(buffer))
            place = buffer[start:end] if receive.in_place else next(slots)[: end - start]
            group = self._up if receive.source < self._transport.rank else self._down
            work = dist.irecv(place, receive.source, group=group, tag=receive.number)
            assert work is not None
            posted.append((place, work))

    def _send(self, buffer: Tensor, index: int) -> dist.Work:
        transfer = self._plan.transfers[index]
        start, end = self._plan.bounds(transfer.chunk, len(buffer))
        group = self._up if transfer.source < transfer.target else self._down
        work = dist.isend(buffer[start:end], transfer.target, group=group, tag=index)
        assert work is not None
        return work

    def _take(self, buffer: Tensor, receive: Receive, landed: Tensor) -> None:
        start, end = self._plan.bounds(receive.chunk, len(buffer))
        if receive.adds:
            buffer[start:end].add_(landed)
        elif not receive.in_place:
            buffer[start:end].copy_(landed)

    def _wait(self, work: dist.Work, index: int) -> None:
        try:
            work.wait(self._limit)
        except RuntimeError as error:
            transfer = self._plan.transfers[index]
            raise LostPeer(
                f"rank {self._transport.rank}: {self._plan.topology}, transfer {index} ({transfer}) did not complete "
                f"within {self._transport.timeout_s:g} s: {str(error).splitlines()[0]}"
            ) from error


class _Queued:
    """A buffer in the thread's queue."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        """Until the buffer holds the sum; raises what went wrong in the thread."""
        self._future.result()
