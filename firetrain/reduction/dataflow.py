"""Execute plans over Gloo: a send leaves as soon as what it depends on has come, receives are posted ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch import Tensor

from firetrain.cluster import Link
from firetrain.errors import LostPeer
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.transport import Transport
from firetrain.reduction.wire import Wire
from firetrain.reduction.wiring import Wiring
from firetrain.topology import Plan
from firetrain.topology.program import WINDOW, Message, Program, Receive, Send, program

# what a rank hands to the network before earlier sends are out: several at once would share the link, and the one that
# is needed first would come late
_IN_FLIGHT_BYTES = 1 << 20
# a bucket of this size takes less time than waking a thread for it is worth
_INLINE_BYTES = 256 << 10


class Dataflow(Reduction):
    """Runs one plan over and over on buffers of any length, each rank in a thread of its own beside backward.

    Buckets are reduced one after another in the order in which they were started; those of one length use the same messages
    and scratch memory each time. Errors: LostPeer, which names the step, the bucket and the transfer that did not come.
    """

    def __init__(self, plan: Plan, wiring: Wiring) -> None:
        self._plan, self._wiring = plan, wiring
        self._wire = Wire(wiring.dtype, wiring.transport.device)
        # two process groups, two sockets between each pair: both directions at once do not wait for each other
        self._groups = (dist.new_group(), dist.new_group())
        self._link = wiring.link() if plan.pipelined else None
        self._programs: dict[int, Program] = {}
        self._latest: _Turn | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reduction")

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Work out this rank's messages for each length."""
        for bucket in buckets:
            self._program(len(bucket))

    def plan(self, length: int) -> Plan:
        """The one plan."""
        return self._plan

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Queue `bucket`, on the CPU, to be summed in place over all ranks."""
        steps = self._program(len(bucket))
        if self._latest is not None:
            self._latest.submit()
        run = _Run(self._plan, self._wiring.transport, self._wire, self._groups, bucket, step)
        turn = _Turn(self._thread, partial(run, steps), self._latest)
        if self._wire.bytes(bucket.buffer) > _INLINE_BYTES:
            turn.submit()
        self._latest = turn
        return turn

    def close(self) -> None:
        """End the thread and close the sockets; what is still queued is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        for group in self._groups:
            dist.destroy_process_group(group)

    def _program(self, length: int) -> Program:
        if length not in self._programs:
            piece = piece_elements(self._plan, self._link, length, self._wire.dtype.itemsize)
            self._programs[length] = program(self._plan, self._wiring.transport.rank, length, piece)
        return self._programs[length]


def piece_elements(plan: Plan, link: Link | None, length: int, element_bytes: int) -> int:
    """Into pieces of how many elements to cut the chunks of a buffer of `length` elements; no link: not at all."""
    if link is None:
        return length
    return link.piece_bytes(length * element_bytes / plan.chunks, plan.depth) // element_bytes


class _Run:
    """One bucket on its way through the plan."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        wire: Wire,
        groups: tuple[dist.ProcessGroup, dist.ProcessGroup],
        bucket: Bucket,
        step: int,
    ) -> None:
        self._plan, self._transport, self._wire, self._groups = plan, transport, wire, groups
        self._limit = timedelta(seconds=transport.timeout_s)
        self._buffer = bucket.buffer
        self._where = f"step {step}, bucket {bucket.number}"
        self._posted: deque[tuple[Receive, Tensor, dist.Work]] = deque()
        self._out: dict[int, tuple[Message, dist.Work]] = {}  # by the send's number
        self._out_bytes = 0
        self._received = self._sent = 0

    def __call__(self, steps: Program) -> None:
        """From the first message to the last; then the buffer holds the sum."""
        upcoming, departing = iter(steps.receives), deque(steps.sends)
        for count in range(len(steps.receives) + 1):
            while len(self._posted) < WINDOW and (receive := next(upcoming, None)) is not None:
                self._post(receive)
            while departing and departing[0].after <= count:
                self._send(departing.popleft())
            if self._posted:
                self._take()
        for number in list(self._out):
            self._gone(number)

    def _post(self, receive: Receive) -> None:
        """Tell the transport where to put what will come."""
        message = receive.message
        part = self._buffer[message.start : message.end]
        # one slot more than receives are posted: the one that is being dealt with
        place = self._wire.landing(self._received % (WINDOW + 1), receive, part)
        self._received += 1
        work = self._group(message).recv([place], message.source, message.tag)
        self._posted.append((receive, place, work))

    def _send(self, send: Send) -> None:
        """Hand over a message, once the link has little else to do."""
        message = send.message
        part = self._buffer[message.start : message.end]
        size = self._wire.bytes(part)
        while self._out and (self._out_bytes + size > _IN_FLIGHT_BYTES or len(self._out) == WINDOW):
            self._gone(next(iter(self._out)))
        wire = self._wire.departure(self._sent % WINDOW, send, part)
        self._out[self._sent] = message, self._group(message).send([wire], message.target, message.tag)
        self._sent += 1
        self._out_bytes += size

    def _take(self) -> None:
        """Wait for the next message and put it where it belongs."""
        receive, landed, work = self._posted.popleft()
        self._wait(work, receive.message)
        if not self._wire.rounds:  # else what is under way is a copy
            for number in receive.after_sends:
                if number in self._out:
                    self._gone(number)
        part = self._buffer[receive.message.start : receive.message.end]
        self._wire.land(receive, part, landed)

    def _gone(self, number: int) -> None:
        message, work = self._out.pop(number)  # Gloo's sends can be waited for only once
        self._wait(work, message)
        self._out_bytes -= (message.end - message.start) * self._wire.dtype.itemsize

    def _group(self, message: Message) -> dist.ProcessGroup:
        return self._groups[message.source < message.target]

    def _wait(self, work: dist.Work, message: Message) -> None:
        try:
            work.wait(self._limit)
        except RuntimeError as error:
            rank = self._transport.rank
            other = message.source if message.source != rank else message.target
            raise LostPeer(
                f"rank {rank} lost rank {other} in {self._where}: {self._plan.topology}, transfer {message.transfer} "
                f"({self._plan.transfers[message.transfer]}; elements {message.start} to {message.end}) did not complete "
                f"within {self._transport.timeout_s:g} s: {str(error).splitlines()[0]}"
            ) from error


class _Turn:
    """A bucket's turn. A small one that nobody follows runs in the thread that waits for it, which saves waking another."""

    def __init__(self, thread: Executor, run: Callable[[], None], before: _Turn | None) -> None:
        self._thread, self._run = thread, run
        self._before = before
        self._future: Future[None] | None = None

    def submit(self) -> None:
        """Leave it to the thread."""
        if self._future is None:
            self._before, self._future = None, self._thread.submit(self._run)

    def wait(self) -> None:
        """Until the buffer holds the sum; raises what went wrong."""
        if self._future is None:
            if self._before is not None:
                self._before.wait()
            self._before, self._future = None, Future()
            try:
                self._future.set_result(self._run())
            except BaseException as error:
                self._future.set_exception(error)
        self._future.result()
