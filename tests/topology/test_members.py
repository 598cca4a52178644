"""A plan can be moved to any ranks of a larger world, and stays correct."""

from __future__ import annotations

import random

import pytest

from firetrain.cluster import World
from firetrain.topology import Plan, Transfer, find_topology
from firetrain.topology.check import faults
from firetrain.topology.program import program

OURS = (
    "direct", "double-tree", "halving-doubling", "hierarchical", "parameter-server", "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_a_plan_on_other_ranks_is_still_right_and_as_deep_and_as_heavy(name: str, ranks: int) -> None:
    plan = find_topology(name)(World(tuple(rank * 2 // (ranks + 1) for rank in range(ranks))))
    members = sorted(random.Random(ranks).sample(range(100), ranks))
    placed = plan.on(members)
    assert faults(placed) == [] and placed.round_of == plan.round_of and placed.depth == plan.depth
    assert placed.bytes_sent(1000) == plan.bytes_sent(1000) and placed.bytes_received(1000) == plan.bytes_received(1000)
    assert {rank for transfer in placed.transfers for rank in transfer[:2]} <= set(members)
    for place, rank in enumerate(members):
        assert placed.neighbours(rank) == {members[other] for other in plan.neighbours(place)}


@pytest.mark.parametrize("name", OURS)
def test_every_member_s_messages_are_those_of_its_place(name: str) -> None:
    plan, members = find_topology(name)(World.even(2, 2)), (3, 5, 8, 13)
    for place, rank in enumerate(members):
        before, after = program(plan, place, 1000, 100), program(plan.on(members), rank, 1000, 100)
        assert len(before.sends) == len(after.sends) and len(before.receives) == len(after.receives)
        for one, other in zip(before.receives, after.receives, strict=True):
            assert members[one.message.source] == other.message.source and one[1:] == other[1:]
            assert one.message[2:] == other.message[2:]
        for sent, placed in zip(before.sends, after.sends, strict=True):
            assert members[sent.message.target] == placed.message.target and sent[1:] == placed[1:]


def test_a_plan_can_be_put_on_ranks_in_any_order_unless_it_sums_in_rank_order() -> None:
    ring = find_topology("ring")(World.even(1, 3)).on((7, 2, 5))
    assert faults(ring) == [] and ring.transfers[0].source in (7, 2, 5)
    direct = find_topology("direct")(World.even(1, 3))
    assert direct.rank_order and faults(direct.on((2, 5, 7))) == []
    with pytest.raises(
        ValueError, match=r"direct sums in rank order: its members must ascend \(members: \[7, 2, 5\]\)"
    ):
        direct.on((7, 2, 5))


@pytest.mark.parametrize("members", [(1, 2), (1, 2, 2), (1, 2, 3, 4), ()])
def test_as_many_different_members_as_ranks_are_needed(members: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a plan for 3 ranks needs as many different members"):
        find_topology("ring")(World.even(1, 3)).on(members)


def test_faults_of_a_placed_plan_name_the_ranks_of_the_larger_world() -> None:
    broken = Plan("broken", 2, 1, (Transfer(0, 1, 0, True),)).on((4, 9))
    assert faults(broken) == ["rank 4 ends without rank 9 in chunk 0"]
    outside = Plan("broken", 2, 1, (Transfer(4, 9, 0, True), Transfer(9, 0, 0, False)), members=(4, 9))
    assert any("outside 2 ranks" in fault for fault in faults(outside))


def test_a_placed_plan_may_be_put_on_other_ranks_again() -> None:
    ring = find_topology("ring")(World.even(1, 4))
    assert ring.on((9, 8, 7, 6)).on((0, 1, 2, 3)).transfers == ring.transfers
