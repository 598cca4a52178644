"""Execute plans over TCP: a send leaves as soon as what it depends on has come, receives are posted ahead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

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
        self._passages: WeakKeyDictionary[Bucket, _Passage] = WeakKeyDictionary()
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
        if bucket not in self._passages:
            transport = self._wiring.transport
            steps = self._program(len(bucket))
            self._passages[bucket] = _Passage(self._plan, steps, transport, self._wire, bucket.buffer)
        run = partial(self._passages[bucket].run, f"step {step}, bucket {bucket.number}")
        return self._wiring.transport.lane.start(run, self._wire.bytes(bucket.buffer) <= _INLINE_BYTES)

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


class _Departure(NamedTuple):
    """A send: from this part of the buffer, by way of `wire`, whose memory is `data`."""

    send: Send
    part: Tensor
    wire: Tensor
    data: memoryview


class _Arrival(NamedTuple):
    """A receive, the rank's `place`-th: by way of `landing`, whose memory is `data`, into this part of the buffer."""

    place: int
    receive: Receive
    part: Tensor
    landing: Tensor
    data: memoryview


class _Line:
    """What comes from one rank, in order: `due` is the message of which `rest` is missing, None after the last."""

    def __init__(self, arrivals: Sequence[_Arrival]) -> None:
        self._upcoming = iter(arrivals)
        self.due: _Arrival | None = None
        self.rest = memoryview(b"")
        self._advance()

    def fill(self, count: int) -> int | None:
        """`count` more bytes have come; the place of the message that is complete with them, if one is."""
        self.rest = self.rest[count:]
        if self.rest or self.due is None:
            return None
        place = self.due.place
        self._advance()
        return place

    def _advance(self) -> None:
        self.due = next(self._upcoming, None)
        self.rest = self.due.data if self.due else memoryview(b"")


class _Passage:
    """One buffer's way through a program: worked out once, gone as often as one likes."""

    def __init__(self, plan: Plan, steps: Program, transport: Transport, wire: Wire, buffer: Tensor) -> None:
        self._plan, self._rank, self._mesh, self._wire = plan, transport.rank, transport.mesh, wire
        self._departures, self._arrivals = [], []
        for send in steps.sends:
            part = buffer[send.message.start : send.message.end]
            out = wire.departure(0, part)  # the system takes a copy: one place will do
            self._departures.append(_Departure(send, part, out, bytes_of(out)))
        for place, receive in enumerate(steps.receives):
            part = buffer[receive.message.start : receive.message.end]
            landing = wire.landing(place % _WINDOW, receive, part)
            self._arrivals.append(_Arrival(place, receive, part, landing, bytes_of(landing)))
        self._sources = {receive.message.source for receive in steps.receives}

    def run(self, where: str) -> None:
        """From the first message to the last; then the buffer holds the sum. `where` is told if a rank is lost."""
        self._where = where
        self._sent = self._taken = 0
        self._rest, self._full = memoryview(b""), False  # of the message that is leaving; its connection takes no more
        self._landed = bytearray(len(self._arrivals))
        self._lines = {
            source: _Line([arrival for arrival in self._arrivals if arrival.receive.message.source == source])
            for source in self._sources
        }
        while True:
            self._push()
            if self._take():
                continue  # sends may have waited for that
            if self._sent == len(self._departures) and self._taken == len(self._arrivals):
                return
            self._pull()

    def _push(self) -> None:
        """Hand over what may leave, one message after another in the plan's order, until a connection has enough."""
        while not self._full and self._may_send():
            send, part, wire, data = self._departures[self._sent]
            if not self._rest:
                self._wire.depart(send, part, wire)
                self._rest = data
            try:
                count = self._mesh.send(send.message.target, self._rest)
            except OSError as error:
                raise self._lost(send.message, error) from error
            self._rest = self._rest[count:]
            if self._rest:
                self._full = True
            else:
                self._sent += 1

    def _may_send(self) -> bool:
        return self._sent < len(self._departures) and self._departures[self._sent].send.after <= self._taken

    def _take(self) -> bool:
        """Put what has come where it belongs, in the plan's order."""
        before = self._taken
        while self._taken < len(self._arrivals) and self._landed[self._taken]:
            _, receive, part, landing, _ = self._arrivals[self._taken]
            if receive.after_sends and receive.after_sends[-1] >= self._sent:
                break
            self._wire.land(receive, part, landing)
            self._taken += 1
        return self._taken > before

    def _pull(self) -> None:
        """Wait until something can move, and take in what has come."""
        due = {
            source: line.due
            for source, line in self._lines.items()
            if line.due is not None and line.due.place < self._taken + _WINDOW
        }
        leaving = self._departures[self._sent].send.message if self._may_send() else None
        try:
            ready, self._full = self._mesh.wait(due, leaving and leaving.target)
        except OSError as error:
            awaited = min(due.values(), key=lambda arrival: arrival.place, default=None)
            raise self._lost(awaited.receive.message if awaited else leaving, error) from error
        for source in ready:
            line = self._lines[source]
            try:
                count = self._mesh.receive(source, line.rest)
            except OSError as error:
                raise self._lost(due[source].receive.message, error) from error
            if (place := line.fill(count)) is not None:
                self._landed[place] = 1

    def _lost(self, message: Message | None, error: OSError) -> LostPeer:
        assert message is not None, "a rank that waits for nothing"
        other = message.source if message.source != self._rank else message.target
        return LostPeer(
            f"rank {self._rank} lost rank {other} in {self._where}: {self._plan.topology}, transfer {message.transfer} "
            f"({self._plan.transfers[message.transfer]}; elements {message.start} to {message.end}) did not complete: "
            f"{error}"
        )
