"""Full and delta simulation give the same nanoseconds."""

from __future__ import annotations

import random

import pytest
from problems import chain, inception

from firetrain.search.clock import Clock
from firetrain.search.delta import Delta
from firetrain.search.problem import Problem


def changes(problem: Problem, count: int, seed: int) -> int:
    """The number of random changes, each of which was simulated in both ways; every fourth one is kept."""
    draw, clock = random.Random(seed), Clock(problem)
    delta = Delta(clock, tuple(allowed[0] for allowed in problem.allowed))
    for number in range(count):
        chosen = draw.sample(range(len(problem.allowed)), draw.choice((1, 1, 2)))
        changed = {variable: draw.choice(problem.allowed[variable]) for variable in chosen}
        choice = tuple(changed.get(variable, grid) for variable, grid in enumerate(delta.choice))
        assert delta.after(changed) == clock.step_ns(choice)
        if number % 4 == 0:
            delta.change(changed)
            assert delta.choice == choice and delta.step_ns == clock.step_ns(choice)
    return count


@pytest.mark.parametrize("ranks", [4, 6, 12, 16])
def test_delta_is_full_bit_for_bit(ranks: int) -> None:
    problems = [chain(seed, layers=12, ranks=ranks) for seed in range(4)]
    problems += [inception(seed, ranks=ranks) for seed in range(4)]
    assert sum(changes(problem, 130, seed) for seed, problem in enumerate(problems)) > 1000
