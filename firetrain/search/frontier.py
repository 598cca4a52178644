"""Frontiers: which grids matter for the layers that are still to be decided, from the last layer to the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.search.problem import Problem

Numbers = NDArray[np.float64]
# larger than any time, and finite: sums of it must not overflow
FORBIDDEN = 1e30
# of a table with an axis for each variable of a frontier; 2 MiB
MOST_ENTRIES = 1 << 18


def frontiers(problem: Problem) -> list[tuple[int, ...]]:
    """For each layer, the variables of later layers that this layer or earlier ones need, ascending.

    A variable matters as long as one of its layers, or a layer whose output one of its layers reads, is to come.
    """
    first = {variable: min(layers) for variable, layers in enumerate(problem.layers_of)}
    for edge in problem.edges:
        variable = problem.variables[edge.layer]
        first[variable] = min(first[variable], edge.source)
    last = {variable: max(layers) for variable, layers in enumerate(problem.layers_of)}
    return [
        tuple(variable for variable in sorted(first) if last[variable] > layer >= first[variable])
        for layer in range(len(problem.names))
    ]


def is_narrow(problem: Problem) -> bool:
    """Whether tables with an axis for each variable of a frontier are small enough.

    They are not if many layers are read by many later ones, as in a densely connected network.
    """
    together = zip(frontiers(problem), problem.variables, strict=True)
    return all(len(problem.grids) ** len({*frontier, own}) <= MOST_ENTRIES for frontier, own in together)


def least(problem: Problem, of_layer: Numbers, exchanges: float) -> list[Numbers]:
    """The least sum over a layer and all layers before it, for each layer: an array with an axis for each frontier variable.

    `of_layer`: float64 [layers, grids]; `exchanges`: how often an edge's time counts.
    """
    return _least(problem, of_layer, exchanges)[0]


def best_choice(problem: Problem, of_layer: Numbers, exchanges: float) -> tuple[int, ...]:
    """The grids with the least sum over all layers: dynamic programming."""
    _, decide = _least(problem, of_layer, exchanges)
    choice: dict[int, int] = {}
    for layer in reversed(range(len(problem.names))):
        variable = problem.variables[layer]
        if variable not in choice:
            choice[variable] = decide[layer](choice)
    return tuple(choice[variable] for variable in range(len(problem.allowed)))


def _least(
    problem: Problem, of_layer: Numbers, exchanges: float
) -> tuple[list[Numbers], list[Callable[[dict[int, int]], int]]]:
    after = frontiers(problem)
    found: list[Numbers] = []
    decide: list[Callable[[dict[int, int]], int]] = []
    for layer, frontier in enumerate(after):
        variable = problem.variables[layer]
        axes = tuple(sorted({*frontier, variable}))
        own = np.full(len(problem.grids), FORBIDDEN)
        allowed = list(problem.allowed[variable])
        own[allowed] = of_layer[layer, allowed]
        total = _along(own, (variable,), axes)
        for edge in problem.edges_from[layer]:
            total = total + _along(exchanges * edge.ns, (variable, problem.variables[edge.layer]), axes)
        if layer:
            total = total + _along(found[-1], after[layer - 1], axes)
        total = np.broadcast_to(total, [len(problem.grids)] * len(axes))
        if variable in frontier:
            found.append(total)
            decide.append(lambda choice: 0)
        else:
            axis = axes.index(variable)
            found.append(total.min(axis=axis))
            decide.append(_decision(total.argmin(axis=axis), frontier))
    return found, decide


def _decision(best: NDArray[np.intp], frontier: Sequence[int]) -> Callable[[dict[int, int]], int]:
    return lambda choice: int(best[tuple(choice[variable] for variable in frontier)])


def _along(values: NDArray[Any], variables: Sequence[int], axes: Sequence[int]) -> NDArray[Any]:
    """`values`, expanded from axes `variables` to `axes`."""
    order = sorted(range(len(variables)), key=lambda number: variables[number])
    shape = [values.shape[variables.index(axis)] if axis in variables else 1 for axis in axes]
    return np.transpose(values, order).reshape(shape)
