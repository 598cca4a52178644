"""What each layer costs in a step, and what a placement's deviations from another one save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from firetrain.search.grid import Grid
from firetrain.search.problem import Choice, Problem
from firetrain.search.step_simulator import StepSimulator


@dataclass(frozen=True)
class SearchedLayer:
    """What a rank does for a layer in a step.

    - `compute_ns`: forward and backward passes. `exchange_ns`: of the layer's output, forward and backward.
    - `sum_ns`: of its gradients, if they were summed alone. In a step, buckets are summed while other layers are computed.
    - `summed_bytes`: gradients that are summed with other ranks. `memory_bytes`: weights, their copies, and activations.
    """

    name: str
    grid: Grid
    compute_ns: int
    exchange_ns: int
    update_ns: int
    sum_ns: int
    summed_bytes: int
    memory_bytes: int


@dataclass(frozen=True)
class Deviation:
    """Neighbouring layers that have another grid than in `base`, and what that changes in a step; negative: it saves.

    `step_ns`: the step minus the step with only these layers as in `base`. It is not the sum of the other differences, because
    sums of gradients overlap with compute.
    """

    layers: tuple[str, ...]
    grid: Grid
    base: Grid
    step_ns: int
    compute_ns: int
    exchange_ns: int
    update_ns: int
    summed_bytes: int
    memory_bytes: int


def layer_costs(problem: Problem, choice: Choice) -> list[SearchedLayer]:
    """The costs of all layers, in the order in which they are computed, without what the profile does not explain."""
    return [_layer_cost(problem, choice, layer) for layer in range(len(problem.names))]


def _layer_cost(problem: Problem, choice: Choice, layer: int) -> SearchedLayer:
    grid = choice[problem.variables[layer]]
    exchange_ns = sum(int(edge.ns[grid, choice[problem.variables[edge.layer]]]) for edge in problem.edges_from[layer])
    summed_bytes = int(problem.gradient_bytes[layer, grid])
    return SearchedLayer(
        problem.names[layer],
        problem.grids[grid],
        int(problem.forward_ns[layer, grid] + problem.backward_ns[layer, grid]),
        2 * exchange_ns,
        int(problem.update_ns[layer, grid]) - (problem.unexplained_ns if layer == len(problem.names) - 1 else 0),
        problem.sums(problem.grids[grid].images, summed_bytes) if summed_bytes else 0,
        summed_bytes,
        int(problem.memory_bytes[layer, grid]),
    )


def deviations(problem: Problem, choice: Choice, base: Choice) -> Iterator[Deviation]:
    """The runs of layers that `choice` divides differently than `base`."""
    simulator = StepSimulator(problem)
    step_ns = simulator.step_ns(choice)
    before = layer_costs(problem, base)
    for run in _runs(problem, choice, base):
        variables = {problem.variables[layer] for layer in run}
        reset = tuple(base[number] if number in variables else grid for number, grid in enumerate(choice))
        with_run, without = layer_costs(problem, choice), layer_costs(problem, reset)

        def change(name: str, now: list[SearchedLayer] = with_run, then: list[SearchedLayer] = without) -> int:
            return sum(getattr(one, name) - getattr(other, name) for one, other in zip(now, then, strict=True))

        yield Deviation(
            tuple(problem.names[layer] for layer in run), with_run[run[0]].grid, before[run[0]].grid,
            step_ns - simulator.step_ns(reset), change("compute_ns"), change("exchange_ns"), change("update_ns"),
            change("summed_bytes"), change("memory_bytes"),
        )  # fmt: skip


def _runs(problem: Problem, choice: Choice, base: Choice) -> Iterator[list[int]]:
    """Neighbouring layers with the same grid, where it is another one than in `base`; layers of one variable stay together."""
    pairs = [(choice[variable], base[variable]) for variable in problem.variables]
    seen: set[int] = set()
    for (own, other), layers in groupby(range(len(pairs)), key=lambda layer: pairs[layer]):
        run = [layer for layer in layers if problem.variables[layer] not in seen]
        seen |= {problem.variables[layer] for layer in run}
        if own != other and run:
            yield run
