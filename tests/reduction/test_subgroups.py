"""Reductions among some ranks of a run: groups sum simultaneously without disturbing each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import on_ranks

from firetrain.errors import LostPeer
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Reduction
from firetrain.reduction.nccl_executor import NcclExecutor
from firetrain.topology import find_topology
from firetrain.transport.transport import Transport

NAMES = (
    "native", "direct", "double-tree", "halving-doubling", "hierarchical", "parameter-server", "pipelined-tree", "ring", "torus",
    "tree", "nccl:ring", "nccl:direct",
)  # fmt: skip
LENGTHS = (1, 7, 4099, 70_001)


def own(transport: Transport, parts: list[list[int]]) -> Transport:
    """The subgroup of this rank."""
    made = [transport.subgroup(part) for part in parts]
    return next(group for group in made if group is not None)


def lose(transport: Transport, what: str) -> str:
    """What rank 3 says of a small collective with rank 2 alone, in which that takes no part."""
    group = own(transport, [[0, 1], [2, 3]])
    if transport.rank != 3:
        return ""
    try:
        group.sum(torch.ones(1)) if what == "sum" else group.broadcast_object(None)
    except LostPeer as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(("what", "told"), [("sum", "a sum over ranks 2, 3"), ("broadcast", "a broadcast from rank 2")])
def test_collectives_of_a_group_name_its_ranks(what: str, told: str) -> None:
    assert on_ranks(4, lose, what, timeout_s=1)[3].startswith(f"rank 3: {told} did not complete")


def make(name: str, group: Transport) -> Reduction:
    kind, _, topology = name.rpartition(":")
    if kind == "nccl" and group.size > 1:  # the executor for NCCL, used over Gloo
        return NcclExecutor(find_topology(topology)(group.world).on(group.members), Context(group))
    return find_reduction(topology or name, Context(group))


def numbers(rank: int, length: int) -> torch.Tensor:
    return torch.randint(-1000, 1000, (length,), generator=torch.Generator().manual_seed(rank)).float()


def summed(transport: Transport, parts: list[list[int]]) -> dict[str, list[bool]]:
    """For each reduction and each length: whether this rank has exactly the sum over its group."""
    group = own(transport, parts)
    part = next(part for part in parts if transport.rank in part)
    found: dict[str, list[bool]] = {}
    for name in NAMES:
        reduction = make(name, group)
        buckets = [Bucket(numbers(transport.rank, length), number) for number, length in enumerate(LENGTHS)]
        reduction.prepare(buckets)
        for pending in [reduction.start(bucket) for bucket in buckets]:
            pending.wait()
        expected = [sum(numbers(rank, length) for rank in part) for length in LENGTHS]
        found[name] = [torch.equal(bucket.buffer, right) for bucket, right in zip(buckets, expected, strict=True)]
        reduction.close()
    return found


@pytest.mark.parametrize("parts", [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 3], [2]], [[1, 2, 3], [0]]], ids=str)
def test_every_reduction_sums_over_the_ranks_of_its_group_alone(parts: list[list[int]]) -> None:
    for rank, found in enumerate(on_ranks(4, summed, parts, nodes=2)):
        for name, right in found.items():
            assert right == [True] * len(LENGTHS), f"rank {rank}, {name}: {right}"


def nested(transport: Transport) -> dict[str, Any]:
    """Sum over the rows of a grid of 2 x 3 ranks, then over its columns, which gives the sum over all ranks."""
    rows, columns = own(transport, [[0, 1, 2], [3, 4, 5]]), own(transport, [[0, 3], [1, 4], [2, 5]])
    found = {}
    for name in ("native", "ring", "double-tree"):
        first, second = make(name, rows), make(name, columns)
        buffer = numbers(transport.rank, 4099)
        first.start(Bucket(buffer)).wait()
        second.start(Bucket(buffer)).wait()
        found[name] = torch.equal(buffer, sum(numbers(rank, 4099) for rank in range(6)))  # type: ignore[arg-type]
    return found


def test_a_rank_may_be_in_groups_that_cross() -> None:
    assert all(all(found.values()) for found in on_ranks(6, nested, nodes=2))


def lost(transport: Transport) -> str:
    """Rank 3 exits; the other group continues, and rank 3's partner gets an error that names the lost rank."""
    from firetrain.errors import LostPeer

    group = own(transport, [[0, 1], [2, 3]])
    ring = make("ring", group)
    bucket = Bucket(numbers(transport.rank, 300_000), number=4)
    ring.prepare([bucket])
    if transport.rank == 3:
        transport.connections.close()
        return "left"
    try:
        ring.start(bucket, step=17).wait()
    except LostPeer as error:
        return str(error)
    return "summed"


def test_a_lost_rank_is_told_by_its_number_in_the_run_and_only_to_its_group() -> None:
    first, second, third, fourth = on_ranks(4, lost, timeout_s=20)
    assert (first, second, fourth) == ("summed", "summed", "left")
    assert "rank 2 lost rank 3 in step 17, bucket 4: ring" in third
