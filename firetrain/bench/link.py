"""Measure latency and bandwidth between ranks, inside and between nodes, for one pair alone and all pairs simultaneously."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, pstdev
from typing import Literal

import numpy as np
import torch
from scipy.optimize import nnls

from firetrain.errors import UserError
from firetrain.records.profile import MeasuredLink
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.timing import slowest_s
from firetrain.transport.transport import Transport

SIZES_BYTES = {
    "gloo": (8, 64, 1 << 10, 1 << 20, 2 << 20, 4 << 20),
    "nccl": (8, 64, 1 << 10, 16 << 20, 64 << 20, 256 << 20),
}
# messages of one pair up to this size are ping-pong; larger ones are streamed, so that the burst allowance of a switch or
# shaper has no effect
_ANSWERED_BYTES = 64 << 10
_ANSWERED_COUNT = 20
_STREAM_BYTES = {"gloo": 24 << 20, "nccl": 1 << 30}
_STREAM_S = 0.5

Level = Literal["inside a node", "between nodes"]
Pairs = Literal["one", "all"]


def bench_link(transport: Transport, repeats: int) -> list[MeasuredLink]:
    """Measure every kind of link in this world. Collective call; all ranks get the same result.

    Pairs `one`: the first pair of this kind alone. Pairs `all`: every rank with a neighbour of this kind, all sending and
    receiving simultaneously. UserError for a world of one rank, which has no links.
    """
    if transport.size == 1:
        raise UserError("bench link measures links between ranks: it needs 2 ranks or more (--ranks)")
    found = []
    levels: tuple[Level, ...] = ("inside a node", "between nodes")
    both: tuple[Pairs, ...] = ("one", "all")
    for level in levels:
        for pairs in both:
            route = _route(transport, level, pairs)
            if route:
                found.append(_measure(transport, level, pairs, route, repeats))
    return found


def fit(medians_s: dict[int, float], streamed_from: float = math.inf) -> tuple[float, float]:
    """Fit seconds = latency + bytes / bandwidth by non-negative least squares; returns (latency in s, bytes per s).

    Messages of `streamed_from` bytes and more are streamed, which hides their latency. The bandwidth is fitted to the larger
    half of the sizes, then the latency to the smaller half: small messages pass within the burst allowance of a shaper or
    switch, which would distort the slope. Residuals are relative to the measured time.
    """
    sizes, times = np.array(sorted(medians_s), dtype=float), np.array([medians_s[size] for size in sorted(medians_s)])
    large = sizes >= np.median(sizes)
    # in microseconds and seconds per GB: the solver needs unknowns of similar magnitude
    terms = np.stack([sizes < streamed_from, sizes * 1e-3], axis=1) * 1e-6 / times[:, None]
    (_, s_per_gb), _ = nnls(terms[large], np.ones(large.sum()))
    left_s = np.maximum(0.0, times - sizes * s_per_gb * 1e-9)[~large]
    return float(left_s.mean()), 1e9 / max(float(s_per_gb), 1e-6)


def _route(transport: Transport, level: Level, pairs: Pairs) -> dict[int, tuple[int, int]]:
    """For each participating rank, the ranks it sends to and receives from. Empty if there is no such link."""
    nodes = transport.world.nodes
    if level == "inside a node":
        rings: Sequence[Sequence[int]] = [ranks for ranks in nodes if len(ranks) > 1]
    else:
        rows = min(map(len, nodes))
        rings = [[ranks[local] for ranks in nodes] for local in range(rows)] if len(nodes) > 1 else []
    if not rings:
        return {}
    if pairs == "one":
        a, b = rings[0][:2]
        return {a: (b, b), b: (a, a)}
    return {rank: (ring[(i + 1) % len(ring)], ring[i - 1]) for ring in rings for i, rank in enumerate(ring)}


def _measure(
    transport: Transport, level: Level, pairs: Pairs, route: dict[int, tuple[int, int]], repeats: int
) -> MeasuredLink:
    transport.connect_to(set(route.get(transport.rank, ())))
    with lost_peers(transport.rank, f"the measurement of links {level}"):
        counts = {size: _count(transport, pairs, route, size) for size in SIZES_BYTES[transport.name]}
        # every round measures all sizes, so that a temporary slowdown affects all sizes alike
        rounds = [
            {size: _exchange_s(transport, pairs, route, size, count) for size, count in counts.items()}
            for _ in range(repeats)
        ]
    times = {size: [one[size] for one in rounds] for size in SIZES_BYTES[transport.name]}
    medians = {size: median(values) for size, values in times.items()}
    # half widths of the medians' 95 % intervals, from the standard error of the mean
    spreads = {
        size: 1.96 * 1.25 * pstdev(values) / math.sqrt(repeats) / medians[size] for size, values in times.items()
    }
    latency_s, bytes_per_s = fit(medians, _ANSWERED_BYTES + 1 if pairs == "one" else math.inf)
    return MeasuredLink(
        level=level,
        pairs=pairs,
        transport=transport.name,
        node_of=transport.world.node_of,
        latency_s=latency_s,
        bytes_per_s=bytes_per_s,
        medians_s=medians,
        count=repeats,
        latency_spread=min(1.0, median(spread for size, spread in spreads.items() if size <= _ANSWERED_BYTES)),
        spread=min(1.0, median(spread for size, spread in spreads.items() if size > _ANSWERED_BYTES)),
    )


def _count(transport: Transport, pairs: Pairs, route: dict[int, tuple[int, int]], size: int) -> int:
    """The number of consecutive messages of a size; also opens the connections."""
    first_s = _exchange_s(transport, pairs, route, size, 2)
    if size <= _ANSWERED_BYTES:
        return _ANSWERED_COUNT
    return max(2, min(_STREAM_BYTES[transport.name] // size, math.ceil(_STREAM_S / first_s)))


def _exchange_s(transport: Transport, pairs: Pairs, route: dict[int, tuple[int, int]], size: int, count: int) -> float:
    """Mean seconds per message of `size` bytes, over `count` consecutive messages; the same on every rank."""
    messages = 2 * count if pairs == "one" and size <= _ANSWERED_BYTES else count
    if transport.rank not in route:
        return slowest_s(transport, lambda: None) / messages
    target, source = route[transport.rank]
    message = torch.zeros(size, dtype=torch.uint8, device=transport.device)
    send, receive = (target, message), (source, torch.empty_like(message))
    first = transport.rank < target
    here, there = ((send, None), (None, receive)) if first else ((None, receive), (send, None))

    def run() -> None:
        for _ in range(count):
            if pairs == "all":
                transport.exchange(send, receive)
                continue
            transport.exchange(*here)
            if size <= _ANSWERED_BYTES:
                transport.exchange(*there)
        if pairs == "one" and size > _ANSWERED_BYTES:
            answer = torch.zeros(1, dtype=torch.uint8, device=transport.device)
            transport.exchange(None if first else (target, answer), (source, answer) if first else None)

    return slowest_s(transport, run) / messages
