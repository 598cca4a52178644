"""Full simulation, delta simulation and simulation rank by rank give the same nanoseconds."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from problems import chain, inception, pure
from rank_by_rank import groups_of, step_ns_of_ranks

from firetrain.cluster import World
from firetrain.search.delta import Delta
from firetrain.search.draws import step_draws_ns
from firetrain.search.problem import Problem
from firetrain.search.step_simulator import StepSimulator
from firetrain.search.sums import Sums
from firetrain.search.walk import walk


def changes(problem: Problem, count: int, seed: int) -> int:
    """The number of random changes, each of which was simulated in three ways; every fourth one is kept."""
    draw, simulator = random.Random(seed), StepSimulator(problem)
    groups = groups_of(problem, World.even(2, problem.grids[0].images // 2))
    delta = Delta(simulator, tuple(allowed[0] for allowed in problem.allowed))
    for number in range(count):
        chosen = draw.sample(range(len(problem.allowed)), draw.choice((1, 1, 2)))
        changed = {variable: draw.choice(problem.allowed[variable]) for variable in chosen}
        choice = tuple(changed.get(variable, grid) for variable, grid in enumerate(delta.choice))
        assert delta.after(changed) == simulator.step_ns(choice) == step_ns_of_ranks(problem, choice, groups)
        if number % 4 == 0:
            delta.change(changed)
            assert delta.choice == choice and delta.step_ns == simulator.step_ns(choice)
    return count


@pytest.mark.parametrize("ranks", [4, 6, 12, 16])
def test_delta_is_full_is_rank_by_rank_in_bits(ranks: int) -> None:
    problems = [chain(seed, layers=12, ranks=ranks) for seed in range(4)]
    problems += [inception(seed, ranks=ranks) for seed in range(4)]
    assert sum(changes(problem, 130, seed) for seed, problem in enumerate(problems)) > 1000, "4,000 for all ranks"


def test_delta_simulation_has_few_events() -> None:
    problem = chain(1, layers=40, ranks=8)
    found = walk(problem, tuple(allowed[0] for allowed in problem.allowed), proposals=300)
    assert found.step_ns == StepSimulator(problem).step_ns(found.choice) and 300 < found.events < 300 * 80 / 1.5


@pytest.mark.parametrize("ranks", [4, 6])
def test_each_draw_is_the_step_with_its_speeds(ranks: int) -> None:
    draw = random.Random(3)
    for seed in range(12):
        problem = chain(seed, ranks=ranks) if seed % 2 else inception(seed, ranks=ranks)
        choice = tuple(map(draw.choice, problem.allowed))
        links, compute = np.array([1.0, 1.0, 3.0]), np.array([1.0, 2.0, 1.0])
        passes = replace(
            problem, **{f"{name}_ns": 2 * getattr(problem, f"{name}_ns") for name in ("forward", "backward", "update")}
        )
        sums = Sums(problem.sums.sizes_bytes, {of: [3 * one for one in row] for of, row in problem.sums.ns.items()})
        slow = replace(problem, sums=sums, edges=tuple(edge._replace(ns=3 * edge.ns) for edge in problem.edges))
        expected = [StepSimulator(one).step_ns(choice) for one in (problem, passes, slow)]
        found = step_draws_ns(problem, choice, compute, links, np.zeros(3))
        assert np.abs(found - expected).max() <= 3 * len(problem.names), "a nanosecond in each sum"
        late = replace(problem, update_ns=problem.update_ns.copy(), unexplained_ns=500)
        late.update_ns[-1] += 500
        left_ns = np.array([500.0, 500.0, 900.0])  # which no speed of compute changes
        assert step_draws_ns(late, choice, compute, links, left_ns) == pytest.approx(found + left_ns)


def two_layers_ns(sum_ns: int, bucket_bytes: int, stolen_per_mille: int = 0) -> int:
    """The step of two layers of 1000 ns backward, with 4000 bytes of gradients each."""
    problem = pure((1000, 1000), (4000, 4000), sum_ns, bucket_bytes, stolen_per_mille)
    return StepSimulator(problem).step_ns((0, 0))


def test_compute_that_overlaps_with_sums_is_not_added_to_them() -> None:
    """The last layer's gradients are summed while the first layer is computed."""
    assert two_layers_ns(sum_ns=600, bucket_bytes=1) == 1000 + 1000 + 600
    assert two_layers_ns(sum_ns=1500, bucket_bytes=1) == 1000 + 1500 + 1500


def test_the_first_bucket_has_a_quarter_of_the_size() -> None:
    assert two_layers_ns(sum_ns=1500, bucket_bytes=4 * 8000) == 1000 + 1000 + 1500
    assert two_layers_ns(sum_ns=1500, bucket_bytes=4 * 8000 - 1) == 1000 + 1500 + 1500


def test_a_sum_takes_its_share_of_the_processor_from_compute() -> None:
    assert two_layers_ns(sum_ns=100, bucket_bytes=1) == 2100
    assert two_layers_ns(sum_ns=100, bucket_bytes=1, stolen_per_mille=1000) == 2000 + 100 + 100
    assert two_layers_ns(sum_ns=1500, bucket_bytes=1, stolen_per_mille=500) == 1000 + 1500 + 1500, "it is hidden"
