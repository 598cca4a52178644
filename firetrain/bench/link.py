"""Latency and bandwidth between ranks, inside nodes and between them, one pair at a time and all at once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median, pstdev
from typing import Literal

import numpy as np
import torch
from scipy.optimize import nnls

from firetrain.errors import UserError
from firetrain.records.profile import MeasuredLink
from firetrain.reduction.transport import Transport, lost_peers

SIZES_BYTES = (8, 64, 1 << 10, 1 << 20, 2 << 20, 4 << 20)
# up to this a message waits for its answer; those of one pair that are larger follow one another, so that what a
# switch or a shaper lets through at once does not count
_ANSWERED_BYTES = 64 << 10
_ANSWERED_ROW = 20
_STREAM_BYTES = 24 << 20
_STREAM_S = 0.5

Level = Literal["inside a node", "between nodes"]
Pairs = Literal["one", "all"]


def bench_link(transport: Transport, repeats: int) -> list[MeasuredLink]:
    """Measure every kind of link that this world has; all ranks call it together and get the same.

    one: the first pair of that kind alone. all: every rank with a neighbour of that kind, all sending and receiving at
    once. UserError for a world of one rank, which has none.
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
    """(latency in s, bytes per s) of seconds = latency + bytes / bandwidth, by non-negative least squares.

    Messages of `streamed_from` bytes and more follow one another, so that the link hides their latency. The bandwidth comes
    from the larger half of the sizes, the latency then from the smaller: these pass a shaper's or a switch's burst for
    nothing, and would bend the line. Residuals count relative to the measured time.
    """
    sizes, times = np.array(sorted(medians_s), dtype=float), np.array([medians_s[size] for size in sorted(medians_s)])
    large = sizes >= np.median(sizes)
    # in microseconds, and seconds per GB: alike in size, for the solver
    terms = np.stack([sizes < streamed_from, sizes * 1e-3], axis=1) * 1e-6 / times[:, None]
    (_, s_per_gb), _ = nnls(terms[large], np.ones(large.sum()))
    left_s = np.maximum(0.0, times - sizes * s_per_gb * 1e-9)[~large]
    return float(left_s.mean()), 1e9 / max(float(s_per_gb), 1e-6)


def _route(transport: Transport, level: Level, pairs: Pairs) -> dict[int, tuple[int, int]]:
    """Of each rank that takes part: whom it sends to, and from whom it receives. Empty if there is no such link."""
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
        rows = {size: _row(transport, pairs, route, size) for size in SIZES_BYTES}
        # size after size, again and again: what slows the machine for a while does not fall on one size alone
        rounds = [
            {size: _exchange(transport, pairs, route, size, row) for size, row in rows.items()} for _ in range(repeats)
        ]
    times = {size: [one[size] for one in rounds] for size in SIZES_BYTES}
    medians = {size: median(values) for size, values in times.items()}
    # of a median, from the standard error of so many
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


def _row(transport: Transport, pairs: Pairs, route: dict[int, tuple[int, int]], size: int) -> int:
    """How many messages of a size are timed in a row; connections are open afterwards."""
    first_s = _exchange(transport, pairs, route, size, 2)
    if size <= _ANSWERED_BYTES:
        return _ANSWERED_ROW
    return max(2, min(_STREAM_BYTES // size, math.ceil(_STREAM_S / first_s)))


def _exchange(transport: Transport, pairs: Pairs, route: dict[int, tuple[int, int]], size: int, row: int) -> float:
    """Seconds per message of `size` bytes, of `row` in a row; of the slowest rank."""
    spent_s = 0.0
    transport.barrier()
    if transport.rank in route:
        target, source = route[transport.rank]
        message = torch.zeros(size, dtype=torch.uint8, device=transport.device)
        landing = torch.empty_like(message)
        send, receive = (target, message), (source, landing)
        first = transport.rank < target
        here, there = ((send, None), (None, receive)) if first else ((None, receive), (send, None))
        started_s = time.perf_counter()
        if pairs == "all":
            for _ in range(row):
                transport.exchange(send, receive)
        elif size <= _ANSWERED_BYTES:
            for _ in range(row):
                transport.exchange(*here)
                transport.exchange(*there)
            row *= 2
        else:
            for _ in range(row):
                transport.exchange(*here)
            answer = torch.zeros(1, dtype=torch.uint8, device=transport.device)
            transport.exchange(None if first else (target, answer), (source, answer) if first else None)
        if transport.device.type == "cuda":
            torch.cuda.synchronize()
        spent_s = (time.perf_counter() - started_s) / row
    spent = torch.tensor([spent_s], dtype=torch.float64, device=transport.device)
    return max(float(value) for value in transport.gather(spent))
