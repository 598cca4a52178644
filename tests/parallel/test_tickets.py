"""Each share of the images is trained on once, whoever is fast, whoever dies, and over a checkpoint."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrain.data.order import global_batches
from firetrain.parallel.tickets import Tickets, samples_of


@settings(max_examples=300, deadline=None)
@given(
    total=st.integers(1, 40),
    workers=st.integers(1, 5),
    each=st.integers(1, 3),
    events=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["push", "push", "push", "die", "resume"])), max_size=200
    ),
)
def test_every_share_is_used_once(total: int, workers: int, each: int, events: list[tuple[int, str]]) -> None:
    tickets, used = Tickets(total), Counter[int]()
    drawn = tickets.draw(range(workers), each)
    for worker, what in events:
        if what == "resume":
            state, tickets = tickets.state(), Tickets(total)
            tickets.load(state)
            drawn = tickets.draw(range(workers), each)
        elif worker not in drawn:
            continue
        elif what == "die":
            tickets.give_back(worker)
            drawn |= tickets.draw([worker], each)
        else:
            used.update(drawn[worker])
            assert tickets.use(worker) == len(drawn[worker])
            drawn |= tickets.draw([worker], each)
    while any(drawn.values()):
        for worker in list(drawn):
            used.update(drawn[worker])
            tickets.use(worker)
            drawn |= tickets.draw([worker], each)
    assert used == Counter(range(total)) and tickets.used == total


def test_shares_are_those_of_data_parallel_training() -> None:
    """Seven images, batches of 4 and 3 for three workers: each epoch has every image once, in the epoch's order."""
    for epoch in range(3):
        found = [samples_of(number, 7, 4, seed=1, shares=3) for number in range(6 * epoch, 6 * epoch + 6)]
        assert {number for number, _ in found} == {epoch}
        whole = np.concatenate(global_batches(7, 4, 1, epoch))
        assert np.array_equal(np.concatenate([samples for _, samples in found]), whole)


def test_shares_are_dealt_in_turn_where_workers_take_several() -> None:
    assert Tickets(10).draw([0, 1], each=3) == {0: [0, 2, 4], 1: [1, 3, 5]}
    assert Tickets(3).draw([0, 1], each=1 << 62) == {0: [0, 2], 1: [1]}
