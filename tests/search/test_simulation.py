"""Full simulation, delta simulation and simulation rank by rank give the same nanoseconds."""

from __future__ import annotations

import random

import pytest
from problems import chain, inception, pure
from rank_by_rank import groups_of, step_ns_of_ranks

from firetrain.cluster import World
from firetrain.search.delta import Delta
from firetrain.search.problem import Problem
from firetrain.search.step_simulator import StepSimulator
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


def test_compute_that_overlaps_with_sums_is_not_added_to_them() -> None:
    """Two layers of 1000 ns; each has gradients that are summed in 600 ns, the last one's while the first is computed."""
    problem = pure(backward_ns=(1000, 1000), gradient_bytes=(4000, 4000), sum_ns=600, bucket_bytes=1)
    assert StepSimulator(problem).step_ns((0, 0)) == 2600
    together = pure(backward_ns=(1000, 1000), gradient_bytes=(4000, 4000), sum_ns=600, bucket_bytes=8000)
    assert StepSimulator(together).step_ns((0, 0)) == 2600
    slow = pure(backward_ns=(1000, 1000), gradient_bytes=(4000, 4000), sum_ns=1500, bucket_bytes=1)
    assert StepSimulator(slow).step_ns((0, 0)) == 1000 + 1500 + 1500
