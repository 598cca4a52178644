"""Hierarchical: reduce inside the nodes first, over their fast links, then between the nodes, once per node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.topology.catalogue import find_topology
from firetrain.topology.plan import Claim, Plan, Transfer


def hierarchical(world: World, inner: str = "ring", outer: str = "ring") -> Plan:
    """Reduce inside each node by one topology, all-reduce between nodes by another, spread inside each node again.

    The ranks of a node first execute the adding half of `inner`'s plan. Then the ranks that hold a share of the node's sum
    all-reduce it, by `outer`, with the holders of the same share on other nodes. Last, the ranks of a node execute the copying
    half of `inner`'s plan. Nodes may have different numbers of ranks. With ring and ring, and g ranks on each of m nodes: depth
    2(g-1) + 2(m-1); each rank sends and receives 2(g-1)/g of the buffer inside its node and 2(m-1)/(gm) between nodes.
    """
    nodes = world.nodes
    inside = {len(ranks): find_topology(inner)(World.even(1, len(ranks))) for ranks in nodes}
    between = find_topology(outer)(World.even(len(nodes), 1))
    shares = math.lcm(*(plan.chunks for plan in inside.values()))
    # (round, transfer); each of the three parts begins when all ranks may be ready
    steps: list[tuple[int, Transfer]] = []
    reduced = max(_reduced(plan) for plan in inside.values())
    spread = reduced + between.depth
    holders: list[list[int]] = []  # for each node, the rank that holds each share
    for ranks in nodes:
        local = inside[len(ranks)]
        owners = _owners(local, inner)
        width = shares // local.chunks
        later = spread - _reduced(local)
        holders.append([ranks[owners[share // width]] for share in range(shares)])
        for number, transfer in zip(local.round_of, local.transfers, strict=True):
            begins = number if transfer.adds else number + later
            steps += [(begins, wide) for wide in _wider(transfer, ranks, width * between.chunks)]
    steps += [(reduced + number, transfer) for number, transfer in _across(between, holders)]
    steps.sort(key=lambda step: step[0])
    not_before, transfers = zip(*steps, strict=True) if steps else ((), ())
    return Plan(
        "hierarchical",
        world.size,
        shares * between.chunks,
        transfers,
        pipelined=between.pipelined and all(plan.pipelined for plan in inside.values()),
        not_before=not_before,
        claim=_claim(inside, between, holders),
    )


def _reduced(plan: Plan) -> int:
    """The first round after all additions."""
    return max((number + 1 for number, t in zip(plan.round_of, plan.transfers, strict=True) if t.adds), default=0)


def _wider(transfer: Transfer, ranks: Sequence[int], width: int) -> Iterator[Transfer]:
    """A transfer of a node's plan as transfers between its `ranks`, with the chunk split into `width` chunks."""
    source, target, chunk, adds = transfer
    for piece in range(chunk * width, (chunk + 1) * width):
        yield Transfer(ranks[source], ranks[target], piece, adds)


def _across(between: Plan, holders: Sequence[Sequence[int]]) -> Iterator[tuple[int, Transfer]]:
    """The transfers between nodes, with their rounds: for each share the plan among the ranks that hold it."""
    for share in range(len(holders[0])):
        for number, (source, target, chunk, adds) in zip(between.round_of, between.transfers, strict=True):
            index = share * between.chunks + chunk
            yield number, Transfer(holders[source][share], holders[target][share], index, adds)


def _owners(plan: Plan, name: str) -> list[int]:
    """The rank that holds the sum of each chunk after all additions; UserError if the plan adds after copying."""
    everyone = (1 << plan.ranks) - 1
    content = [[1 << rank] * plan.chunks for rank in range(plan.ranks)]
    owners = [0] * plan.chunks
    copied = set()
    for source, target, chunk, adds in plan.transfers:
        if not adds:
            copied.add(chunk)
        elif chunk in copied:
            raise UserError(
                f"hierarchical: {name} adds after copying, so it cannot be split into a reduce and a broadcast phase for use "
                "inside a node"
            )
        else:
            content[target][chunk] |= content[source][chunk]
            if content[target][chunk] == everyone:
                owners[chunk] = target
    return owners


def _claim(inside: dict[int, Plan], between: Plan, holders: list[list[int]]) -> Claim | None:
    """The sum of both claims if all nodes have equally many ranks and all ranks have the same load; otherwise None."""
    ((ranks, plan),) = inside.items() if len(inside) == 1 else ((0, between),)
    loads = [part.bytes_sent(part.chunks) + part.bytes_received(part.chunks) for part in (plan, between)]
    loads += [[held.count(rank) for rank in held] + [len(held) // ranks] for held in holders if ranks]
    if not (ranks and plan.claim and between.claim) or any(len(set(load)) > 1 for load in loads):
        return None
    return Claim(
        plan.claim.depth + between.claim.depth, plan.claim.busiest + between.claim.busiest * Fraction(1, ranks)
    )
