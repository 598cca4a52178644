"""Messages over TCP between a server and ranks that come and go: a small header, and numbers."""

from __future__ import annotations

import json
import select
import socket
import struct
from typing import Any, NamedTuple

from torch import Tensor

from firetrain.transport.tcp import bytes_of

# a connection begins with the secret of the run, and the number of the rank
GREETING = struct.Struct("!16sI")
# bytes of the header (JSON), and bytes of the numbers
FRAME = struct.Struct("!IQ")
# TCP asks a silent host whether it is still there after so many seconds, and gives up after so many questions
_SILENT_S, _ASK_EVERY_S, _QUESTIONS = 30, 10, 3

Header = dict[str, Any]


class Address(NamedTuple):
    """Where a server listens, and the secret (hexadecimal) by which the ranks of a run are known."""

    host: str
    port: int
    secret: str


class Line:
    """A rank's connection to a server. Every call waits until it is done; OSError if the server is gone or silent."""

    def __init__(self, rank: int, address: Address, timeout_s: float) -> None:
        self._socket = socket.create_connection((address.host, address.port), timeout_s)
        prepare(self._socket, timeout_s)
        self._socket.sendall(GREETING.pack(bytes.fromhex(address.secret), rank))

    def send(self, header: Header, values: Tensor | None = None) -> None:
        """Send a message; `values`: a contiguous CPU tensor."""
        self._socket.sendall(packed(header, values))
        if values is not None:
            self._socket.sendall(bytes_of(values))

    def receive(self, into: Tensor) -> Header:
        """Receive a message: its numbers into the first part of `into` (float32 on the CPU). Returns its header."""
        header_bytes, values_bytes = FRAME.unpack(self._exactly(FRAME.size))
        header: Header = json.loads(self._exactly(header_bytes))
        if values_bytes > into.numel() * into.element_size():
            raise ConnectionError(f"the server has sent {values_bytes} bytes that were not asked for")
        if values_bytes:
            self._fill(bytes_of(into)[:values_bytes])
        return header

    def has_message(self) -> bool:
        """Whether there is something to receive, or the server is gone."""
        look = select.poll()  # unlike select, for any number of open files
        look.register(self._socket, select.POLLIN)
        return bool(look.poll(0))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _exactly(self, count: int) -> bytearray:
        found = bytearray(count)
        self._fill(memoryview(found))
        return found

    def _fill(self, rest: memoryview) -> None:
        while rest:
            count = self._socket.recv_into(rest)
            if count == 0:
                raise ConnectionError("the server has closed the connection")
            rest = rest[count:]


def packed(header: Header, values: Tensor | None) -> bytes:
    """The first bytes of a message, which its numbers follow."""
    text = json.dumps(header).encode()
    return FRAME.pack(len(text), 0 if values is None else values.numel() * values.element_size()) + text


def prepare(connection: socket.socket, timeout_s: float) -> None:
    """Send small messages at once, and notice a host that has died, or that takes nothing for `timeout_s`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _QUESTIONS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1e3))
