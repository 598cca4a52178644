"""Connections between ranks: who may connect, what arrives, and how a rank that is gone or silent is told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from ranks import on_ranks

from firetrain.errors import FiretrainError
from firetrain.reduction.mesh import Mesh, own_address
from firetrain.reduction.transport import Transport

SECRET = b"0123456789abcdef"


@pytest.fixture
def pair() -> Iterator[tuple[Mesh, Mesh]]:
    """Ranks 0 and 1, connected."""
    meshes = tuple(Mesh(rank, 2.0, "127.0.0.1", "localhost", SECRET) for rank in (0, 1))
    places = [mesh.place for mesh in meshes]
    meshes[0].connect({1}, places)  # returns before the other side has looked
    meshes[1].connect({0}, places)
    yield meshes
    for mesh in meshes:
        mesh.close()


def test_bytes_arrive_in_order_while_others_travel_the_other_way(pair: tuple[Mesh, Mesh]) -> None:
    length = 3 << 20  # more than a connection holds: both must read to get on with writing
    sent = [bytearray([rank + 1]) * length for rank in (0, 1)]
    landed = [bytearray(length) for _ in (0, 1)]

    def rank(number: int) -> None:
        pair[number].exchange((1 - number, memoryview(sent[number])), (1 - number, memoryview(landed[number])))

    other = threading.Thread(target=rank, args=(1,))
    other.start()
    rank(0)
    other.join(10)
    assert landed == sent[::-1]


def test_a_silent_rank_and_a_closed_connection_are_told_apart(pair: tuple[Mesh, Mesh]) -> None:
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
        Mesh(rank, 2.0, "127.0.0.1", "localhost", secret)
        for rank, secret in ((0, SECRET), (1, SECRET), (0, b"guessed guessed!"))
    )
    places = [knowing.place, listening.place]
    stranger.connect({1}, places)
    with socket.create_connection(listening.place) as scanner:
        scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
        knowing.connect({1}, places)
        listening.connect({0}, places)
        knowing.exchange((1, memoryview(b"hello")), None)
        place = bytearray(5)
        listening.exchange(None, (0, memoryview(place)))
    assert place == b"hello"
    for mesh in (knowing, listening, stranger):
        mesh.close()


def test_a_rank_that_does_not_connect_is_named() -> None:
    mesh = Mesh(2, 0.2, "127.0.0.1", "localhost", SECRET)
    with pytest.raises(TimeoutError, match=r"no connection came from ranks 0, 1 within 0\.2 s"):
        mesh.connect({0, 1}, [("127.0.0.1", 1), ("127.0.0.1", 1), mesh.place])
    mesh.close()


def test_the_interface_is_that_of_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")
    assert own_address("rank-0.example", alone=False) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eht0")
    with pytest.raises(FiretrainError, match="GLOO_SOCKET_IFNAME names the interface eht0, which has no IPv4 address"):
        own_address("rank-0.example", alone=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    assert own_address("rank-0.example", alone=True) == "127.0.0.1"
    # a host that knows itself as 127.0.1.1 listens everywhere, and is found by the name that all others use
    assert own_address("127.0.1.1", alone=False) == ""
    mesh = Mesh(0, 1.0, "", "rank-0.example", SECRET)
    assert mesh.place[0] == "rank-0.example"
    mesh.close()


def lanes(transport: Transport) -> list[str]:
    """What a small run that nobody follows, and others behind it, do in which order."""
    done: list[str] = []
    first = transport.lane.start(lambda: done.append("first"), small=True)
    assert done == []  # it waits for its wait
    second = transport.lane.start(lambda: done.append("second"), small=False)
    third = transport.lane.start(lambda: done.append("third"), small=True)
    third.wait()
    for turn in (first, second, third):
        turn.wait()
    return done


def test_buckets_take_their_turns_in_the_order_of_their_starts() -> None:
    assert on_ranks(1, lanes) == [["first", "second", "third"]]
