"""TCP connections between ranks, with which plans are executed on the CPU.

torch's Gloo passes every message to its own threads, which costs a few hundred microseconds of processor time per message. Here
the thread that needs a message reads the socket itself (results/LOG.md has measurements of both).
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address

import torch
from torch import Tensor

from firetrain.errors import FiretrainError

# limit of unsent bytes per connection, so that a later message to another rank does not compete for the link
_UNSENT_BYTES = 128 << 10
_SIOCGIFADDR = 0x8915
_GREETING = struct.Struct("!16sI")
# handshake timeout: an unknown client that sends nothing must not block the ranks
_GREETING_LIMIT_S = 5.0


class Connections:
    """The TCP connections of one rank to other ranks, opened on request.

    Between two ranks bytes arrive in the order of sending. Messages have no header, because both sides know the next message
    from the plan. Reads and writes do not block; `wait` does. Errors are OSErrors that name the rank and the cause.

    The rank listens at `address`. If `address` is empty it listens at all addresses of this host, and other ranks reach it by
    the host's `name`. Ranks identify each other by `secret` (16 bytes).
    """

    def __init__(self, rank: int, timeout_s: float, address: str, name: str, secret: bytes) -> None:
        self._rank, self._timeout_s, self._secret = rank, timeout_s, secret
        self._sockets: dict[int, socket.socket] = {}
        self._peers: dict[int, int] = {}  # by file number
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self.address: tuple[str, int] = (address or name, self._listener.getsockname()[1])

    def connect(self, peers: Iterable[int], addresses: Mapping[int, tuple[str, int]]) -> None:
        """Open the connections to `peers` that are not open yet. `addresses`: host and port of each rank.

        Collective call; both ranks of a pair must request the connection. The higher rank listens. The kernel accepts
        connections, so no order of calls can deadlock.
        """
        new = sorted(set(peers) - set(self._sockets))
        for peer in (peer for peer in new if peer > self._rank):
            connection = socket.create_connection(addresses[peer], self._timeout_s)
            connection.sendall(_GREETING.pack(self._secret, self._rank))
            self._keep(peer, connection)
        missing = {peer for peer in new if peer < self._rank}
        self._listener.settimeout(self._timeout_s)
        while missing:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                raise TimeoutError(f"no connection came from {_ranks(missing)} within {self._timeout_s:g} s") from None
            caller = self._greeted(connection)
            if caller in missing:
                missing.remove(caller)
                self._keep(caller, connection)
            else:
                connection.close()  # not one of the ranks

    def send(self, peer: int, data: memoryview) -> int:
        """Send a part of `data`; returns the number of bytes that the system accepted, 0 if the connection is full."""
        try:
            return self._sockets[peer].send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionError(f"rank {peer} is gone ({error.strerror})") from error

    def receive(self, peer: int, target: memoryview) -> int:
        """Receive into `target`, which is not empty; returns the number of bytes received, 0 if there are none yet."""
        try:
            count = self._sockets[peer].recv_into(target)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionError(f"rank {peer} is gone ({error.strerror})") from error
        if count == 0:
            raise ConnectionError(f"rank {peer} has closed its connection")
        return count

    def wait(self, sources: Collection[int], target: int | None) -> tuple[list[int], bool]:
        """Wait until bytes have arrived from one of `sources`, or the connection to `target` accepts more.

        Returns the sources from which bytes have arrived, and whether the connection to `target` is still full. TimeoutError
        if nothing happens within the time limit.
        """
        poll = select.poll()
        for peer in sources:
            poll.register(self._sockets[peer], select.POLLIN)
        if target is not None:
            poll.register(self._sockets[target], select.POLLOUT | (select.POLLIN if target in sources else 0))
        events = {self._peers[file]: event for file, event in poll.poll(self._timeout_s * 1e3)}
        if not events:
            raise TimeoutError(f"nothing moved for {self._timeout_s:g} s")
        # all other events than POLLOUT must be read: bytes, the end of the connection or an error
        ready = [peer for peer, event in events.items() if event != select.POLLOUT and peer in sources]
        return ready, target is not None and not events.get(target, 0) & ~select.POLLIN

    def exchange(self, send: tuple[int, memoryview] | None, receive: tuple[int, memoryview] | None) -> None:
        """Send (rank, data) completely while receiving into (rank, landing) completely; either may be None."""
        target, data = send or (None, memoryview(b""))
        source, landing = receive or (None, memoryview(b""))
        while True:
            if target is not None and data:
                data = data[self.send(target, data) :]
            if not data and not landing:
                return
            ready, _ = self.wait([source] if source is not None and landing else [], target if data else None)
            for peer in ready:
                landing = landing[self.receive(peer, landing) :]

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._sockets.values(), self._listener):
            connection.close()

    def _keep(self, peer: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        connection.setblocking(False)
        self._sockets[peer] = connection
        self._peers[connection.fileno()] = peer

    def _greeted(self, connection: socket.socket) -> int:
        """The rank that has connected; -1 if the client does not know the secret."""
        connection.settimeout(min(_GREETING_LIMIT_S, self._timeout_s))
        with suppress(OSError):
            greeting = connection.recv(_GREETING.size, socket.MSG_WAITALL)
            if len(greeting) == _GREETING.size:
                secret, rank = _GREETING.unpack(greeting)
                return int(rank) if secret == self._secret else -1
        return -1


def bytes_of(numbers: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without copying."""
    return memoryview(numbers.view(torch.uint8).numpy())  # type: ignore[arg-type]  # numpy's arrays are buffers


def own_address(meeting_host: str, alone: bool) -> str:
    """The address at which other ranks reach this one.

    It is that of the interface GLOO_SOCKET_IFNAME, as in torch, or that of the route to the host of rank 0. Empty if the host
    name resolves only to loopback (Debian's default). `alone`: all ranks are on this node. FiretrainError if the interface has
    no address.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                entry = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            except OSError as error:
                raise FiretrainError(
                    f"GLOO_SOCKET_IFNAME names the interface {interface}, which has no IPv4 address here "
                    f"({error.strerror}); `ip -br address` lists all interfaces"
                ) from None
        return socket.inet_ntoa(entry[20:24])
    if alone:
        return "127.0.0.1"
    family, _, _, _, address = socket.getaddrinfo(meeting_host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing, but selects the route
        found = str(probe.getsockname()[0])
    return "" if ip_address(found).is_loopback else found


def _ranks(ranks: Iterable[int]) -> str:
    return "ranks " + ", ".join(map(str, sorted(ranks)))
