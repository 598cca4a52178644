"""Hierarchical: inside the nodes first, over their fast links; then between the nodes, once per node."""

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

    Of `inner`'s plan for the ranks of a node the adding half comes first; the ranks that then hold a share of the node's sum
    all-reduce it with the holders of the same share on the other nodes, as `outer` plans it; the copying half comes last.
    Nodes may have different numbers of ranks. With ring and ring, g ranks on each of m nodes: depth 2(g-1) + 2(m-1); each
    rank sends and receives 2(g-1)/g of the buffer inside its node and 2(m-1)/(gm) between nodes.
    """
    nodes = world.nodes
    inside = {len(ranks): find_topology(inner)(World.even(1, len(ranks))) for ranks in nodes}
    between = find_topology(outer)(World.even(len(nodes), 1))
    shares = math.lcm(*(plan.chunks for plan in inside.values()))
    steps: list[tuple[int, Transfer]] = []  # (round, transfer); each of the three parts begins when all may be ready
    reduced = max(_reduced(plan) for plan in inside.values())
    spread = reduced + between.depth
    holders: list[list[int]] = []  # of each node, the rank that holds each share
    for ranks in nodes:
        local = inside[len(ranks)]
        owners = _owners(local, inner)
        width = shares // local.chunks
        later = spread - _reduced(local)
        holders.append([ranks[owners[share // width]] for share in range(shares)])
        for number, transfer in zip(local.round_of, local.transfers, strict=True):
            begins = number if transfer.adds else number + later
            steps += [(begins, wide) for wide in _wider(transfer, ranks, width * between.chunks)]
    for share in range(shares):
        for number, (source, target, chunk, adds) in zip(between.round_of, between.transfers, strict=True):
            across = Transfer(holders[source][share], holders[target][share], share * between.chunks + chunk, adds)
            steps.append((reduced + number, across))
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
    """The round after the last that adds."""
    return max((number + 1 for number, t in zip(plan.round_of, plan.transfers, strict=True) if t.adds), default=0)


def _wider(transfer: Transfer, ranks: Sequence[int], width: int) -> Iterator[Transfer]:
    """A transfer of a node's plan between its `ranks`, the chunk cut into `width` chunks."""
    source, target, chunk, adds = transfer
    for piece in range(chunk * width, (chunk + 1) * width):
        yield Transfer(ranks[source], ranks[target], piece, adds)


def _owners(plan: Plan, name: str) -> list[int]:
    """The rank that holds the sum of each chunk once all adds are done; UserError if nobody does before the copies."""
    everyone = (1 << plan.ranks) - 1
    content = [[1 << rank] * plan.chunks for rank in range(plan.ranks)]
    owners = [0] * plan.chunks
    copied = set()
    for source, target, chunk, adds in plan.transfers:
        if not adds:
            copied.add(chunk)
        elif chunk in copied:
            raise UserError(f"hierarchical: {name} adds after it copies, so it cannot be halved to stand inside a node")
        else:
            content[target][chunk] |= content[source][chunk]
            if content[target][chunk] == everyone:
                owners[chunk] = target
    return owners


def _claim(inside: dict[int, Plan], between: Plan, holders: list[list[int]]) -> Claim | None:
    """The sum of both claims, where all nodes are alike and every rank carries the same load."""
    ((ranks, plan),) = inside.items() if len(inside) == 1 else ((0, between),)
    loads = [part.bytes_sent(part.chunks) + part.bytes_received(part.chunks) for part in (plan, between)]
    loads += [[held.count(rank) for rank in held] + [len(held) // ranks] for held in holders if ranks]
    if not (ranks and plan.claim and between.claim) or any(len(set(load)) > 1 for load in loads):
        return None
    return Claim(
        plan.claim.depth + between.claim.depth, plan.claim.busiest + between.claim.busiest * Fraction(1, ranks)
    )
