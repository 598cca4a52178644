"""Finds the fastest grids of a model in a world, over all bucket sizes, with a proof; what it is compared with comes first."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from firetrain.config.sections.strategy import DATA_PARALLEL
from firetrain.errors import UserError
from firetrain.search.frontier import best_choice, is_narrow
from firetrain.search.model import SearchModel, Step
from firetrain.search.optimum import MOST_LABELS, find_optimum
from firetrain.search.pipelines import Pipeline
from firetrain.search.problem import Choice, Problem
from firetrain.search.step_simulator import StepSimulator
from firetrain.search.walk import walk
from firetrain.strategy.catalogue import find_strategy

ONE_WEIRD_TRICK, ADDITIVE, LIGHTEST = "one-weird-trick", "additive", "least memory"
# proposals of the walk that looks further if labels were left out, or if there could be none
_PROPOSALS = 2000
_FEW_LABELS = 1000
MIB = 1 << 20
BUCKETS_MIB = (1, 2, 4, 8, 16, 25)


@dataclass(frozen=True)
class Known:
    """A placement to compare with: its `name`, its grids, and the time of its step with its best bucket size."""

    name: str
    choice: Choice
    step_ns: int
    bucket_bytes: int


@dataclass(frozen=True)
class Found:
    """What a search found in one world.

    - `problem`: with the best bucket size. `choice`, `step_ns`: the grids, and the time of their step.
    - `bound_ns`: nothing in the space is faster. `labels`: number of labels of all searches.
    - `known`: what it was compared with. `pipeline`: the fastest pipeline; None if the model cannot be cut into stages.
    - `seconds`: time of the search.
    """

    problem: Problem
    choice: Choice
    step_ns: int
    bound_ns: int
    labels: int
    known: tuple[Known, ...]
    pipeline: Pipeline | None
    seconds: float

    @property
    def is_proven(self) -> bool:
        """Whether nothing in the space is faster."""
        return self.bound_ns >= self.step_ns


def search(model: SearchModel, step: Step, buckets_bytes: Sequence[int] = (), most_labels: int = MOST_LABELS) -> Found:
    """The fastest grids over all bucket sizes (default: the step's, and `BUCKETS_MIB`).

    `most_labels`: as in `find_optimum`, for each bucket size. UserError if no grids fit into the memory limit.
    """
    began_s = time.perf_counter()
    first = model.problem(step)
    problems = [
        replace(first, bucket_bytes=size * step.wire_bytes // 4)
        for size in dict.fromkeys(buckets_bytes or (step.bucket_bytes, *(mib * MIB for mib in BUCKETS_MIB)))
    ]
    known = list(_known(model, problems))
    lightest = _lightest(first)
    if not first.fits(lightest):
        raise UserError(f"no placement on {model.world} fits into {first.memory_limit_bytes:,} bytes for each rank")
    # a first step to compare with, without which a search with little memory would keep all labels
    fitting = [one for one in (*known, _scored(LIGHTEST, lightest, problems)) if first.fits(one.choice)]
    best = min(fitting, key=lambda one: one.step_ns)
    fastest = _Fastest(best.step_ns, best.choice, _with(problems, best.bucket_bytes), (0,) * len(problems), 0)
    if first.memory_limit_bytes is not None:
        # without a limit labels are compared by their clocks alone, and the memory often suffices for what is found
        free = _fastest([replace(problem, memory_limit_bytes=None) for problem in problems], fastest, most_labels)
        if first.fits(free.choice):
            fastest = replace(free, problem=_with(problems, free.problem.bucket_bytes))
        else:
            fastest = replace(fastest, bounds_ns=free.bounds_ns, labels=free.labels)
    fastest = _fastest(problems, fastest, most_labels)
    step_ns, choice, problem = fastest.step_ns, fastest.choice, fastest.problem
    # the memory of pipelines is not known
    pipelines = model.pipelines(problem, step) if problem.memory_limit_bytes is None else []
    pipeline = min(pipelines, key=lambda one: one.step_ns, default=None)
    seconds = time.perf_counter() - began_s
    return Found(
        problem, choice, step_ns, min(*fastest.bounds_ns, step_ns), fastest.labels, tuple(known), pipeline, seconds
    )


@dataclass(frozen=True)
class _Fastest:
    """The fastest step so far, with its grids and its problem; the bound of each problem, and the number of labels of all."""

    step_ns: int
    choice: Choice
    problem: Problem
    bounds_ns: tuple[int, ...]
    labels: int


def _fastest(problems: Sequence[Problem], before: _Fastest, most_labels: int) -> _Fastest:
    """The fastest grids of all problems whose bounds are below the fastest step before."""
    found, bounds_ns, labels = (before.step_ns, before.choice, before.problem), [*before.bounds_ns], before.labels
    # a few labels find steps with which the search for a proof leaves out most of its labels
    for most in (min(_FEW_LABELS, most_labels), most_labels):
        for number in sorted(range(len(problems)), key=lambda number: problems[number] is not found[2]):
            if bounds_ns[number] < found[0]:
                optimum = find_optimum(problems[number], found[0], most)
                labels, bounds_ns[number] = labels + optimum.labels, optimum.bound_ns
                if optimum.choice is not None:
                    found = optimum.step_ns, optimum.choice, problems[number]
    for problem, bound_ns in zip(problems, bounds_ns, strict=True):
        if bound_ns < found[0]:
            walked = walk(problem, found[1], _PROPOSALS)
            found = min(found, (walked.step_ns, walked.choice, problem), key=lambda one: one[0])
    return _Fastest(*found, tuple(bounds_ns), labels)


def _known(model: SearchModel, problems: Sequence[Problem]) -> Iterator[Known]:
    """Data-parallel training, One Weird Trick, and what dynamic programming over the sum of all times finds."""
    for name in (DATA_PARALLEL, ONE_WEIRD_TRICK):
        try:
            choice = model.choice(problems[0], find_strategy(name)(model.layers, model.world))
        except UserError:
            continue
        if choice is not None:
            yield _scored(name, choice, problems)
    if is_narrow(problems[0]):
        yield _scored(ADDITIVE, best_choice(problems[0], _additive(problems[0]), exchanges=2.0), problems)


def _lightest(problem: Problem) -> Choice:
    """The grids with which a rank needs the least memory."""
    of_variables = [problem.memory_bytes[layers].sum(axis=0) for layers in problem.layers_of]
    return tuple(
        allowed[int(memory[list(allowed)].argmin())]
        for memory, allowed in zip(of_variables, problem.allowed, strict=True)
    )


def _scored(name: str, choice: Choice, problems: Sequence[Problem]) -> Known:
    scores = [(StepSimulator(problem).step_ns(choice), problem.bucket_bytes) for problem in problems]
    return Known(name, choice, *min(scores))


def _additive(problem: Problem) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The time of each layer with each grid, with a sum of its own: nothing overlaps."""
    sums = np.zeros(problem.forward_ns.shape)
    for column, grid in enumerate(problem.grids):
        sizes = problem.gradient_bytes[:, column]
        if sizes.any():
            sums[:, column] = np.where(sizes > 0, problem.sums.many(grid.images, sizes), 0)
    return problem.forward_ns + problem.backward_ns + problem.update_ns + sums


def _with(problems: Sequence[Problem], bucket_bytes: int) -> Problem:
    return next(problem for problem in problems if problem.bucket_bytes == bucket_bytes)
