"""TCP connections between ranks: who may connect, what arrives, and the error if a rank dies or stops responding."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from firetrain.errors import FiretrainError
from firetrain.transport.tcp import Connections, own_address

SECRET = b"0123456789abcdef"


@pytest.fixture
def pair() -> Iterator[tuple[Connections, Connections]]:
    """The connections of ranks 0 and 1 to each other."""
    both = tuple(Connections(rank, 2.0, "127.0.0.1", "localhost", SECRET) for rank in (0, 1))
    addresses = {rank: one.address for rank, one in enumerate(both)}
    both[0].connect({1}, addresses)  # returns before the other side has accepted
    both[1].connect({0}, addresses)
    yield both
    for one in both:
        one.close()


def test_bytes_arrive_in_order_while_others_travel_the_other_way(pair: tuple[Connections, Connections]) -> None:
    length = 3 << 20  # more than a connection holds: both sides must read before they can continue writing
    sent = [bytearray([rank + 1]) * length for rank in (0, 1)]
    landed = [bytearray(length) for _ in (0, 1)]

    def rank(number: int) -> None:
        pair[number].exchange((1 - number, memoryview(sent[number])), (1 - number, memoryview(landed[number])))

    other = threading.Thread(target=rank, args=(1,))
    other.start()
    rank(0)
    other.join(10)
    assert landed == sent[::-1]


def test_a_silent_rank_and_a_closed_connection_are_told_apart(pair: tuple[Connections, Connections]) -> None:
    place = memoryview(bytearray(8))
    with pytest.raises(TimeoutError, match="nothing moved for 2 s"):
        pair[0].exchange(None, (1, place))
    pair[1].close()
    with pytest.raises(ConnectionError, match="rank 1 has closed"):
        pair[0].exchange(None, (1, place))
    with pytest.raises(ConnectionError, match="rank 1 is gone"):
        for _ in range(2):
            pair[0].exchange((1, memoryview(bytes(1 << 20))), None)


def test_only_ranks_that_know_the_secret_are_let_in() -> None:
    knowing, listening, stranger = (
        Connections(rank, 2.0, "127.0.0.1", "localhost", secret)
        for rank, secret in ((0, SECRET), (1, SECRET), (0, b"guessed guessed!"))
    )
    addresses = {0: knowing.address, 1: listening.address}
    stranger.connect({1}, addresses)
    with socket.create_connection(listening.address) as scanner:
        scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
        knowing.connect({1}, addresses)
        listening.connect({0}, addresses)
        knowing.exchange((1, memoryview(b"hello")), None)
        place = bytearray(5)
        listening.exchange(None, (0, memoryview(place)))
    assert place == b"hello"
    for one in (knowing, listening, stranger):
        one.close()


def test_a_rank_that_does_not_connect_is_named() -> None:
    one = Connections(2, 0.2, "127.0.0.1", "localhost", SECRET)
    with pytest.raises(TimeoutError, match=r"no connection came from ranks 0, 1 within 0\.2 s"):
        one.connect({0, 1}, {0: ("127.0.0.1", 1), 1: ("127.0.0.1", 1), 2: one.address})
    one.close()


def test_the_interface_is_that_of_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")
    assert own_address("rank-0.example", alone=False) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eht0")
    with pytest.raises(FiretrainError, match="GLOO_SOCKET_IFNAME names the interface eht0, which has no IPv4 address"):
        own_address("rank-0.example", alone=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert own_address("rank-0.example", alone=True) == "127.0.0.1"
    # a host whose name resolves to 127.0.1.1 listens on all interfaces and is reached by its host name
    assert own_address("127.0.1.1", alone=False) == ""
    one = Connections(0, 1.0, "", "rank-0.example", SECRET)
    assert one.address[0] == "rank-0.example"
    one.close()
