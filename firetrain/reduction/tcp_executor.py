"""Executes plans over TCP; a send leaves as soon as everything that it depends on has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor

from firetrain.errors import LostPeer
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.wire import Wire
from firetrain.topology import Plan
from firetrain.topology.program import Message, Program, Receive, Send, program
from firetrain.transport.tcp import Connections, bytes_of

# number of receives posted ahead
_WINDOW = 16
# up to this size, summing a bucket takes less time than waking up a thread
_INLINE_BYTES = 256 << 10


class TcpExecutor(Reduction):
    """Executes a plan on buckets of any length, in a thread that runs during the backward pass.

    Buckets are reduced one after another, in the order in which they were started. Buckets of the same length share messages
    and scratch memory. Errors: LostPeer, which names the step, the bucket and the transfer that did not complete.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        self._plan, self._context = plan, context
        self._rank = context.transport.identity.rank
        self._wire = Wire(context.dtype, context.transport.device)
        if plan.pipelined:
            context.link()  # measure the link now, while all ranks are in this constructor (collective)
        self._programs: dict[int, Program] = {}
        self._executions: WeakKeyDictionary[Bucket, _Execution] = WeakKeyDictionary()
        context.transport.connect_to(plan.neighbours(self._rank))

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Compute the messages of this rank for each length."""
        for bucket in buckets:
            self._program(len(bucket))

    def plan(self, length: int) -> Plan:
        """The plan, which is the same for all lengths."""
        return self._plan

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Queue `bucket`, which must be in CPU memory, to be summed in place over all ranks."""
        if bucket not in self._executions:
            connections, program = self._context.transport.connections, self._program(len(bucket))
            self._executions[bucket] = _Execution(self._plan, program, connections, self._wire, bucket.buffer)
        run = partial(self._executions[bucket].run, f"step {step}, bucket {bucket.number}")
        return self._context.transport.queue.start(run, self._wire.bytes(bucket.buffer) <= _INLINE_BYTES)

    def _program(self, length: int) -> Program:
        if length not in self._programs:
            piece = self._context.piece_elements(self._plan, length)
            self._programs[length] = program(self._plan, self._rank, length, piece)
        return self._programs[length]


class _Departure(NamedTuple):
    """A send of `span` of the buffer, which is copied to `wire` first; `data` is the memory of `wire`."""

    send: Send
    span: Tensor
    wire: Tensor
    data: memoryview


class _Arrival(NamedTuple):
    """The rank's receive number `number`, into `landing`, whose memory is `data`, and from there into `span` of the buffer."""

    number: int
    receive: Receive
    span: Tensor
    landing: Tensor
    data: memoryview


class _Inbox:
    """Incoming messages of one rank, in order. `due`: the current message, None after the last; `rest`: its missing bytes."""

    def __init__(self, arrivals: Sequence[_Arrival]) -> None:
        self._upcoming = iter(arrivals)
        self.due: _Arrival | None = None
        self.rest = memoryview(b"")
        self._advance()

    def fill(self, count: int) -> int | None:
        """Note that `count` more bytes have arrived; returns the number of the message that they complete, if any."""
        self.rest = self.rest[count:]
        if self.rest or self.due is None:
            return None
        number = self.due.number
        self._advance()
        return number

    def _advance(self) -> None:
        self.due = next(self._upcoming, None)
        self.rest = self.due.data if self.due else memoryview(b"")


class _Execution:
    """A program on one buffer, which is prepared once and can run any number of times."""

    def __init__(self, plan: Plan, program: Program, connections: Connections, wire: Wire, buffer: Tensor) -> None:
        self._plan, self._rank, self._connections, self._wire = plan, program.rank, connections, wire
        self._departures, self._arrivals = [], []
        for send in program.sends:
            span = buffer[send.message.start : send.message.end]
            out = wire.departure(0, span)  # the kernel copies the data on send, so one slot is enough
            self._departures.append(_Departure(send, span, out, bytes_of(out)))
        for number, receive in enumerate(program.receives):
            span = buffer[receive.message.start : receive.message.end]
            landing = wire.landing(number % _WINDOW, receive, span)
            self._arrivals.append(_Arrival(number, receive, span, landing, bytes_of(landing)))
        self._sources = {receive.message.source for receive in program.receives}

    def run(self, where: str) -> None:
        """Sum the buffer; `where` becomes part of the error if a rank is lost."""
        self._where = where
        self._sent = self._taken = 0
        self._rest = memoryview(b"")  # the bytes that are left of the current send
        self._full = False  # whether its connection is full
        self._landed = bytearray(len(self._arrivals))
        self._inboxes = {
            source: _Inbox([arrival for arrival in self._arrivals if arrival.receive.message.source == source])
            for source in self._sources
        }
        while True:
            self._push()
            if self._take():
                continue  # sends may depend on the messages that were taken
            if self._sent == len(self._departures) and self._taken == len(self._arrivals):
                return
            self._pull()

    def _push(self) -> None:
        """Send ready messages in the plan's order until a connection is full."""
        while not self._full and self._may_send():
            send, span, wire, data = self._departures[self._sent]
            if not self._rest:
                self._wire.depart(send, span, wire)
                self._rest = data
            try:
                count = self._connections.send(send.message.target, self._rest)
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
        """Move complete messages to their places in the buffer, in the plan's order; returns whether there were any."""
        before = self._taken
        while self._taken < len(self._arrivals) and self._landed[self._taken]:
            _, receive, span, landing, _ = self._arrivals[self._taken]
            if receive.after_sends and receive.after_sends[-1] >= self._sent:
                break
            self._wire.land(receive, span, landing)
            self._taken += 1
        return self._taken > before

    def _pull(self) -> None:
        """Wait until bytes can be sent or received, and receive those that have arrived."""
        due = {
            source: inbox.due
            for source, inbox in self._inboxes.items()
            if inbox.due is not None and inbox.due.number < self._taken + _WINDOW
        }
        leaving = self._departures[self._sent].send.message if self._may_send() else None
        try:
            ready, self._full = self._connections.wait(due, leaving and leaving.target)
        except OSError as error:
            awaited = min(due.values(), key=lambda arrival: arrival.number, default=None)
            raise self._lost(awaited.receive.message if awaited else leaving, error) from error
        for source in ready:
            inbox = self._inboxes[source]
            try:
                count = self._connections.receive(source, inbox.rest)
            except OSError as error:
                raise self._lost(due[source].receive.message, error) from error
            if (number := inbox.fill(count)) is not None:
                self._landed[number] = 1

    def _lost(self, message: Message | None, error: OSError) -> LostPeer:
        assert message is not None, "internal error: no pending send or receive"
        other = message.source if message.source != self._rank else message.target
        return LostPeer(
            f"rank {self._rank} lost rank {other} in {self._where}: {self._plan.topology}, transfer {message.transfer} "
            f"({self._plan.transfers[message.transfer]}; elements {message.start} to {message.end}) did not complete: "
            f"{error}"
        )
