"""Random search problems: chains and inception modules with costs drawn at random."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from firetrain.search.grid import grids_of
from firetrain.search.problem import Choice, Edge, Problem
from firetrain.search.step_simulator import StepSimulator
from firetrain.search.sums import Sums


def chain(seed: int, layers: int = 6, ranks: int = 4, memory: bool = False) -> Problem:
    """Layers one after another."""
    return drawn(seed, [(number - 1,) if number else () for number in range(layers)], ranks, memory)


def inception(seed: int, ranks: int = 4, memory: bool = False) -> Problem:
    """A layer, an inception module of seven layers, and a layer that reads its four branches."""
    reads = [(), (0,), (0,), (2,), (0,), (4,), (0,), (6,), (1, 3, 5, 7)]
    return drawn(seed, reads, ranks, memory)


def drawn(seed: int, reads: list[tuple[int, ...]], ranks: int, memory: bool = False) -> Problem:
    """A problem of layers that read others, with random costs; layers that read the same are one variable."""
    draw, grids, count = np.random.default_rng(seed), grids_of(ranks), len(reads)
    variables: list[int] = []
    known: dict[tuple[int, ...], int] = {}
    for sources in reads:
        variables.append(known.setdefault(sources, len(known)))
    shape = count, len(grids)
    edges = tuple(
        Edge(source, layer, draw.integers(0, 400, (len(grids),) * 2) * draw.integers(0, 2, (len(grids),) * 2))
        for layer, sources in enumerate(reads)
        for source in sources
    )
    sizes = [0, 1000, 4000, 100_000]
    sums = {grid.images: np.cumsum(draw.integers(1, 900, len(sizes))).tolist() for grid in grids}
    gradient_bytes = draw.integers(0, 3000, shape) * draw.integers(0, 2, shape)
    gradient_bytes[:, -1] = 0
    memory_bytes = draw.integers(1, 1000, shape)
    allowed = [tuple(range(len(grids))) for _ in known]
    if count > 2:
        allowed[-1] = (0,)
    return Problem(
        tuple(f"layer{number}" for number in range(count)), tuple(grids), tuple(variables), tuple(allowed),
        draw.integers(0, 500, shape), draw.integers(0, 900, shape), draw.integers(0, 50, shape), gradient_bytes, memory_bytes,
        edges, Sums(sizes, sums), int(draw.integers(500, 12_000)),
        int(memory_bytes.mean(axis=1).sum() * 0.8) if memory else None, int(draw.integers(0, 700)),
    )  # fmt: skip


def choices(problem: Problem) -> Iterator[Choice]:
    """All choices that fit into the memory."""
    limit = problem.memory_limit_bytes
    for choice in product(*problem.allowed):
        if limit is None or problem.memory(choice) <= limit:
            yield choice


def brute_force_ns(problem: Problem) -> int | None:
    """The fastest step of all choices; None if none fits."""
    simulator = StepSimulator(problem)
    return min((simulator.step_ns(choice) for choice in choices(problem)), default=None)


def pure(
    backward_ns: tuple[int, ...], gradient_bytes: tuple[int, ...], sum_ns: int, bucket_bytes: int, stolen_per_mille: int
) -> Problem:
    """A chain on two ranks with one grid, two by one, and nothing but backward passes and sums of equal time."""
    count = len(backward_ns)
    nothing = np.zeros((count, 1), np.int64)
    return Problem(
        tuple(f"layer{number}" for number in range(count)), (grids_of(2)[0],), tuple(range(count)), ((0,),) * count, nothing,
        np.array(backward_ns)[:, None], nothing, np.array(gradient_bytes)[:, None], nothing, (),
        Sums([0, 1_000_000], {2: [sum_ns, sum_ns]}), bucket_bytes, None, stolen_per_mille,
    )  # fmt: skip
