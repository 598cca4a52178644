"""How gradients are put into buckets, in the order in which the backward pass produces them."""

from __future__ import annotations

from collections.abc import Sequence

from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement


def fill(sizes_bytes: Sequence[int], limit_bytes: float) -> list[int]:
    """The number of gradients in each bucket of at most `limit_bytes`; a larger gradient has a bucket of its own.

    The limit of the first bucket is a quarter: the earlier communication starts, the more of it overlaps with backward.

    >>> fill([4, 4, 4, 4, 4, 40, 4], limit_bytes=16)
    [1, 4, 1, 1]
    """
    counts: list[int] = []
    held_bytes = 0
    for size_bytes in sizes_bytes:
        if not counts or held_bytes + size_bytes > (limit_bytes if len(counts) > 1 else limit_bytes / 4):
            counts.append(0)
            held_bytes = 0
        counts[-1] += 1
        held_bytes += size_bytes
    return counts


def shared_runs(placement: Placement) -> list[tuple[tuple[int, ...], list[Layer]]]:
    """The groups of two or more sharers, each with layers that follow one another and whose gradients it sums.

    Buckets have gradients of one run. A layer without shared weights does not end a run.
    """
    found: list[tuple[tuple[int, ...], list[Layer]]] = []
    open_runs: dict[tuple[int, ...], list[Layer]] = {}
    for layer in placement.layers:
        groups = [group for group in placement.sharers(layer) if len(group) > 1]
        if not groups:
            continue
        open_runs = {group: open_runs.get(group, []) for group in groups}
        for group, layers in open_runs.items():
            if not layers:
                found.append((group, layers))
            layers.append(layer)
    return found
