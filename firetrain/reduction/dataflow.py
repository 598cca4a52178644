"""Execute plans over TCP: a send leaves as soon as what it depends on has come, receives are posted ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from firetrain.cluster import Link
from firetrain.errors import LostPeer
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.transport import Transport
from firetrain.reduction.wire import Wire, bytes_of
from firetrain.reduction.wiring import Wiring
from firetrain.topology import Plan
from firetrain.topology.program import Message, Program, Receive, Send, program

# receives that a rank posts ahead of the one that is due
_WINDOW = 16
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
        self._link = wiring.link() if plan.pipelined else None
        self._programs: dict[int, Program] = {}
        wiring.transport.connect_to(plan.neighbours(wiring.transport.rank))

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Work out this rank's messages for each length."""
        for bucket in buckets:
            self._program(len(bucket))

    def plan(self, length: int) -> Plan:
        """The one plan."""
        return self._plan

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Queue `bucket`, on the CPU, to be summed in place over all ranks."""
        run = _Run(self._plan, self._wiring.transport, self._wire, bucket, step)
        small = self._wire.bytes(bucket.buffer) <= _INLINE_BYTES
        return self._wiring.transport.lane.start(partial(run, self._program(len(bucket))), small)

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


class _Landing:
    """A posted receive: where it lands, and what of that is still empty."""

    def __init__(self, receive: Receive, place: Tensor) -> None:
        self.receive, self.place = receive, place
        self.rest = bytes_of(place)


class _Run:
    """One bucket on its way through the plan."""

    def __init__(self, plan: Plan, transport: Transport, wire: Wire, bucket: Bucket, step: int) -> None:
        self._plan, self._rank, self._mesh, self._wire = plan, transport.rank, transport.mesh, wire
        self._buffer = bucket.buffer
        self._where = f"step {step}, bucket {bucket.number}"
        self._posted: deque[_Landing] = deque()
        self._lines: dict[int, deque[_Landing]] = {}  # by source: what is still to come from it, in order
        self._rest: memoryview | None = None  # of the message that is leaving
        self._posts = self._sent = self._taken = 0

    def __call__(self, steps: Program) -> None:
        """From the first message to the last; then the buffer holds the sum."""
        upcoming, departing = iter(steps.receives), deque(steps.sends)
        while True:
            while len(self._posted) < _WINDOW and (receive := next(upcoming, None)) is not None:
                self._post(receive)
            if not departing and not self._posted:
                return
            moved = self._push(departing)
            for source, line in self._lines.items():
                moved |= self._pull(source, line)
            if not self._take() and not moved:
                self._wait(departing)

    def _post(self, receive: Receive) -> None:
        """Make room for what will come."""
        part = self._buffer[receive.message.start : receive.message.end]
        landing = _Landing(receive, self._wire.landing(self._posts % _WINDOW, receive, part))
        self._posts += 1
        self._posted.append(landing)
        self._lines.setdefault(receive.message.source, deque()).append(landing)

    def _push(self, departing: deque[Send]) -> bool:
        """Hand over what the next send's connection takes: one after another, in the plan's order."""
        if not departing or departing[0].after > self._taken:
            return False
        send = departing[0]
        if self._rest is None:
            part = self._buffer[send.message.start : send.message.end]
            self._rest = bytes_of(self._wire.departure(0, send, part))
        try:
            count = self._mesh.send(send.message.target, self._rest)
        except OSError as error:
            raise self._lost(send.message, error) from error
        self._rest = self._rest[count:]
        if not self._rest:
            self._rest = None
            self._sent += 1
            departing.popleft()
        return count > 0

    def _pull(self, source: int, line: deque[_Landing]) -> bool:
        """Take in what has come from `source`."""
        moved = False
        while line:
            landing = line[0]
            try:
                count = self._mesh.receive(source, landing.rest)
            except OSError as error:
                raise self._lost(landing.receive.message, error) from error
            moved |= count > 0
            landing.rest = landing.rest[count:]
            if landing.rest:
                break
            line.popleft()
        return moved

    def _take(self) -> bool:
        """Put what has come where it belongs, in the plan's order."""
        before = self._taken
        while self._posted and not self._posted[0].rest:
            receive = self._posted[0].receive
            if receive.after_sends and receive.after_sends[-1] >= self._sent:
                break
            self._wire.land(receive, self._buffer[receive.message.start : receive.message.end], self._posted[0].place)
            self._posted.popleft()
            self._taken += 1
        return self._taken > before

    def _wait(self, departing: deque[Send]) -> None:
        sources = [source for source, line in self._lines.items() if line]
        leaving = departing[0].message if departing and departing[0].after <= self._taken else None
        try:
            self._mesh.wait(sources, [] if leaving is None else [leaving.target])
        except OSError as error:
            awaited = next(landing.receive.message for landing in self._posted if landing.rest)
            raise self._lost(awaited, error) from error

    def _lost(self, message: Message, error: OSError) -> LostPeer:
        other = message.source if message.source != self._rank else message.target
        return LostPeer(
            f"rank {self._rank} lost rank {other} in {self._where}: {self._plan.topology}, transfer {message.transfer} "
            f"({self._plan.transfers[message.transfer]}; elements {message.start} to {message.end}) did not complete: "
            f"{error}"
        )
