"""Prove a plan right without running it: follow every rank's contribution through every transfer."""

from __future__ import annotations

from collections.abc import Iterator

from firetrain.cluster import World
from firetrain.topology.catalogue import Topology
from firetrain.topology.plan import Plan

LARGEST_WORLD = 64


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
    return found


def layouts(size: int) -> Iterator[World]:
    """Worlds of `size` ranks to prove a topology for: one node, one rank per node, even nodes, and uneven ones."""
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


def prove(topology: Topology, largest: int = LARGEST_WORLD) -> tuple[int, list[str]]:
    """Check a topology for all worlds of 1 to `largest` ranks: how many were checked, and the first world's faults."""
    count = 0
    for size in range(1, largest + 1):
        for world in layouts(size):
            plan = topology(world)
            found = faults(plan)
            if plan.ranks != world.size:
                found.insert(0, f"the plan is for {plan.ranks} ranks")
            count += 1
            if found:
                return count, [f"{world}, nodes {world.node_of}: {fault}" for fault in found]
    return count, []


def _ranks(bits: int) -> str:
    ranks = [str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
