"""The programs of single ranks: the dependencies of their messages, and the sum by all of them for any order of arrival."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from numpy.typing import NDArray

from firetrain.cluster import World
from firetrain.topology import Plan, Transfer, find_topology
from firetrain.topology.program import Message, Program, program

WHOLE = 10**9
# smaller than the executor's: number of receives posted ahead, and number of messages that a connection holds
WINDOW, HELD = 2, 1
TOPOLOGIES = (
    "direct", "double-tree", "halving-doubling", "hierarchical", "hierarchical:inner=direct,outer=double-tree",
    "parameter-server", "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip


@pytest.mark.parametrize("name", ["ring", "halving-doubling", "double-tree", "hierarchical"])
@pytest.mark.parametrize("length", [3, 64, 1000, 4096])
def test_aligned_messages_cover_the_buffer_and_agree_on_both_sides(name: str, length: int) -> None:
    plan = find_topology(name)(World.even(2, 3))
    sent, received = set(), set()
    for rank in range(6):
        mine = program(plan, rank, length, 100, align=4)
        sent |= {send.message for send in mine.sends}
        received |= {receive.message for receive in mine.receives}
    assert sent == received
    assert all(message.start % 4 == 0 and message.end % 4 in (0, length % 4) for message in sent)
    for rank in range(6):
        kept = {place for m in sent if rank in (m.source, m.target) for place in range(m.start, m.end)}
        assert kept == set(range(length))


def test_a_send_waits_for_the_receives_of_its_chunk_and_for_no_other() -> None:
    transfers = (
        Transfer(1, 0, 0, True),
        Transfer(0, 2, 1, True),
        Transfer(2, 0, 1, True),
        Transfer(0, 1, 0, False),
        Transfer(0, 1, 1, False),
    )
    mine = program(Plan("test", 3, 2, transfers), 0, 10, WHOLE)
    assert [receive.message.transfer for receive in mine.receives] == [0, 2]
    assert [(send.message.transfer, send.after) for send in mine.sends] == [(1, 0), (3, 1), (4, 2)]


def test_elements_that_are_still_being_sent_are_not_changed() -> None:
    transfers = (Transfer(0, 1, 0, True), Transfer(1, 0, 0, True), Transfer(0, 2, 0, True), Transfer(2, 0, 0, False))
    added, copied = program(Plan("test", 3, 1, transfers), 0, 10, WHOLE).receives
    assert added.after_sends == (0,) and not added.in_place
    assert copied.after_sends == (0, 1) and not copied.in_place


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_result_lands_in_the_buffer_where_nothing_else_reads_it(name: str) -> None:
    plan = find_topology(name)(World.even(2, 3))
    for rank in range(6):
        assert all(r.in_place for r in program(plan, rank, 100, WHOLE).receives if not r.message.adds)


def test_empty_chunks_are_skipped_on_both_sides() -> None:
    plan = find_topology("ring")(World.even(1, 4))
    programs = [program(plan, rank, 2, WHOLE) for rank in range(4)]
    sent = sorted(send.message for one in programs for send in one.sends)
    assert sent == sorted(receive.message for one in programs for receive in one.receives)
    assert {plan.transfers[message.transfer].chunk for message in sent} == {1, 3}


def test_chunks_that_adjoin_travel_together_until_a_piece_is_full() -> None:
    plan = find_topology("halving-doubling")(World.even(1, 8))
    whole, cut = (program(plan, 0, 8000, piece) for piece in (WHOLE, 2000))
    assert [s.message.end - s.message.start for s in whole.sends] == [4000, 2000, 1000, 1000, 2000, 4000]
    assert max(s.message.end - s.message.start for s in cut.sends) == 2000


def test_an_add_and_a_copy_never_share_a_message() -> None:
    plan = Plan("mixed", 2, 2, (Transfer(0, 1, 0, True), Transfer(0, 1, 1, False)))
    assert [r.message.adds for r in program(plan, 1, 10, WHOLE).receives] == [True, False]


def test_a_tree_that_is_not_pipelined_sends_whole_buffers() -> None:
    mine = program(find_topology("tree")(World.even(1, 4)), 0, 1000, 10)
    assert [(s.message.target, s.message.start, s.message.end) for s in mine.sends] == [(2, 0, 1000), (1, 0, 1000)]


def test_both_ends_of_every_pair_number_the_same_messages_alike() -> None:
    for name in TOPOLOGIES:
        plan = find_topology(name)(World((0, 0, 0, 1, 1, 2, 2)))
        programs = [program(plan, rank, 997, 40) for rank in range(7)]
        sent = {s.message for one in programs for s in one.sends}
        received = {r.message for one in programs for r in one.receives}
        assert sent == received
        keys = [message[:3] for message in sent]
        assert len(set(keys)) == len(keys)


class Stuck(AssertionError):
    """No rank can continue."""


def play(plan: Plan, length: int, piece: int, draw: random.Random, rounded: bool = False) -> list[NDArray[np.int64]]:
    """Run the programs of all ranks event by event, in an order drawn at random from the possible next events.

    A rank behaves like the executor: it posts receives ahead, sends its messages in order when they are ready and the connection
    has space, and processes its receives in order. A message arrives only when its receive is posted, and after earlier ones.
    """
    buffers = [np.random.default_rng(rank).integers(-99, 99, length) for rank in range(plan.ranks)]
    programs = [program(plan, rank, length, piece) for rank in range(plan.ranks)]
    ranks = [_Rank(one, buffer) for one, buffer in zip(programs, buffers, strict=True)]
    arrived: dict[Message, NDArray[np.int64]] = {}
    while not all(rank.done for rank in ranks):
        moves = [(rank, move) for rank in ranks for move in rank.moves(ranks, arrived)]
        if not moves:
            raise Stuck
        rank, move = draw.choice(moves)
        getattr(rank, move)(ranks, arrived)
    return [rank.buffer for rank in ranks]


class _Rank:
    def __init__(self, steps: Program, buffer: NDArray[np.int64]) -> None:
        self.steps, self.buffer = steps, buffer
        self.taken = 0
        self.waiting = deque(steps.sends)
        self.out: dict[int, deque[tuple[Message, NDArray[np.int64]]]] = {}  # messages on the wire, by target
        self.held = np.zeros(0, np.int64)

    @property
    def done(self) -> bool:
        return self.taken == len(self.steps.receives) and not self.waiting

    def moves(self, ranks: list[_Rank], arrived: dict[Message, NDArray[np.int64]]) -> list[str]:
        found = []
        for target, line in self.out.items():
            if line and line[0][0] in {r.message for r in ranks[target].posted}:
                found.append("arrive")
        ready = self.waiting and self.waiting[0].after <= self.taken
        if ready and len(self.out.get(self.waiting[0].message.target, ())) < HELD:
            found.append("send")
        if self.taken < len(self.steps.receives):
            receive = self.steps.receives[self.taken]
            first = len(self.steps.sends) - len(self.waiting)
            if receive.message in arrived and all(place < first for place in receive.after_sends):
                found.append("take")
        return found

    @property
    def posted(self) -> tuple:  # type: ignore[type-arg]
        return self.steps.receives[self.taken : self.taken + WINDOW]

    def send(self, ranks: list[_Rank], arrived: dict[Message, NDArray[np.int64]]) -> None:
        message = self.waiting.popleft().message
        content = self.buffer[message.start : message.end].copy()
        self.out.setdefault(message.target, deque()).append((message, content))

    def arrive(self, ranks: list[_Rank], arrived: dict[Message, NDArray[np.int64]]) -> None:
        for target, line in self.out.items():
            if line and line[0][0] in {r.message for r in ranks[target].posted}:
                message, content = line.popleft()
                arrived[message] = content
                return

    def take(self, ranks: list[_Rank], arrived: dict[Message, NDArray[np.int64]]) -> None:
        receive = self.steps.receives[self.taken]
        part, landed = self.buffer[receive.message.start : receive.message.end], arrived.pop(receive.message)
        self.taken += 1
        if receive.held:
            self.held = landed if receive.opens else self.held + landed
            part += self.held if receive.closes else 0
        elif receive.message.adds:
            part += landed
        else:
            part[:] = landed


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("nodes", [(0,) * 2, (0, 0, 1), (0, 1, 2, 3), (0, 0, 1, 1, 1), (0, 1) * 4])
def test_any_order_of_arrival_ends_with_the_sum_everywhere(name: str, nodes: tuple[int, ...]) -> None:
    plan = find_topology(name)(World(nodes))
    for seed, (length, piece) in enumerate([(5, 1), (64, 3), (97, 10), (97, WHOLE)]):
        expected = sum(np.random.default_rng(rank).integers(-99, 99, length) for rank in range(len(nodes)))
        for buffer in play(plan, length, piece, random.Random(seed)):
            assert np.array_equal(buffer, expected), (length, piece)


def test_a_receive_in_place_could_come_at_any_time() -> None:
    """An in-place receive may complete early: no pending send or add uses that memory."""
    for name in TOPOLOGIES:
        plan = find_topology(name)(World.even(2, 3))
        for rank in range(6):
            mine = program(plan, rank, 97, 10)
            for place, receive in enumerate(mine.receives):
                if not receive.in_place:
                    continue
                span = range(receive.message.start, receive.message.end)
                later_adds = [r for r in mine.receives[place:] if r.message.adds and r.message.start in span]
                before = [s for s in mine.sends if s.message.start in span and s.after <= place]
                assert not later_adds and len(before) <= 1


def test_adds_from_lower_ranks_are_collected_apart_in_the_order_of_ranks() -> None:
    plan = find_topology("direct")(World.even(1, 5))
    receives = [r for r in program(plan, 2, 5, WHOLE).receives if r.message.adds]
    assert [r.message.source for r in receives] == [0, 1, 3, 4]
    assert [(r.held, r.opens, r.closes) for r in receives] == [
        (True, True, False), (True, False, True), (False, False, False), (False, False, False),
    ]  # fmt: skip
