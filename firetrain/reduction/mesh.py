"""TCP connections between ranks, over which plans travel on the CPU.

torch's Gloo hands every message to threads of its own, which costs a few hundred microseconds of processor time each; here
the thread that needs a message reads its socket itself (both measured: results/LOG.md).
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from collections.abc import Collection, Iterable
from contextlib import suppress
from ipaddress import ip_address

from firetrain.errors import FiretrainError

# what a connection holds unsent: more would make a later message to somebody else share the link with it
_UNSENT_BYTES = 128 << 10
_SIOCGIFADDR = 0x8915
_GREETING = struct.Struct("!16sI")
# ranks greet as soon as they have connected; a stranger who says nothing should not hold them up
_GREETING_LIMIT_S = 5.0


class Mesh:
    """One rank's connections to other ranks, opened when asked for; between two ranks bytes arrive in the order of sending.

    It listens at `address`, or, if that is empty, at all that this host has, where others reach it by `name`; `secret` is
    what the ranks know each other by.
    No message has a head: both sides know from the plan what comes next. Reads and writes do not block; `wait` does. Errors
    are OSErrors that say what happened to which rank.
    """

    def __init__(self, rank: int, timeout_s: float, address: str, name: str, secret: bytes) -> None:
        self._rank, self._timeout_s, self._secret = rank, timeout_s, secret
        self._sockets: dict[int, socket.socket] = {}
        self._peers: dict[int, int] = {}  # by file number
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self.place: tuple[str, int] = (address or name, self._listener.getsockname()[1])

    def connect(self, peers: Iterable[int], places: list[tuple[str, int]]) -> None:
        """Open the connections to `peers` that are not there yet. All ranks call it together, for pairs that agree.

        The higher rank listens: its system accepts on its behalf, so that no order of calls can block.
        """
        new = sorted(set(peers) - set(self._sockets))
        for peer in (peer for peer in new if peer > self._rank):
            connection = socket.create_connection(places[peer], self._timeout_s)
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
                connection.close()  # a stranger

    def send(self, peer: int, data: memoryview) -> int:
        """How many bytes of `data` the system took; 0 if it has enough."""
        try:
            return self._sockets[peer].send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionError(f"rank {peer} is gone ({error.strerror})") from error

    def receive(self, peer: int, place: memoryview) -> int:
        """How many bytes have come into `place`, which is not empty; 0 if there are none."""
        try:
            count = self._sockets[peer].recv_into(place)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ConnectionError(f"rank {peer} is gone ({error.strerror})") from error
        if count == 0:
            raise ConnectionError(f"rank {peer} has closed its connection")
        return count

    def wait(self, sources: Collection[int], target: int | None) -> tuple[list[int], bool]:
        """Until something has come from a source, or the connection to `target` takes more.

        Returns the sources from which something has come, and whether the target's connection is still full.
        TimeoutError if nothing happens.
        """
        poll = select.poll()
        for peer in sources:
            poll.register(self._sockets[peer], select.POLLIN)
        if target is not None:
            poll.register(self._sockets[target], select.POLLOUT | (select.POLLIN if target in sources else 0))
        events = {self._peers[file]: event for file, event in poll.poll(self._timeout_s * 1e3)}
        if not events:
            raise TimeoutError(f"nothing moved for {self._timeout_s:g} s")
        # whatever is not POLLOUT is to be read: bytes, an end or an error
        ready = [peer for peer, event in events.items() if event != select.POLLOUT and peer in sources]
        return ready, target is not None and not events.get(target, 0) & ~select.POLLIN

    def exchange(self, send: tuple[int, memoryview] | None, receive: tuple[int, memoryview] | None) -> None:
        """Send all of some data to one rank while filling a place from one rank; either may be missing."""
        target, data = send or (None, memoryview(b""))
        source, place = receive or (None, memoryview(b""))
        while True:
            if target is not None and data:
                data = data[self.send(target, data) :]
            if not data and not place:
                return
            ready, _ = self.wait([source] if source is not None and place else [], target if data else None)
            for peer in ready:
                place = place[self.receive(peer, place) :]

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
        """The rank that has connected; -1 if it does not know the secret."""
        connection.settimeout(min(_GREETING_LIMIT_S, self._timeout_s))
        with suppress(OSError):
            greeting = connection.recv(_GREETING.size, socket.MSG_WAITALL)
            if len(greeting) == _GREETING.size:
                secret, rank = _GREETING.unpack(greeting)
                return int(rank) if secret == self._secret else -1
        return -1


def own_address(meeting_host: str, alone: bool) -> str:
    """Where other ranks reach this one: GLOO_SOCKET_IFNAME's address, as for torch, or the one that leads to rank 0's host.

    Empty where a host knows itself by a loopback address only, as Debian sets it up. `alone`: all ranks are on this node.
    FiretrainError if the interface has no address.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                entry = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
            except OSError as error:
                raise FiretrainError(
                    f"GLOO_SOCKET_IFNAME names the interface {interface}, which has no IPv4 address here "
                    f"({error.strerror}); `ip -br address` lists what there is"
                ) from None
        return socket.inet_ntoa(entry[20:24])
    if alone:
        return "127.0.0.1"
    family, _, _, _, address = socket.getaddrinfo(meeting_host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing: only chooses the route
        found = str(probe.getsockname()[0])
    return "" if ip_address(found).is_loopback else found


def _ranks(ranks: Iterable[int]) -> str:
    return "ranks " + ", ".join(map(str, sorted(ranks)))
