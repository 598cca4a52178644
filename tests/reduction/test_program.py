"""A rank's part of a plan says what each send and each change of a chunk has to wait for."""

from __future__ import annotations

from firetrain.cluster import World
from firetrain.reduction.program import Receive, Send, program
from firetrain.topology import Plan, Transfer, find_topology


def test_a_send_waits_for_the_last_receive_of_its_chunk_and_for_no_other() -> None:
    transfers = (
        Transfer(1, 0, 0, True),
        Transfer(0, 2, 1, True),
        Transfer(2, 0, 1, True),
        Transfer(0, 1, 0, False),
        Transfer(0, 1, 1, False),
    )
    mine = program(Plan("test", 3, 2, transfers), 0, 10)
    assert [receive.number for receive in mine.receives] == [0, 2]
    assert mine.sends == ((Send(1, 2, 1),), (Send(3, 1, 0),), (Send(4, 1, 1),))


def test_a_chunk_that_is_still_being_sent_is_not_changed() -> None:
    transfers = (Transfer(0, 1, 0, True), Transfer(1, 0, 0, True), Transfer(0, 2, 0, True), Transfer(2, 0, 0, False))
    added, copied = program(Plan("test", 3, 1, transfers), 0, 10).receives
    assert added == Receive(1, 1, 0, adds=True, after_sends=(0,), in_place=False)
    assert copied == Receive(3, 2, 0, adds=False, after_sends=(0, 2), in_place=False)


def test_the_result_lands_in_the_buffer_where_nothing_else_reads_it() -> None:
    for name in ("ring", "tree", "hierarchical", "parameter-server"):
        plan = find_topology(name)(World.even(2, 3))
        for rank in range(6):
            assert all(receive.in_place for receive in program(plan, rank, 100).receives if not receive.adds), name


def test_empty_chunks_are_skipped_on_both_sides() -> None:
    plan = find_topology("ring")(World.even(1, 4))
    programs = [program(plan, rank, 2) for rank in range(4)]
    sent = sorted(send.number for one in programs for group in one.sends for send in group)
    received = sorted(receive.number for one in programs for receive in one.receives)
    assert sent == received and {plan.transfers[number].chunk for number in sent} == {1, 3}
