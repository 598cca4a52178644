"""The time of a step for many draws of the measured speeds: how certain a predicted step is."""

from __future__ import annotations

import numpy as np

from firetrain.predict.costs import Drawn
from firetrain.search.problem import Choice, Problem


def step_draws_ns(problem: Problem, choice: Choice, compute: Drawn, links: Drawn, unexplained_ns: Drawn) -> Drawn:
    """The step of each draw in nanoseconds, float64 of the shape of `compute` and `links`.

    These are factors of all computing times, and of all times of exchanges and sums. `unexplained_ns`: what the profile does not
    explain, in each draw. With factors of 1, and the problem's own unexplained time, the result is that of StepSimulator, up to
    rounding.
    """
    compute_ns, sums_ns, ahead_ns = (np.zeros(len(compute)) for _ in range(3))
    ranks = held = later = 0
    for layer in reversed(range(len(problem.names))):
        grid = choice[problem.variables[layer]]
        edges = problem.edges_from[layer]
        exchange_ns = links * sum(int(edge.ns[grid, choice[problem.variables[edge.layer]]]) for edge in edges)
        ahead_ns += compute * (problem.forward_ns[layer, grid] + problem.update_ns[layer, grid]) + exchange_ns
        if exchange_ns.any():
            sums_ns = np.maximum(sums_ns, compute_ns) + exchange_ns
        compute_ns = compute_ns + exchange_ns + compute * problem.backward_ns[layer, grid]
        size = int(problem.gradient_bytes[layer, grid])
        if not size:
            continue
        is_other, sum_ns = ranks != problem.grids[grid].images, np.zeros(len(links))
        if held and (is_other or held + size > problem.most_bytes(later)):
            sum_ns, held, later = links * problem.sums(ranks, held), 0, int(not is_other)
        sums_ns = np.maximum(sums_ns + sum_ns, compute_ns)
        compute_ns = compute_ns + sum_ns * problem.stolen_per_mille / 1000
        ranks, held = problem.grids[grid].images, held + size
    last_ns = links * problem.sums(ranks, held) if held else np.zeros(len(links))
    ahead_ns += unexplained_ns - compute * problem.unexplained_ns
    found: Drawn = ahead_ns + np.maximum(compute_ns + last_ns * problem.stolen_per_mille / 1000, sums_ns + last_ns)
    return found
