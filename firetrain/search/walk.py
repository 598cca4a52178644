"""A random walk over grids (Metropolis et al. 1953), as FlexFlow searches (Jia et al. 2019, section 6.2).

It proves nothing. It is the fallback if the label search had to leave labels out, and it shows what delta simulation saves.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from firetrain.search.delta import Delta
from firetrain.search.problem import Choice, Problem
from firetrain.search.step_simulator import StepSimulator

# the share of moves that change a run of variables, not one
_RUNS = 0.5
# a step that is slower by this share of the best one is accepted with probability 1/e
_TEMPERATURE = 0.01


@dataclass(frozen=True)
class Walked:
    """The fastest grids of a walk, the time of their step, and the number of events that were simulated."""

    choice: Choice
    step_ns: int
    events: int


def walk(problem: Problem, start: Choice, proposals: int) -> Walked:
    """Walk from `start`, among grids that fit into the memory limit. A move gives one grid to a variable, or to a run of
    neighbouring variables.

    Moves of single variables alone rarely leave data-parallel training, because each of them costs two exchanges.
    """
    draw, simulator = random.Random(1), StepSimulator(problem)
    delta = Delta(simulator, start)
    best = (delta.step_ns, start)
    simulated = 0
    for _ in range(proposals):
        changes = _move(problem, draw)
        if not problem.fits(tuple(changes.get(variable, grid) for variable, grid in enumerate(delta.choice))):
            continue
        visited = simulator.events
        step_ns = delta.after(changes)
        simulated += simulator.events - visited
        slower = (step_ns - delta.step_ns) / (_TEMPERATURE * best[0])
        if slower <= 0 or draw.random() < math.exp(-slower):
            delta.change(changes)
            best = min(best, (step_ns, delta.choice))
    return Walked(best[1], best[0], simulated)


def _move(problem: Problem, draw: random.Random) -> dict[int, int]:
    first = draw.randrange(len(problem.allowed))
    end = first + 1
    if draw.random() < _RUNS:
        end = draw.randint(first + 1, len(problem.allowed))
    grid = draw.randrange(len(problem.grids))
    changes = {variable: grid for variable in range(first, end) if grid in problem.allowed[variable]}
    return changes or {first: draw.choice(problem.allowed[first])}
