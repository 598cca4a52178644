"""Verify a plan without running it, by following every contribution through every transfer."""

from __future__ import annotations

from collections.abc import Iterator

from firetrain.cluster import World
from firetrain.cluster.proof import Proof
from firetrain.errors import UserError
from firetrain.topology.catalogue import Topology
from firetrain.topology.plan import Plan

LARGEST_WORLD = 64


def faults(plan: Plan) -> list[str]:
    """The faults of a plan; empty if every rank ends with the contribution of every rank exactly once.

    The content of a chunk on a rank is the set of contributions in it, represented by the bits of an integer.

    >>> from firetrain.topology import Transfer
    >>> faults(Plan("example", ranks=2, chunks=1, transfers=(Transfer(1, 0, 0, adds=True),)))
    ['rank 1 ends without rank 0 in chunk 0']
    """
    found = []
    position_of = plan.position_of
    content = [[1 << position] * plan.chunks for position in range(plan.ranks)]
    for index, transfer in enumerate(plan.transfers):
        source, target, chunk, adds = transfer
        if not (source in position_of and target in position_of and 0 <= chunk < plan.chunks):
            found.append(f"transfer {index} ({transfer}) is outside {plan.ranks} ranks and {plan.chunks} chunks")
            continue
        if source == target:
            found.append(f"transfer {index} ({transfer}) goes from a rank to itself")
        sent, held = content[position_of[source]][chunk], content[position_of[target]][chunk]
        if adds and sent & held:
            found.append(f"transfer {index} ({transfer}) adds the contribution of {_ranks(plan, sent & held)} twice")
        if not adds and held & ~sent:
            found.append(f"transfer {index} ({transfer}) overwrites the contribution of {_ranks(plan, held & ~sent)}")
        content[position_of[target]][chunk] = sent | held if adds else sent
    everyone = (1 << plan.ranks) - 1
    for rank, position in position_of.items():
        for chunk, held in enumerate(content[position]):
            if held != everyone:
                found.append(f"rank {rank} ends without {_ranks(plan, everyone & ~held)} in chunk {chunk}")
    return found or [*_overtakings(plan), *_out_of_order(plan), *_broken_claim(plan)]


def layouts(size: int) -> Iterator[World]:
    """Worlds of `size` ranks to check: one node, one rank per node, even nodes, uneven nodes, ranks alternating on two nodes."""
    yield World.even(1, size)
    if size > 1:
        yield World.even(size, 1)
    for per_node in range(2, size):
        if size % per_node == 0:
            yield World.even(size // per_node, per_node)
        elif per_node in (2, 3, 4, 8):
            yield World(tuple(rank // per_node for rank in range(size)))  # the last node has fewer ranks
    if size > 2:
        yield World(tuple([0] + [1] * (size - 1)))
        yield World(tuple(rank % 2 for rank in range(size)))


def prove(topology: Topology, largest: int = LARGEST_WORLD) -> Proof:
    """Check a topology for all layouts of 1 to `largest` ranks; stops at the first world with a fault.

    >>> from firetrain.topology import find_topology
    >>> prove(find_topology("ring"), largest=4)
    Proof(worlds=14, refused=0, reason='', faults=[])
    """
    worlds, refused, reason = 0, 0, ""
    proved: set[Plan] = set()  # most topologies make the same plan for many layouts
    for size in range(1, largest + 1):
        proved.clear()
        for world in layouts(size):
            try:
                plan = topology(world)
            except UserError as error:
                refused, reason = refused + 1, str(error)
                continue
            worlds += 1
            found = [] if plan in proved else faults(plan)
            proved.add(plan)
            if plan.ranks != world.size:
                found.insert(0, f"the plan is for {plan.ranks} ranks")
            if found:
                return Proof(worlds, refused, reason, [f"{world}, nodes {world.node_of}: {fault}" for fault in found])
    return Proof(worlds, refused, reason, [])


def _overtakings(plan: Plan) -> list[str]:
    """Faults in the order of transfers between two ranks: none may be listed after a transfer of a later round.

    Both ranks process their common transfers in the plan's order. Otherwise the receiver would take one transfer for the other.
    """
    last: dict[tuple[int, int], tuple[int, int]] = {}
    found = []
    for index, (transfer, number) in enumerate(zip(plan.transfers, plan.round_of, strict=True)):
        pair = (transfer.source, transfer.target)
        before, earlier = last.get(pair, (0, 0))
        if number < before:
            found.append(
                f"transfer {index} ({transfer}), round {number + 1}, is listed after transfer {earlier} "
                f"({plan.transfers[earlier]}) of the later round {before + 1}: ranks {pair[0]} and {pair[1]} would process them "
                "in different orders"
            )
        last[pair] = max((number, index), (before, earlier))
    return found


def _out_of_order(plan: Plan) -> Iterator[str]:
    """Faults in the order of additions: a plan that sums in rank order must list the additions to each chunk in that order."""
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
        yield f"the busiest rank sends or receives {busiest} times the buffer, its closed form says {plan.claim.busiest}"


def _ranks(plan: Plan, bits: int) -> str:
    ranks = [str(rank) for rank, position in plan.position_of.items() if bits >> position & 1]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}"
