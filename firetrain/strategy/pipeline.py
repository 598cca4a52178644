"""Pipeline: consecutive layers form stages on different ranks, which work on different micro-batches at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.limits import MOST_MICRO_BATCHES
from firetrain.strategy.group import replica_size
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement, Schedule
from firetrain.strategy.split import Split

# multiply-adds that take as long as adding one gradient to its sum, which every micro-batch does once
OPERATIONS_OF_A_GRADIENT = 10


def pipeline(
    layers: Sequence[Layer],
    world: World,
    stages: int | None = None,
    schedule: Schedule | None = None,
    micro_batches: int = 1,
    replicas: int | None = None,
    inside: bool = False,
) -> Placement:
    """Consecutive layers form stages, divided as equally as they can be, which compute different micro-batches at a time.

    With `micro_batches=1` the stages compute one after another.

    `stages`: default: as many as a replica has ranks. `replicas`: default: as many as the stages leave. `inside`: each node has
    a replica. `schedule`: the order of several micro-batches, gpipe (default; Huang et al. 2019) or 1f1b (Narayanan et al. 2019).
    Stages are cut so that the work of the largest is minimal, then that of the next largest, by dynamic programming (see
    `balanced`).
    UserError if the ranks are not stages x replicas, if there are more stages than layers with work, or with auxiliary heads.
    """
    _refuse_mistakes(stages, schedule, micro_batches, replicas)
    size = stages if stages and not inside else replica_size("pipeline", world, replicas, inside=inside)
    count = replicas or max(1, world.size // size)
    if (stages or size) != size or size * count != world.size:
        raise UserError(
            f"pipeline: stages x replicas must be the number of ranks (stages: {stages or size}, replicas: {count}, "
            f"ranks: {world.size})"
        )
    if sum(layer.is_loss for layer in layers) > 1:
        raise UserError("pipeline: auxiliary heads are not supported: set model.auxiliary_heads to false")
    splits: dict[str, Split] = {}
    for stage, some in enumerate(balanced(layers, size)):
        ranks = world.by_node[stage::size]
        splits |= {layer.name: Split(ranks, images=len(ranks)) for layer in some}
    order = (schedule or "gpipe") if size > 1 else "gpipe"  # there is nothing to order in one stage
    return Placement("pipeline", world.size, tuple(layers), splits, micro_batches, order)


def _refuse_mistakes(stages: int | None, schedule: Schedule | None, micro_batches: int, replicas: int | None) -> None:
    for name, value in (("micro_batches", micro_batches), ("stages", stages), ("replicas", replicas)):
        if value is not None and value < 1:
            raise UserError(f"pipeline: {name} must be 1 or more ({name}: {value})")
    if micro_batches > MOST_MICRO_BATCHES:
        raise UserError(
            f"pipeline: micro_batches must be at most {MOST_MICRO_BATCHES} (micro_batches: {micro_batches})"
        )
    if schedule is None:
        return
    if stages == 1:
        raise UserError(f"pipeline: schedule={schedule} orders the passes of several stages: omit it with stages=1")
    if micro_batches == 1:
        raise UserError(
            f"pipeline: schedule={schedule} orders micro-batches, and a batch is one: set micro_batches to 2 or more, or omit "
            "schedule"
        )


def balanced(layers: Sequence[Layer], stages: int) -> list[list[Layer]]:
    """The layers in `stages` consecutive groups. UserError if there are too few layers.

    The work of the largest group is minimal; among such cuts that of the next largest is, and so on: a large layer that cannot
    be divided leaves the others balanced. Where several places for the last cut give the same work, such as before or after a
    pooling, it is where the fewest numbers are sent; the groups before it are cut likewise. Work is that of one image and its
    share of the work on weights, which does not depend on the images.
    """
    cost = [layer.operations + OPERATIONS_OF_A_GRADIENT * layer.parameters for layer in layers]
    working = sum(one > 0 for one in cost)
    if stages > working:
        raise UserError(f"pipeline: the model has {working} layers with work, too few for {stages} stages")
    before = [0]
    for one in cost:
        before.append(before[-1] + one)

    crossing = _crossing(layers)

    @cache
    def best(count: int, groups: int) -> tuple[tuple[float, ...], int, int]:
        """(work of `groups` groups of the first `count` layers, the largest first; numbers sent; first layer of the last)."""
        if groups == 1:
            return (float(before[count] or "inf"),), 0, 0
        found: tuple[tuple[float, ...], int, int] = ((float("inf"),), 0, 0)
        for first in range(groups - 1, count):
            last = before[count] - before[first]
            if last > 0:
                # what is the best before the last group stays so with any last group
                works, sent, _ = best(first, groups - 1)
                found = min(found, (tuple(sorted((*works, last), reverse=True)), sent + crossing[first], first))
        return found

    ends = [len(layers)]
    for groups in range(stages, 1, -1):
        ends.append(best(ends[-1], groups)[2])
    starts = [*reversed(ends[1:]), *()] if stages > 1 else []
    bounds = [0, *starts, len(layers)]
    return [list(layers[first:end]) for first, end in zip(bounds, bounds[1:], strict=False)]


def _crossing(layers: Sequence[Layer]) -> list[int]:
    """For each layer, how many numbers per image the layers before it make for it and those after it."""
    last_reader = {source: number for number, layer in enumerate(layers) for source in layer.sources}
    found = [0] * len(layers)
    for number, layer in enumerate(layers):
        for first in range(number + 1, last_reader.get(layer.name, number) + 1):
            found[first] += layer.channels * layer.output_elements
    return found
