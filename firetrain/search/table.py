"""What a search found, as rows of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firetrain.records.parts import COMPUTE, EXCHANGE, UNEXPLAINED, UPDATE
from firetrain.search.explain import Deviation, deviations, layer_costs
from firetrain.search.pipelines import Pipeline
from firetrain.search.search import Found
from firetrain.search.searches import Recommended, Searched
from firetrain.search.step_simulator import StepSimulator
from firetrain.words import counted

MIB = 1 << 20
_SHOWN_NS = 5_000
# what needs more memory than a rank has
_TOO_LARGE = "too large"
_PARTS = {COMPUTE: "compute_ns", EXCHANGE: "exchange_ns", UPDATE: "update_ns"}
LAYER_HEADINGS = [
    "layer",
    "images x outputs",
    *(f"{part.heading} ms" for part in _PARTS),
    "its sum ms",
    "summed MB",
    "memory MiB",
]


def layer_rows(found: Found) -> list[list[str]]:
    """A row for each layer, one for what the profile does not explain, if there is any, and one for all of them."""
    costs = layer_costs(found.problem, found.choice)
    rows = [
        [cost.name, str(cost.grid), *(_ms(getattr(cost, key)) for key in _PARTS.values()), _ms(cost.sum_ns),
         f"{cost.summed_bytes / 1e6:.2f}", f"{cost.memory_bytes / MIB:.1f}"]
        for cost in costs
    ]  # fmt: skip
    sums = [sum(getattr(cost, name) for cost in costs) for name in (*_PARTS.values(), "sum_ns")]
    summed, memory = sum(cost.summed_bytes for cost in costs), sum(cost.memory_bytes for cost in costs)
    if unexplained_ns := found.problem.unexplained_ns:
        place = list(_PARTS).index(UPDATE)
        sums[place] += unexplained_ns
        rows.append(
            [UNEXPLAINED.name, "", *(_ms(unexplained_ns * (one == place)) for one in range(len(sums))), "0.00", "0.0"]
        )
    return [*rows, ["all", "", *map(_ms, sums), f"{summed / 1e6:.2f}", f"{memory / MIB:.1f}"]]


def headings(found: Sequence[Searched]) -> list[str]:
    """The headings of a table with a row for each number of ranks."""
    return [
        "nodes x ranks",
        "reduction buckets",
        "grids ms",
        "95 %",
        "bound ms",
        *_names(found),
        "best pipeline",
        "one rank",
    ]


def row(one: Searched, found: Sequence[Searched]) -> list[str]:
    """A row of the table: the placement that was found, the bound, and others, in milliseconds a step."""
    fits = one.found.problem.fits
    known = {other.name: _ms(other.step_ns) if fits(other.choice) else _TOO_LARGE for other in one.found.known}
    alone = _ms(one.alone_ns) if one.alone_fits else _TOO_LARGE
    shape = f"{len(one.world.nodes)} x {one.world.size // len(one.world.nodes)}"
    buckets = f"{one.bucket_mib:g} MiB"
    others = [known.get(name, "-") for name in _names(found)]
    others.append(_ms(one.found.pipeline.step_ns) if one.found.pipeline else "-")
    return [shape, buckets, _ms(one.found.step_ns), _interval(one), _ms(one.found.bound_ns), *others, alone]


def _interval(one: Searched) -> str:
    """The interval of the step; a dash if the profile's speeds are assumed, so that there is none."""
    low_ns, high_ns = one.interval_ns
    return f"{low_ns / 1e6:.2f} to {high_ns / 1e6:.2f}" if high_ns > low_ns else "-"


def _names(found: Sequence[Searched]) -> list[str]:
    return list(dict.fromkeys(known.name for one in found for known in one.found.known))


def remarks(one: Searched, every: Sequence[Searched] = ()) -> Iterator[str]:
    """The advice for a number of ranks, `every` number of which was searched, and the proof."""
    fewer = [  # batches may grow with the ranks
        other.world
        for other in every
        if other.world.size < one.world.size
        and other.recommended_ns * one.step.images <= one.recommended_ns * other.step.images
    ]
    found, reason, counts = one.found, one.fault(), f"{counted(one.found.labels, 'label')}, {one.found.seconds:.2f} s"
    if one.alone_ns <= one.recommended_ns and one.alone_fits:
        yield f"{one.world}: one rank alone is as fast; use one"
    elif fewer:
        yield f"{one.world}: {min(fewer, key=lambda world: world.size)} are as fast; use fewer"
    elif not reason and one.recommended:
        yield from _advice(one, one.recommended)
    if reason:
        yield f"{one.world}: the fastest placement cannot be trained: {reason}"
    if reason and one.recommended:
        name, taken_ms = one.recommended.placement.strategy, _ms(one.recommended.step_ns)
        yield f"{one.world}: recommended is {name}, which takes {taken_ms} ms a step"
    if one.model.measured and (unmeasured := len(one.unmeasured())):
        yield (
            f"{one.world}: {counted(unmeasured, 'slice')} of these placements were not measured, and count with the least time "
            f"that the device needs: firetrain bench slices CONFIG --for-ranks {one.world.size} --save PROFILE measures them"
        )
    if found.is_proven:
        yield f"{one.world}: proven, no other grids are faster ({counts})"
    else:
        gap = found.step_ns / found.bound_ns - 1
        yield f"{one.world}: not proven, the fastest step may be {gap:.1%} faster ({counts})"


def _advice(one: Searched, recommended: Recommended) -> Iterator[str]:
    """What to use, unless it is the grids that were found."""
    if recommended.placement.is_data_parallel:
        longer = recommended.step_ns / one.step_ns - 1
        why = f", which is simpler; its step is {longer:.1%} longer than the fastest" if longer else ""
        yield f"{one.world}: use data-parallel{why}"
    elif one.is_pipeline:
        yield f"{one.world}: use {recommended.placement.strategy}"


def explanation(one: Searched) -> Iterator[str]:
    """What each deviation from data-parallel training saves and costs; first a pipeline, if one is faster than all grids."""
    if one.is_pipeline and one.found.pipeline:
        yield _of_pipeline(one, one.found.pipeline)
    some = list(deviations(one.found.problem, one.found.choice, one.data_parallel))
    if not some:
        yield "every layer is divided by images: this is data-parallel training"
    yield from map(_in_words, some)


def _of_pipeline(one: Searched, pipeline: Pipeline) -> str:
    """Where the time of a pipeline's step goes in the stage that computes the longest, beside that of data-parallel training."""
    problem, replica = one.found.problem, pipeline.replica
    stage = max(range(len(replica.end_s)), key=replica.compute_s.__getitem__)
    compute_ns, passes_ns = round(1e9 * replica.compute_s[stage]), round(1e9 * replica.end_s[stage])
    plain_ns = sum(cost.compute_ns for cost in layer_costs(problem, one.data_parallel))
    step_ns = StepSimulator(problem).step_ns(one.data_parallel)
    return (
        f"{pipeline.name} in place of data-parallel saves {_ms(step_ns - pipeline.step_ns)} ms: its stage {stage} computes "
        f"for {_ms(compute_ns)} ms (data-parallel {_ms(plain_ns)}) and waits for {_ms(passes_ns - compute_ns)} ms within its "
        f"passes; the rest of other stages, of sums of gradients, of the update and of what is not explained takes "
        f"{_ms(pipeline.step_ns - passes_ns)} ms (data-parallel {_ms(step_ns - plain_ns)})"
    )


def differences(one: Searched, name: str, other: str) -> Iterator[str]:
    """The time of a step with each of two placements, and what each difference between them saves and costs.

    UserError if one of them does not divide every layer by images and outputs among all ranks.
    """
    problem, simulator = one.found.problem, StepSimulator(one.found.problem)
    choices = [one.choice(strategy) for strategy in (name, other)]
    yield f"{one.world}, buckets of {one.bucket_mib:g} MiB:"
    for strategy, choice in zip((name, other), choices, strict=True):
        yield f"{strategy}: {_ms(simulator.step_ns(choice))} ms a step, memory {problem.memory(choice) / MIB:.1f} MiB"
    some = list(deviations(problem, *choices))
    yield from map(_in_words, some) if some else ["they divide all layers alike"]


def _in_words(one: Deviation) -> str:
    layers = one.layers[0] if len(one.layers) == 1 else f"{one.layers[0]} to {one.layers[-1]}"
    effect = "saves" if one.step_ns <= 0 else "costs"
    parts = {part.heading: getattr(one, key) for part, key in _PARTS.items()}
    shown = ", ".join(f"{name} {ns / 1e6:+.2f} ms" for name, ns in parts.items() if abs(ns) >= _SHOWN_NS)
    sizes = f"gradients to sum {one.summed_bytes / 1e6:+.1f} MB, memory {one.memory_bytes / MIB:+.1f} MiB"
    why = "; ".join(filter(None, (shown, sizes)))
    return f"{layers}: {one.grid} in place of {one.base} {effect} {_ms(abs(one.step_ns))} ms ({why})"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f}"
