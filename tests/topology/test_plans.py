"""Every plan is verified for every world, and has the depth and the traffic of its docstring."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from firetrain.cluster import World
from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.topology import Plan, Transfer, find_topology
from firetrain.topology.check import faults, prove

OURS = (
    "direct", "double-tree", "halving-doubling", "hierarchical", "parameter-server", "pipelined-tree", "ring", "torus", "tree",
)  # fmt: skip


def test_the_catalogue_holds_ours() -> None:
    assert set(OURS) <= set(installed_names(TOPOLOGIES))


@pytest.mark.parametrize("name", OURS)
def test_every_world_of_1_to_64_ranks_ends_with_every_contribution_once(name: str) -> None:
    proof = prove(find_topology(name), 64)
    assert proof.faults == [] and proof.worlds > 400 and proof.refused == 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 7, 8, 16, 31, 64])
def test_depths_are_the_closed_forms(ranks: int) -> None:
    world, levels = World.even(1, ranks), math.floor(math.log2(ranks))
    assert len(find_topology("ring")(world).rounds()) == 2 * (ranks - 1)
    assert len(find_topology("tree")(world).rounds()) == 2 * levels
    assert len(find_topology("parameter-server")(world).rounds()) == (2 if ranks > 1 else 0)


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 2), (2, 4), (4, 2), (3, 5), (8, 8)])
def test_hierarchical_keeps_its_promised_traffic_between_nodes(nodes: int, per_node: int) -> None:
    world = World.even(nodes, per_node)
    plan = find_topology("hierarchical")(world)
    length = 8 * plan.chunks
    across = [0] * world.size
    for transfer in plan.transfers:
        if world.node_of[transfer.source] != world.node_of[transfer.target]:
            across[transfer.source] += length // plan.chunks
    assert set(across) == {2 * (nodes - 1) * length // (per_node * nodes)}
    inside = 2 * (per_node - 1) * length // per_node
    assert plan.bytes_sent(length) == [inside + across[0]] * world.size


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 13])
def test_bytes_per_rank_are_the_closed_forms(ranks: int) -> None:
    world, length = World.even(1, ranks), 1 << 20
    ring, tree, server = (find_topology(name)(world) for name in ("ring", "tree", "parameter-server"))
    assert all(abs(sent - 2 * (ranks - 1) / ranks * length) <= 2 * ranks for sent in ring.bytes_sent(length))
    assert tree.bytes_received(length)[0] == math.ceil(math.log2(ranks)) * length
    assert server.bytes_received(length)[0] == (ranks - 1) * length


def test_a_copy_does_not_share_a_round_with_an_add_to_the_same_chunk() -> None:
    plan = Plan("test", 3, 1, (Transfer(1, 0, 0, True), Transfer(2, 0, 0, True), Transfer(2, 0, 0, False)))
    assert plan.rounds() == [[0, 1], [2]]


def test_tree_is_firecaffe_s_pairwise_merge() -> None:
    up = [(1, 0), (3, 2), (2, 0)]
    transfers = find_topology("tree")(World.even(1, 4)).transfers
    assert [(t.source, t.target) for t in transfers if t.adds] == up
    assert [(t.source, t.target) for t in transfers if not t.adds] == [(a, b) for b, a in reversed(up)]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_rounds_hold_each_transfer_once_and_respect_dependencies(name: str, nodes: int) -> None:
    plan = find_topology(name)(World.even(nodes, 8 // nodes))
    number = {index: n for n, indices in enumerate(plan.rounds()) for index in indices}
    assert sorted(number) == list(range(len(plan.transfers)))
    for later, second in enumerate(plan.transfers):
        for earlier, first in enumerate(plan.transfers[:later]):
            if first.chunk == second.chunk and first.target == second.source:
                assert number[earlier] < number[later]
            if first.chunk == second.chunk and first.source == second.target:
                assert number[earlier] < number[later]
            if first.chunk == second.chunk and first.target == second.target:
                assert number[earlier] + (not second.adds) <= number[later]


@pytest.mark.parametrize("name", OURS)
def test_a_plan_with_one_thing_broken_is_caught(name: str) -> None:
    plan = find_topology(name)(World.even(2, 3))
    draw = random.Random(0)
    for index in range(len(plan.transfers)):
        broken = mutations(plan, index, draw)
        for what, mutant in broken.items():
            assert faults(mutant), f"{what} of transfer {index} ({plan.transfers[index]}) went unnoticed"


def mutations(plan: Plan, index: int, draw: random.Random) -> dict[str, Plan]:
    """The plan with transfer `index` dropped, repeated, of the other kind, to another rank, or of another chunk."""
    before, this, after = plan.transfers[:index], plan.transfers[index], plan.transfers[index + 1 :]
    other_rank = draw.choice([rank for rank in range(plan.ranks) if rank not in this[:2]])
    changed = {
        "drop": (),
        "other kind": (this._replace(adds=not this.adds),),
        "to itself": (this._replace(target=this.source),),
    }
    if this.adds:  # a repeated copy changes nothing; an add to another rank may still reach all ranks
        changed["double"] = (this, this)
    else:
        changed["other target"] = (this._replace(target=other_rank),)
    if plan.chunks > 1:
        changed["other chunk"] = (this._replace(chunk=(this.chunk + 1) % plan.chunks),)
    return {what: dataclasses.replace(plan, transfers=(*before, *new, *after)) for what, new in changed.items()}


def test_a_fault_names_the_transfer_and_the_ranks() -> None:
    plan = Plan("bad", 3, 1, (Transfer(1, 0, 0, True), Transfer(1, 0, 0, True), Transfer(0, 2, 0, False)))
    assert faults(plan) == [
        "transfer 1 (1 -> 0, chunk 0, adds) adds the contribution of rank 1 twice",
        "transfer 2 (0 -> 2, chunk 0, copies) overwrites the contribution of rank 2",
        "rank 0 ends without rank 2 in chunk 0",
        "rank 1 ends without ranks 0, 2 in chunk 0",
        "rank 2 ends without rank 2 in chunk 0",
    ]


def test_chunks_cover_a_buffer_of_any_length_without_overlap() -> None:
    plan = Plan("any", 1, 7, ())
    for length in (0, 1, 6, 7, 8, 4099):
        bounds = [plan.bounds(chunk, length) for chunk in range(7)]
        assert bounds[0][0] == 0 and bounds[-1][1] == length
        assert all(end == start for (_, end), (start, _) in zip(bounds, bounds[1:], strict=False))
        assert max(e - s for s, e in bounds) - min(e - s for s, e in bounds) <= 1
