"""Messages between a server and ranks that come and go: whole, in order, and without waiting for a slow or a dead rank."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from launched import wait_for

from firetrain.transport.hub import Arrived, Event, Hub, Joined, Left
from firetrain.transport.messages import GREETING, Address, Line


@pytest.fixture
def hub() -> Iterator[Hub]:
    found = Hub("127.0.0.1", "localhost", timeout_s=20)
    yield found
    found.close()


def events_until(hub: Hub, count: int) -> list[Event]:
    """At least `count` events of the hub."""
    found: list[Event] = []
    wait_for(lambda: found.extend(hub.wait(0.1)) or len(found) >= count, f"{count} events", limit_s=20)
    return found


def in_a_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_messages_arrive_whole_with_their_numbers(hub: Hub) -> None:
    """A push of 40 MB takes many reads; the reply has the bits that were sent."""
    values, landing = torch.randn(10_000_000), torch.zeros(10_000_000)
    line = Line(3, hub.address, timeout_s=20)
    sending = in_a_thread(lambda: line.send({"stamp": 7, "text": "ä"}, values))
    joined, arrived = events_until(hub, 2)
    sending.join(20)
    assert joined == Joined(3) and isinstance(arrived, Arrived)
    assert arrived.rank == 3 and arrived.header == {"stamp": 7, "text": "ä"} and torch.equal(arrived.values, values)
    hub.send(3, {"stamp": 8}, values * 2)
    receiving = in_a_thread(lambda: line.receive(landing))
    hub.flush()
    receiving.join(20)
    assert torch.equal(landing, values * 2)
    line.close()


def test_a_rank_that_waits_gets_signs_of_life() -> None:
    hub = Hub("127.0.0.1", "localhost", timeout_s=0.4)
    line = Line(1, hub.address, timeout_s=20)
    events_until(hub, 1)

    def has_come() -> bool:
        hub.keep_in_touch()
        return line.has_message()

    assert not line.has_message()
    wait_for(has_come, "a sign of life", limit_s=20)
    assert line.receive(torch.empty(0)) == {"works": True}
    hub.close()


def test_a_rank_waits_in_touch_with_others_and_only_if_it_is_asked_to() -> None:
    hub = Hub("127.0.0.1", "localhost", timeout_s=0.4)
    line = Line(1, hub.address, timeout_s=20)
    events_until(hub, 1)
    assert hub.wait(0.3) == [] and not line.has_message(), "the other servers send nothing but weights"
    assert hub.wait(0.3, in_touch=True) == []
    wait_for(line.has_message, "a sign of life", limit_s=20)
    assert line.receive(torch.empty(0)) == {"works": True}
    line.close()
    hub.close()


def test_what_a_rank_sent_in_an_earlier_life_is_known_as_such(hub: Hub) -> None:
    first = Line(1, hub.address, timeout_s=20)
    first.send({"stamp": 1}, torch.zeros(3))
    _, old = events_until(hub, 2)
    assert isinstance(old, Arrived) and not hub.is_of_an_earlier_life(old)
    first.close()
    again = Line(1, hub.address, timeout_s=20)
    again.send({"host": "here"})
    new = events_until(hub, 3)[-1]
    assert isinstance(new, Arrived) and not hub.is_of_an_earlier_life(new) and hub.is_of_an_earlier_life(old)
    hub.send(1, {}, torch.zeros(3), old.connection)
    hub.send(1, {"new": True}, None, new.connection)
    assert again.receive(torch.empty(0)) == {"new": True}
    hub.send(1, {}, torch.zeros(3))
    with pytest.raises(ConnectionError, match="12 bytes that were not asked for"):
        again.receive(torch.empty(0))


def test_the_last_words_reach_a_rank_that_is_sending(hub: Hub) -> None:
    line, heard = Line(1, hub.address, timeout_s=20), list[object]()
    events_until(hub, 1)

    def send_and_hear() -> None:
        line.send({}, torch.zeros(10_000_000))
        heard.append(line.receive(torch.empty(0)))
        line.close()

    sending = in_a_thread(send_and_hear)
    hub.send(1, {"stop": True})
    hub.part(20)
    sending.join(20)
    assert heard == [{"stop": True}] and not hub.ranks


def test_a_rank_that_does_not_read_delays_nobody(hub: Hub) -> None:
    """40 MB to a rank that reads nothing do not fit into the connection; another rank gets its answer at once."""
    slow, quick = (Line(rank, hub.address, timeout_s=20) for rank in (1, 2))
    events_until(hub, 2)
    hub.send(1, {}, torch.zeros(10_000_000))
    before_s = time.monotonic()
    quick.send({"ask": 1})
    (event,) = events_until(hub, 1)
    hub.send(event.rank, {"answer": 1})
    assert quick.receive(torch.empty(0)) == {"answer": 1} and time.monotonic() - before_s < 5
    slow.close()
    quick.close()


def test_the_end_of_a_rank_is_an_event_and_its_return_is_another(hub: Hub) -> None:
    line = Line(1, hub.address, timeout_s=20)
    line.close()
    joined, left = events_until(hub, 2)
    assert joined == Joined(1) and isinstance(left, Left) and left.rank == 1 and hub.ranks == set()
    hub.send(1, {}, torch.zeros(3))  # nobody is there: nothing happens
    again = Line(1, hub.address, timeout_s=20)
    assert events_until(hub, 1) == [Joined(1)] and hub.ranks == {1}
    again.close()


def test_a_rank_that_was_started_again_replaces_the_one_before(hub: Hub) -> None:
    """The end of the first may be noticed only later, if its host died."""
    first = Line(1, hub.address, timeout_s=20)
    events_until(hub, 1)
    second = Line(1, hub.address, timeout_s=20)
    left, joined = events_until(hub, 2)
    assert isinstance(left, Left) and joined == Joined(1)
    hub.send(1, {"to": "the second"})
    assert second.receive(torch.empty(0)) == {"to": "the second"}
    for line in (first, second):
        line.close()


def test_strangers_are_not_heard(hub: Hub) -> None:
    wrong = hub.address._replace(secret="00" * 16)
    Line(1, wrong, timeout_s=20).send({"stamp": 1})
    with socket.create_connection((hub.address.host, hub.address.port)) as stranger:
        stranger.sendall(b"x" * GREETING.size)
        assert hub.wait(0.3) == [] and hub.ranks == set()
        stranger.settimeout(10)
        assert stranger.recv(1) == b""  # the hub has hung up


def test_a_worker_notices_that_its_server_is_gone(hub: Hub) -> None:
    line = Line(1, hub.address, timeout_s=20)
    events_until(hub, 1)
    hub.close()
    with pytest.raises(OSError, match=r"closed|reset"):
        line.receive(torch.empty(1))
    with pytest.raises(OSError, match="refused"):
        Line(1, Address(*hub.address), timeout_s=20)
