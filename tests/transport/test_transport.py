"""Connected ranks: small collectives of all ranks and of subgroups, and the timer of all benchmarks."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from ranks import on_ranks

from firetrain.transport.timing import slowest_s
from firetrain.transport.transport import Transport


def small_collectives(transport: Transport) -> dict[str, Any]:
    own = torch.tensor([float(transport.rank + 1), 10.0])
    return {
        "sum": transport.sum(own.clone()).tolist(),
        "gather": [values.tolist() for values in transport.gather(own)],
        "broadcast": transport.broadcast(own.clone()).tolist(),
        "object": transport.broadcast_object({"from": transport.rank}),
        "objects": transport.gather_objects(f"rank {transport.rank}"),
    }


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_small_collectives_give_the_same_on_all_ranks(ranks: int) -> None:
    found = on_ranks(ranks, small_collectives)
    assert all(one == found[0] for one in found)
    assert found[0] == {
        "sum": [ranks * (ranks + 1) / 2, 10.0 * ranks],
        "gather": [[float(rank + 1), 10.0] for rank in range(ranks)],
        "broadcast": [1.0, 10.0],
        "object": {"from": 0},
        "objects": [f"rank {rank}" for rank in range(ranks)],
    }


def in_a_subgroup(transport: Transport, members: list[int]) -> dict[str, Any] | None:
    group = transport.subgroup(members)
    if group is None:
        return None
    return {"rank": group.rank, "size": group.size, "node_of": group.world.node_of, **small_collectives(group)}


@pytest.mark.parametrize("members", [[0, 1], [0, 3, 4], [2], [0, 1, 2, 3, 4]])
def test_a_subgroup_counts_its_ranks_from_0_and_knows_nobody_else(members: list[int]) -> None:
    found = on_ranks(5, in_a_subgroup, members, nodes=2)  # ranks 0 to 2 on one node, 3 and 4 on the other
    assert [rank for rank, one in enumerate(found) if one is None] == sorted(set(range(5)) - set(members))
    alike = on_ranks(len(members), small_collectives)[0]
    node_of = [rank * 2 // 5 for rank in members]
    numbers = {node: number for number, node in enumerate(dict.fromkeys(node_of))}
    for place, rank in enumerate(members):
        expected = {"rank": place, "size": len(members), "node_of": tuple(numbers[node] for node in node_of)}
        assert found[rank] == expected | alike


def disjoint_subgroups_at_once(transport: Transport) -> float:
    made = [transport.subgroup(part) for part in ([0, 2], [1, 3])]
    (mine,) = (group for group in made if group)
    total = torch.tensor(float(transport.rank))
    for _ in range(20):
        total = mine.sum(total)
    return float(total)


def test_disjoint_subgroups_do_not_meet() -> None:
    assert on_ranks(4, disjoint_subgroups_at_once) == [2.0 * 2**19, 4.0 * 2**19] * 2


def exchanged(transport: Transport) -> list[float]:
    """Each rank of a subgroup sends its number to the next one; ranks are numbered as in the run."""
    members = [1, 2, 3]
    group = transport.subgroup(members)
    if group is None:
        return []
    after, before = members[(group.rank + 1) % 3], members[group.rank - 1]
    group.connect_to({after, before})
    landed = torch.empty(1)
    group.exchange((after, torch.tensor([float(transport.rank)])), (before, landed))
    return [float(before), float(landed)]


def test_a_subgroup_exchanges_over_the_connections_of_the_run() -> None:
    found = on_ranks(4, exchanged)
    assert found[0] == [] and all(before == landed for before, landed in found[1:])


def timed(transport: Transport) -> tuple[float, float]:
    started_s = time.perf_counter()
    found = slowest_s(transport, lambda: time.sleep(0.05 if transport.rank == 1 else 0.0), calls=4)
    return found, time.perf_counter() - started_s


def test_the_timer_tells_every_rank_the_seconds_per_call_of_the_slowest_one() -> None:
    (first, _), (second, whole_s), (third, _) = on_ranks(3, timed)
    assert first == second == third and 0.05 <= first <= whole_s / 4


def refused(transport: Transport, members: list[int]) -> str:
    with pytest.raises(ValueError) as error:
        transport.subgroup(members)
    return str(error.value)


@pytest.mark.parametrize("members", [[1, 0], [0, 0]])
def test_ranks_of_a_subgroup_must_ascend(members: list[int]) -> None:
    """torch silently sorts the ranks of a process group, so any other order would mix them up."""
    assert on_ranks(2, refused, members) == [f"the ranks of a subgroup must ascend (ranks: {members})"] * 2
