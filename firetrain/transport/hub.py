"""The server's end of the connections to ranks that come and go."""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from firetrain.transport.messages import FRAME, GREETING, Address, Header, packed, prepare
from firetrain.transport.tcp import bytes_of

_LONGEST_HEADER_BYTES = 1 << 24


class Joined(NamedTuple):
    """A rank has connected."""

    rank: int


class Left(NamedTuple):
    """The connection of a rank has ended."""

    rank: int
    why: str


class Arrived(NamedTuple):
    """A message of a rank. `values`: float32, in memory that the next message of this rank overwrites.

    `connection`: number of the connection, of which a rank that is started again has another.
    """

    rank: int
    header: Header
    values: Tensor
    connection: int = 0


Event = Joined | Left | Arrived


@dataclass
class _Connection:
    """The server's end of a line.

    - `rank`: -1 before the greeting. `expects`: greeting, frame, header or values; `missing`: its bytes that have
      not arrived yet. `scratch`: memory for all of these but the values. `outgoing`: what is left to send.
    """

    socket: socket.socket
    number: int = 0
    rank: int = -1
    missing: memoryview = field(default_factory=lambda: memoryview(b""))
    expects: str = "greeting"
    scratch: bytearray = field(default_factory=bytearray)
    header: Header = field(default_factory=dict)
    values_bytes: int = 0
    values: Tensor = field(default_factory=lambda: torch.empty(0))
    outgoing: deque[memoryview] = field(default_factory=deque)


class Hub:
    """The server's end of all lines. It never waits for a single rank, so that a slow one delays nobody else.

    - `address`: where it listens; at all addresses of this host if `host` is empty, and then other ranks use `name`.
    """

    def __init__(self, host: str, name: str, timeout_s: float) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._timeout_s, self._told_s = timeout_s, time.monotonic()
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address = Address(host or name, self._listener.getsockname()[1], secrets.token_hex(16))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._connections: dict[int, _Connection] = {}
        self._accepted = 0
        self._open: set[socket.socket] = set()
        self._events: deque[Event] = deque()

    @property
    def ranks(self) -> set[int]:
        """The ranks that are connected."""
        return set(self._connections)

    @property
    def has_events(self) -> bool:
        """Whether something has happened that `wait` has not returned yet."""
        return bool(self._events)

    def wait(self, limit_s: float, *, in_touch: bool = False) -> list[Event]:
        """What has happened, in order; waits for at most `limit_s` seconds until something does. Empty if nothing did.

        `in_touch`: send ranks that wait signs of life meanwhile, as `keep_in_touch` does.
        """
        deadline = time.monotonic() + limit_s
        while not self._events:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            if in_touch:
                self._show_life()
                if self._events:  # a rank is gone
                    break
            self._progress(min(left_s, self._timeout_s / 4) if in_touch else left_s)
        found, self._events = list(self._events), deque()
        return found

    def send(self, rank: int, header: Header, values: Tensor | None = None, number: int | None = None) -> None:
        """Send a message while waiting for others; `values` must not change afterwards.

        Nothing happens if the rank is gone, or if it has another connection than the one with this `number`, of which no event
        may have been handled yet.
        """
        connection = self._connections.get(rank)
        if connection is None or number not in (None, connection.number):
            return
        connection.outgoing.append(memoryview(packed(header, values)))
        if values is not None:
            connection.outgoing.append(bytes_of(values))
        self._write(connection)

    def flush(self) -> None:
        """Wait until everything has been sent, to the ranks that are still there; TimeoutError if that takes too long."""
        deadline = time.monotonic() + self._timeout_s
        while waiting := [rank for rank, one in self._connections.items() if one.outgoing]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {waiting[0]} did not receive everything within {self._timeout_s:g} s")
            self._progress(deadline - time.monotonic())

    def keep_in_touch(self) -> None:
        """Send and receive what can be, without waiting; `wait` returns the events later.

        Ranks that wait get a sign of life now and then, because they would take a long silence for this rank's death.
        """
        self._show_life()
        self._progress(0.0)

    def _show_life(self) -> None:
        if time.monotonic() - self._told_s > self._timeout_s / 4:
            self._told_s = time.monotonic()
            for rank in self.ranks:
                self.send(rank, {"works": True})

    def is_of_an_earlier_life(self, event: Arrived) -> bool:
        """Whether the rank of a message has connected again since."""
        now = self._connections.get(event.rank)
        return now is not None and now.number != event.connection

    def part_from(self, rank: int, why: str) -> None:
        """Close the connection of a rank; `wait` returns that it has left."""
        if connection := self._connections.get(rank):
            self._drop(connection, why)

    def part(self, limit_s: float = 3.0) -> None:
        """Send what is left, and read on until the ranks have closed their ends, or for `limit_s` seconds.

        What they send is lost. A line that is closed with unread messages would take the last words to its rank along.
        """
        deadline = time.monotonic() + self._timeout_s
        while any(one.outgoing for one in self._connections.values()) and (left_s := deadline - time.monotonic()) > 0:
            self._part_of(left_s)
        deadline = time.monotonic() + limit_s
        while self._connections and (left_s := deadline - time.monotonic()) > 0:
            self._part_of(left_s)

    def _part_of(self, limit_s: float) -> None:
        self._progress(limit_s)
        self._events.clear()

    def close(self) -> None:
        """Close all lines."""
        for one in (self._listener, *self._open):
            one.close()
        self._open.clear()
        self._selector.close()
        self._connections.clear()

    def _progress(self, limit_s: float) -> None:
        for key, ready in self._selector.select(limit_s):
            if key.fileobj is self._listener:
                self._accept()
                continue
            connection: _Connection = key.data
            if ready & selectors.EVENT_READ and connection.socket.fileno() >= 0:
                self._read(connection)
            if ready & selectors.EVENT_WRITE and connection.socket.fileno() >= 0:
                self._write(connection)

    def _accept(self) -> None:
        with suppress(OSError):
            found, _ = self._listener.accept()
            found.setblocking(False)
            prepare(found, self._timeout_s)
            self._accepted += 1
            connection = _Connection(found, self._accepted)
            self._expect(connection, "greeting", GREETING.size)
            self._selector.register(found, selectors.EVENT_READ, connection)
            self._open.add(found)

    def _read(self, connection: _Connection) -> None:
        try:
            while connection.missing:
                count = connection.socket.recv_into(connection.missing)
                if count == 0:
                    self._drop(connection, "its connection was closed")
                    return
                connection.missing = connection.missing[count:]
                if not connection.missing and not self._complete(connection):
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(connection, error.strerror or type(error).__name__)

    def _complete(self, connection: _Connection) -> bool:
        """Go on to what follows the bytes that were read; False if the connection is not one of a rank of this run."""
        if connection.expects == "greeting":
            return self._greeted(connection)
        if connection.expects == "frame":
            header_bytes, connection.values_bytes = FRAME.unpack(connection.scratch)
            if header_bytes > _LONGEST_HEADER_BYTES:
                self._drop(connection, f"it sent a header of {header_bytes} bytes")
                return False
            self._expect(connection, "header", header_bytes)
        elif connection.expects == "header":
            connection.header = json.loads(connection.scratch)
            if connection.values.numel() * 4 != connection.values_bytes:
                connection.values = torch.empty(connection.values_bytes // 4)
            if not connection.values_bytes:
                return self._arrived(connection)
            connection.expects, connection.missing = "values", bytes_of(connection.values)
        else:
            return self._arrived(connection)
        return True

    def _arrived(self, connection: _Connection) -> bool:
        self._events.append(Arrived(connection.rank, connection.header, connection.values, connection.number))
        self._expect(connection, "frame", FRAME.size)
        return False  # the next message waits until this one was handled

    def _greeted(self, connection: _Connection) -> bool:
        secret, rank = GREETING.unpack(connection.scratch)
        if not secrets.compare_digest(secret, bytes.fromhex(self.address.secret)):
            self._drop(connection, "")
            return False
        if before := self._connections.get(rank):  # a rank that was started again, before its end was noticed
            self._drop(before, "it was started again")
        connection.rank = rank
        self._connections[rank] = connection
        self._events.append(Joined(rank))
        self._expect(connection, "frame", FRAME.size)
        return True

    def _write(self, connection: _Connection) -> None:
        try:
            while connection.outgoing:
                count = connection.socket.send(connection.outgoing[0])
                rest = connection.outgoing.popleft()[count:]
                if rest:
                    connection.outgoing.appendleft(rest)
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(connection, error.strerror or type(error).__name__)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        self._selector.modify(connection.socket, wanted, connection)

    def _drop(self, connection: _Connection, why: str) -> None:
        self._selector.unregister(connection.socket)
        self._open.discard(connection.socket)
        connection.socket.close()
        connection.outgoing.clear()
        if self._connections.get(connection.rank) is connection:
            del self._connections[connection.rank]
            self._events.append(Left(connection.rank, why))

    @staticmethod
    def _expect(connection: _Connection, expects: str, count: int) -> None:
        connection.expects, connection.scratch = expects, bytearray(count)
        connection.missing = memoryview(connection.scratch)
