"""A mutated plan is found by the check, or is still correct."""

from __future__ import annotations

import dataclasses
import random
from fractions import Fraction

import numpy as np
import pytest

from firetrain.cluster import World
from firetrain.topology import Claim, Plan, find_topology
from firetrain.topology.check import faults

TOPOLOGIES = (
    "direct", "double-tree", "halving-doubling", "hierarchical", "parameter-server", "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip
WORLDS = (World.even(2, 3), World.even(1, 4), World((0, 0, 1, 1, 1)))


def sums(plan: Plan) -> bool:
    """Whether the transfers, executed in order, leave the sum on all ranks, for numbers that identify each contribution."""
    content = np.array([[3.0**rank + 1000 * chunk for chunk in range(plan.chunks)] for rank in range(plan.ranks)])
    expected = content.sum(0)
    for source, target, chunk, adds in plan.transfers:
        content[target, chunk] = content[source, chunk] + (content[target, chunk] if adds else 0)
    return bool((content == expected).all())


def without_claim(plan: Plan) -> Plan:
    """The plan without its claim, so that faults can only be found by following the contributions."""
    return dataclasses.replace(plan, claim=None)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_dropping_any_transfer_is_caught(name: str, world: World) -> None:
    plan = without_claim(find_topology(name)(world))
    for index in range(len(plan.transfers)):
        transfers = plan.transfers[:index] + plan.transfers[index + 1 :]
        mutant = dataclasses.replace(plan, transfers=transfers, not_before=())
        assert faults(mutant) and not sums(mutant)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_swapping_the_chunks_of_two_transfers_is_caught_unless_it_changes_nothing(name: str, world: World) -> None:
    plan = without_claim(find_topology(name)(world))
    draw, caught = random.Random(0), 0
    for _ in range(300 if plan.chunks > 1 else 0):
        first, second = sorted(draw.sample(range(len(plan.transfers)), 2))
        transfers = list(plan.transfers)
        a, b = transfers[first].chunk, transfers[second].chunk
        transfers[first], transfers[second] = transfers[first]._replace(chunk=b), transfers[second]._replace(chunk=a)
        mutant = dataclasses.replace(plan, transfers=tuple(transfers), not_before=())
        assert faults(mutant) or sums(mutant)
        caught += not sums(mutant)
    assert caught > 100 or plan.chunks == 1


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_exchanging_a_pair_s_order_is_caught(name: str, world: World) -> None:
    plan = without_claim(find_topology(name)(world))
    exchanged = 0
    for first in range(len(plan.transfers)):
        for second in range(first + 1, len(plan.transfers)):
            a, b = plan.transfers[first], plan.transfers[second]
            if a[:2] != b[:2] or plan.round_of[first] == plan.round_of[second]:
                continue
            transfers = list(plan.transfers)
            transfers[first], transfers[second] = b, a
            assert faults(dataclasses.replace(plan, transfers=tuple(transfers), not_before=()))
            exchanged += 1
    assert exchanged or name in ("direct", "parameter-server", "tree", "pipelined-tree")


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_closed_form_that_is_off_is_caught(name: str) -> None:
    plan = find_topology(name)(World.even(2, 4))
    assert plan.claim is not None and faults(plan) == []
    depth, busiest = plan.claim
    assert "rounds, its closed form says" in faults(dataclasses.replace(plan, claim=Claim(depth + 1, busiest)))[0]
    assert "its closed form says" in faults(dataclasses.replace(plan, claim=Claim(depth, busiest + Fraction(1, 8))))[0]


def test_adds_out_of_the_order_that_a_plan_promises_are_caught() -> None:
    plan = find_topology("direct")(World.even(1, 4))
    into = [index for index, transfer in enumerate(plan.transfers) if transfer.adds and transfer.target == 1]
    transfers = list(plan.transfers)
    transfers[into[0]], transfers[into[1]] = transfers[into[1]], transfers[into[0]]
    assert "rank order" in faults(dataclasses.replace(plan, transfers=tuple(transfers)))[0]
