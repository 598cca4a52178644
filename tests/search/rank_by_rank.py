"""The time of a step simulated rank by rank, as the check of the one timeline that stands for all ranks.

Every rank has its own clocks of compute and of sums. It waits for the ranks with which it exchanges activations, and for the
ranks that sum the same gradients.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fractions import Fraction

from firetrain.cluster import World
from firetrain.search.problem import Choice, Problem

# (ranks of one sum, bytes, whether one of these ranks was just before it)
_Bucket = tuple[int, int, bool]
# by the number of ranks in each
Groups = Mapping[int, Collection[tuple[int, ...]]]


def groups_of(problem: Problem, world: World) -> Groups:
    """The groups of ranks that sum the same gradients, for every grid of a problem."""
    splits = {grid.images: grid.split(world) for grid in problem.grids}
    return {images: {split.sharers(rank) for rank in split.ranks} for images, split in splits.items()}


def step_ns_of_ranks(problem: Problem, choice: Choice, groups: Groups) -> int:
    """The time of a step."""
    ranks = problem.grids[0].images * problem.grids[0].outputs
    compute, sums = [0] * ranks, [0] * ranks
    bucket: _Bucket | None = None
    for layer in reversed(range(len(problem.names))):
        grid = choice[problem.variables[layer]]
        for edge in problem.edges_from[layer]:
            if ns := int(edge.ns[grid, choice[problem.variables[edge.layer]]]):
                # everybody waits for the last one: all ranks hold a part of the layer
                begins = max(compute)
                link_free = max(max(sums), begins)
                sums, compute = [link_free + ns] * ranks, [begins + ns] * ranks
        for rank in range(ranks):
            compute[rank] += int(problem.backward_ns[layer, grid])
        size, sharers = int(problem.gradient_bytes[layer, grid]), problem.grids[grid].images
        if not size:
            continue
        limit = problem.bucket_bytes if bucket is not None and bucket[2] else problem.bucket_bytes // 4
        stolen = 0
        if bucket is not None and (bucket[0] != sharers or bucket[1] + size > limit):
            sums, stolen = _summed(problem, sums, bucket, groups), _stolen(problem, bucket)
            bucket = (sharers, 0, bucket[0] == sharers)
        for rank in range(ranks):
            sums[rank] = max(sums[rank], compute[rank])
            compute[rank] += stolen
        bucket = (sharers, size + (bucket[1] if bucket is not None else 0), bucket is not None and bucket[2])
    if bucket is not None:
        sums = _summed(problem, sums, bucket, groups)
        compute = [one + _stolen(problem, bucket) for one in compute]
    ends = [max(pair) for pair in zip(compute, sums, strict=True)]
    return max(ends) + _ahead_ns(problem, choice)


def _summed(problem: Problem, sums: list[int], bucket: _Bucket, groups: Groups) -> list[int]:
    """The clocks of sums after a bucket: the ranks of a group begin together."""
    ends = list(sums)
    for group in groups[bucket[0]]:
        end = max(sums[rank] for rank in group) + problem.sums(bucket[0], bucket[1])
        for rank in group:
            ends[rank] = end
    return ends


def _stolen(problem: Problem, bucket: _Bucket) -> int:
    """What the sum of a bucket takes from the compute of every rank."""
    return math.ceil(Fraction(problem.sums(bucket[0], bucket[1]) * problem.stolen_per_mille, 1000))


def _ahead_ns(problem: Problem, choice: Choice) -> int:
    """The forward pass and the update, which all ranks do at the same time."""
    found = 0
    for layer, variable in enumerate(problem.variables):
        grid = choice[variable]
        found += int(problem.forward_ns[layer, grid]) + int(problem.update_ns[layer, grid])
        found += sum(int(edge.ns[grid, choice[problem.variables[edge.layer]]]) for edge in problem.edges_from[layer])
    return found
