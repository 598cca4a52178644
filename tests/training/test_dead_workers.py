"""A server whose workers die, hang or do not come goes on where its policy can, and ends in words where it cannot."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from launched import wait_for
from puppets import Puppet, Theatre

from firetrain.errors import LostPeer
from firetrain.training import server_loop
from firetrain.training.stop import Stopped


def test_who_rests_draws_what_a_dead_worker_leaves() -> None:
    """Two shares: one worker has trained on the first, and rests; the other dies with the second."""
    theatre = Theatre.open("policy=async", 3, "target.max_steps=1")
    a, dead = theatre.puppets()
    drawn = a.pull()["numbers"] + dead.pull()["numbers"]
    a.push(0.0)
    with pytest.raises(TimeoutError):
        a.pull(limit_s=0.3)
    dead.leave()
    assert a.pull()["numbers"] == drawn[1:]
    a.push(0.0)
    assert a.pull() == {"stop": True}
    assert theatre.end() is None and theatre.facts()["updates"] == 2


def test_a_worker_that_is_started_again_during_an_evaluation_gets_weights_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its new connection is there before the server has heard of the end of the old one, whose turn it is."""
    theatre, again, evaluate = (
        Theatre.open("policy=async", 3, "target.max_steps=31"),
        list[Puppet](),
        server_loop.evaluate,
    )

    def slow(*arguments: Any) -> Any:
        if not again:
            hub = arguments[-1].__self__
            before = hub._connections[2].number
            b.leave()
            again.append(theatre.puppet(1))

            def is_back() -> bool:
                hub.keep_in_touch()
                return hub._connections.get(2) is not None and hub._connections[2].number != before

            wait_for(is_back, "the new connection")
        return evaluate(*arguments)

    monkeypatch.setattr(server_loop, "evaluate", slow)
    a, b = theatre.puppets()
    drawn = b.pull()["numbers"]
    a.pull()
    for _ in range(2 * theatre.steps_per_epoch - 1):
        a.push(0.0)
        a.pull()
    b.push(0.0)  # ends the epoch
    wait_for(lambda: bool(again), "the evaluation")
    (b,) = again
    assert b.pull()["numbers"] != drawn
    with pytest.raises(TimeoutError):
        b.pull(limit_s=0.5)
    for one in (a, b):  # the last two of 62 shares
        one.push(0.0)
    assert [one.pull() for one in (a, b)] == [{"stop": True}] * 2
    assert theatre.end() is None and theatre.facts()["workers_lost"] == 1 and theatre.facts()["updates"] == 62


def test_what_a_dead_worker_had_drawn_is_drawn_by_another() -> None:
    """Every share is used once, although a worker leaves with one, and comes back."""
    theatre, used = Theatre.open("policy=async", 3, "target.max_steps=4"), Counter[int]()
    a, dead = theatre.puppets()
    a.pull()
    lost = dead.pull()["numbers"]
    dead.leave()
    while "stop" not in a.task and used.total() < 6:
        used.update(a.task["numbers"])
        a.push(0.0)
        a.pull()
    assert used[lost[0]] == 1
    back = theatre.puppet(1)
    back.pull()
    for one in (a, back):
        used.update(one.task["numbers"])
        one.push(0.0)
    for one in (a, back):
        assert one.pull() == {"stop": True}
    assert theatre.end() is None and used == Counter(range(8))
    assert theatre.facts()["workers_lost"] == 1
    assert any("worker 1 has ended" in text for text in theatre.run.facts()["warnings"])


def test_sync_ends_with_its_first_dead_worker() -> None:
    theatre = Theatre.open("policy=sync", 3)
    a, dead = theatre.puppets()
    a.pull()
    dead.leave()
    error = theatre.end()
    assert isinstance(error, LostPeer) and "worker 1 has ended" in str(error) and "waits for every worker" in str(error)


def test_backup_ends_when_no_spare_worker_is_left() -> None:
    theatre = Theatre.open("policy=backup,spare=1", 4)
    a, b, c = theatre.puppets()
    a.pull()
    b.leave()
    c.leave()
    error = theatre.end()
    assert isinstance(error, LostPeer) and "waits for every worker" in str(error)


def test_workers_that_do_not_come_are_named() -> None:
    theatre = Theatre.open("policy=async", 4, "cluster.timeout_s=1.5")
    came = theatre.puppet(1)
    error = theatre.end()
    assert isinstance(error, LostPeer) and "workers 0, 2 did not connect within 1.5 s" in str(error)
    came.leave()


def test_workers_that_send_nothing_are_named() -> None:
    theatre = Theatre.open("policy=sync", 4, "cluster.timeout_s=1.5")
    a, b, c = theatre.puppets()
    for one in (a, b, c):
        one.pull()
    b.push(0.0)
    error = theatre.end()
    assert (
        isinstance(error, LostPeer) and str(error) == "no push arrived for 1.5 s; waiting for workers 0, 2 of 3 workers"
    )


@pytest.mark.parametrize("policy", ["async", "ssp,staleness=1", "backup,spare=1"])
def test_training_goes_on_without_a_worker_that_hangs(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    theatre = Theatre.open(f"policy={policy}", 3, "cluster.timeout_s=1.5", "target.max_steps=6")
    works, hangs = theatre.puppets()
    for one in (works, hangs):
        one.pull()
    while "stop" not in works.task:
        works.push(1.0)
        works.pull()
    assert theatre.end() is None
    assert theatre.facts()["workers_lost"] == 1
    told = "worker 1 has ended (rank 2: no sign of life for 1.5 s); training goes on with 1 worker"
    assert told in "".join(capsys.readouterr())


def test_a_server_without_workers_ends() -> None:
    theatre = Theatre.open("policy=async", 3, "cluster.timeout_s=1.5")
    a, b = theatre.puppets()
    for one in (a, b):
        one.pull()
    a.leave()
    b.leave()
    error = theatre.end()
    assert isinstance(error, LostPeer) and str(error) == "no push arrived for 1.5 s, and no worker is left"


def test_workers_that_an_earlier_attempt_has_lost_are_counted() -> None:
    theatre = Theatre.open("policy=async", 3, "target.max_steps=4")
    a, dead = theatre.puppets()
    a.pull()
    dead.pull()
    dead.leave()
    theatre.run.stop_mark.touch()
    while "stop" not in a.task:
        a.push(0.0)
        a.pull()
    assert isinstance(theatre.end(), Stopped)
    again = Theatre.open("policy=async", 3, "target.max_steps=4", run=theatre.run)
    b, c = again.puppets()
    for one in (b, c):
        one.pull()
    while "stop" not in b.task:
        for one in (b, c):  # both push before either waits: at the end one has no share
            one.push(0.0)
        for one in (b, c):
            one.pull()
    assert again.end() is None and again.facts()["workers_lost"] == 1
