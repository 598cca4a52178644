"""Prove a plan right without running it: follow every rank's contribution through every transfer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.topology.catalogue import Topology
from firetrain.topology.plan import Plan

LARGEST_WORLD = 64


class Proof(NamedTuple):
    """How many worlds a topology was checked for, how many it does not serve (its parameters do not fit), what is wrong."""

    worlds: int
    refused: int
    faults: list[str]


def faults(plan: Plan) -> list[str]:
    """What is wrong with a plan, empty if every rank ends with every rank's contribution exactly once.

    Each rank's copy of each chunk is a set of contributions, kept as the bits of an integer.
    """
    found = []
    content = [[1 << rank] * plan.chunks for rank in range(plan.ranks)]
    for index, transfer in enumerate(plan.transfers):
        source, target, chunk, adds = transfer
        if not (0 <= source < plan.ranks and 0 <= target < plan.ranks and 0 <= chunk < plan.chunks):
            found.append(f"transfer {index} ({transfer}) is outside {plan.ranks} ranks and {plan.chunks} chunks")
            continue
        if source == target:
            found.append(f"transfer {index} ({transfer}) goes from a rank to itself")
        sent, held = content[source][chunk], content[target][chunk]
        if adds and sent & held:
            found.append(f"transfer {index} ({transfer}) adds the contribution of {_ranks(sent & held)} twice")
        if not adds and held & ~sent:
            found.append(f"transfer {index} ({transfer}) overwrites the contribution of {_ranks(held & ~sent)}")
        content[target][chunk] = sent | held if adds else sent
    everyone = (1 << plan.ranks) - 1
    for rank, chunks in enumerate(content):
        for chunk, held in enumerate(chunks):
            if held != everyone:
                found.append(f"rank {rank} ends without {_ranks(everyone & ~held)} in chunk {chunk}")
    return found or [*_overtakings(plan), *_out_of_order(plan), *_broken_claim(plan)]


def layouts(size: int) -> Iterator[World]:
    """Worlds of `size` ranks to prove a topology for: one node, one rank per node, even nodes, uneven ones, ranks dealt out."""
    yield World.even(1, size)
    if size > 1:
        yield World.even(size, 1)
    for per_node in range(2, size):
        if size % per_node == 0:
            yield World.even(size // per_node, per_node)
        elif per_node in (2, 3, 4, 8):
            yield World(tuple(rank // per_node for rank in range(size)))  # the last node has fewer
    if size > 2:
        yield World(tuple([0] + [1] * (size - 1)))
        yield World(tuple(rank % 2 for rank in range(size)))


def prove(topology: Topology, largest: int = LARGEST_WORLD) -> Proof:
    """Check a topology for all worlds of 1 to `largest` ranks, up to the first world with a fault."""
    worlds = refused = 0
    proved: set[Plan] = set()  # most topologies make one plan for many layouts
    for size in range(1, largest + 1):
        proved.clear()
        for world in layouts(size):
            try:
                plan = topology(world)
            except UserError:
                refused += 1
                continue
            worlds += 1
            found = [] if plan in proved else faults(plan)
            proved.add(plan)
            if plan.ranks != world.size:
                found.insert(0, f"the plan is for {plan.ranks} ranks")
            if found:
                return Proof(worlds, refused, [f"{world}, nodes {world.node_of}: {fault}" for fault in found])
    return Proof(worlds, refused, [])


def _overtakings(plan: Plan) -> list[str]:
    """Transfers from one rank to another must become possible in the order in which they stand.

    Both ends issue what lies between them in that order; a transfer that could leave before an earlier one of its pair would
    have to be held back, or would be taken for it.
    """
    last: dict[tuple[int, int], tuple[int, int]] = {}
    found = []
    for index, (transfer, number) in enumerate(zip(plan.transfers, plan.round_of, strict=True)):
        pair = (transfer.source, transfer.target)
        before, earlier = last.get(pair, (0, 0))
        if number < before:
            found.append(
                f"transfer {index} ({transfer}), round {number + 1}, stands behind transfer {earlier} "
                f"({plan.transfers[earlier]}), round {before + 1}: ranks {pair[0]} and {pair[1]} would differ in their order"
            )
        last[pair] = max((number, index), (before, earlier))
    return found


def _out_of_order(plan: Plan) -> Iterator[str]:
    """A plan that promises sums in rank order must list what is added into a chunk in that order."""
    last: dict[tuple[int, int], int] = {}
    for index, (source, target, chunk, adds) in enumerate(plan.transfers if plan.rank_order else ()):
        if adds and last.get((target, chunk), -1) > source:
            yield f"transfer {index} ({plan.transfers[index]}) is not in rank order: rank {last[target, chunk]} comes before it"
        if adds:
            last[target, chunk] = source


def _broken_claim(plan: Plan) -> Iterator[str]:
    if plan.claim is None:
        return
    depth, busiest = plan.depth, plan.busiest()
    if depth != plan.claim.depth:
        yield f"the plan has {depth} rounds, its closed form says {plan.claim.depth}"
    if busiest != plan.claim.busiest:
        yield f"the busiest rank moves {busiest} of the buffer, the closed form says {plan.claim.busiest}"


def _ranks(bits: int) -> str:
    ranks = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
