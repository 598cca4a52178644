"""The label search finds what trying all choices finds, and its bound is never above it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from problems import brute_force_ns, chain, choices, inception

from firetrain.search.frontier import best_choice
from firetrain.search.optimum import _Stairs, find_optimum
from firetrain.search.problem import Problem
from firetrain.search.step_simulator import StepSimulator
from firetrain.search.sums import Sums


def additive_ns(problem: Problem, choice: tuple[int, ...]) -> int:
    """The sum of all times, as if nothing overlapped and every layer was a bucket."""
    found = 0
    for layer, variable in enumerate(problem.variables):
        grid = choice[variable]
        found += int((problem.forward_ns + problem.backward_ns + problem.update_ns)[layer, grid])
        if size := int(problem.gradient_bytes[layer, grid]):
            found += problem.sums(problem.grids[grid].images, size)
        found += sum(
            2 * int(edge.ns[grid, choice[problem.variables[edge.layer]]]) for edge in problem.edges_from[layer]
        )
    return found


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(("ranks", "seeds"), [(4, 24), (6, 12)])
def test_the_optimum_of_chains_is_that_of_all_choices(ranks: int, seeds: int, memory: bool) -> None:
    for seed in range(seeds):
        problem = chain(seed, ranks=ranks, memory=memory)
        found, truth = find_optimum(problem), brute_force_ns(problem)
        if truth is None:
            assert found.choice is None
            continue
        assert found.choice is not None and found.is_proven
        assert found.step_ns == truth == found.bound_ns == StepSimulator(problem).step_ns(found.choice)
        assert problem.memory_limit_bytes is None or problem.memory(found.choice) <= problem.memory_limit_bytes


@pytest.mark.parametrize("memory", [False, True])
def test_the_optimum_of_inception_modules_is_that_of_all_choices(memory: bool) -> None:
    for seed in range(5):
        problem = inception(seed, memory=memory)
        found, truth = find_optimum(problem), brute_force_ns(problem)
        assert truth is None or (found.step_ns == truth == found.bound_ns and found.is_proven)
        assert (truth is None) == (found.choice is None)


@pytest.mark.parametrize("memory", [False, True])
def test_no_bound_is_above_what_it_bounds(memory: bool) -> None:
    """The fastest grids are found, too, where all labels are left out that cannot be as fast."""
    for problem in (
        *(chain(seed, ranks=4 + 2 * (seed % 2), memory=memory) for seed in range(140)),
        *(inception(seed, memory=memory) for seed in range(10)),
    ):
        found = find_optimum(problem)
        assert found.choice is None or find_optimum(problem, found.step_ns + 1).step_ns == found.step_ns


def test_shares_of_gradients_in_sums_are_never_more_than_the_sums() -> None:
    """Whatever the buckets are: at most 5,000 bytes each, or a single gradient."""
    draw = random.Random(1)
    for _ in range(200):
        sizes = np.array(sorted({0, *(draw.randrange(1, 40_000) for _ in range(5)), 40_000}))
        sums = Sums(sizes.tolist(), {4: np.sort([draw.randrange(1, 9_000) for _ in sizes]).tolist()})
        bucket: list[int] = []
        for size in [draw.choice((7, 300, 1500, 9_000)) for _ in range(30)]:
            if bucket and sum(bucket) + size > 5_000:
                assert sums.least(4, np.array(bucket), 5_000).sum() <= sums(4, sum(bucket))
                bucket = []
            bucket.append(size)
    assert sums.least(4, np.array([9_000]), 5_000) == pytest.approx(sums(4, 9_000), abs=1), "which is summed alone"


def test_a_capped_search_tells_how_far_it_may_be_from_the_optimum() -> None:
    gaps = 0
    for seed in range(8):
        problem = inception(seed, ranks=6)
        truth, capped = find_optimum(problem).step_ns, find_optimum(problem, most_labels=3)
        assert capped.bound_ns <= truth <= capped.step_ns
        gaps += not capped.is_proven
    assert gaps, "no search was capped"


def test_only_pairs_that_are_nowhere_larger_remain() -> None:
    draw = random.Random(1)
    for _ in range(300):
        pairs = [(draw.randrange(12), draw.randrange(12)) for _ in range(30)]
        stairs, kept = _Stairs(), list[tuple[int, int]]()
        for first, second in pairs:
            is_superfluous = any(one <= first and other <= second for one, other in kept)
            assert stairs.adds(first, second) != is_superfluous
            kept += [] if is_superfluous else [(first, second)]


def test_only_what_is_faster_than_the_limit_is_found() -> None:
    problem = chain(3)
    best = find_optimum(problem)
    again = find_optimum(problem, best.step_ns)
    assert again.choice is None and again.is_proven and again.bound_ns == again.step_ns == best.step_ns
    assert again.labels < best.labels
    assert find_optimum(problem, best.step_ns + 1).choice == best.choice


def test_dynamic_programming_finds_the_least_sum() -> None:
    for seed in range(6):
        for problem in (chain(seed), inception(seed)):
            slices = problem.forward_ns + problem.backward_ns + problem.update_ns
            sums = [
                [
                    problem.sums(grid.images, int(size)) if size else 0
                    for grid, size in zip(problem.grids, row, strict=True)
                ]
                for row in problem.gradient_bytes
            ]
            found = best_choice(problem, slices + sums, exchanges=2.0)
            least = min(additive_ns(problem, choice) for choice in choices(problem))
            assert additive_ns(problem, found) == least
