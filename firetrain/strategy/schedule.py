"""The order in which a stage of a pipeline computes micro-batches: a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple


class Pass(NamedTuple):
    """One pass of one micro-batch through a stage."""

    direction: Literal["forward", "backward"]
    micro_batch: int


def order(schedule: str, stage: int, stages: int, micro_batches: int) -> list[Pass]:
    """The passes of a stage in order.

    `gpipe`: all forward passes, then all backward passes (Huang et al. 2019, section 2.3). `1f1b`: as many forward passes as
    there are stages behind, then one backward and one forward pass alternately (Narayanan et al. 2019, section 3.2), so that a
    stage keeps the activations of at most `stages` - `stage` micro-batches. Gradients are the same: nothing is stale.

    >>> [f"{direction[0]}{number}" for direction, number in order("1f1b", stage=0, stages=2, micro_batches=3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    ahead = micro_batches if schedule == "gpipe" else min(stages - stage, micro_batches)
    passes = [Pass("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        passes.append(Pass("backward", number))
        if ahead + number < micro_batches:
            passes.append(Pass("forward", ahead + number))
    return passes


def bubble(stages: int, micro_batches: int) -> float:
    """The idle share of a pipeline whose stages take equally long (Huang et al. 2019): (S - 1) / (M + S - 1).

    >>> bubble(stages=4, micro_batches=8)
    0.2727272727272727
    """
    return (stages - 1) / (micro_batches + stages - 1)


def uneven_bubble(schedule: str, stage_s: Sequence[float], micro_batches: int) -> float:
    """The mean idle share of stages that take `stage_s` seconds for a micro-batch, a third of it forward; sending takes no time.

    Under `gpipe` the first micro-batch passes all stages and the others follow at the pace of the slowest, so that a step takes
    sum(t) + (M - 1) max(t). Under `1f1b` a slow first stage goes on while the others wait for it, and a step may be shorter.

    >>> round(uneven_bubble("gpipe", [2.0, 1.0], micro_batches=4), 3)
    0.333
    """
    stages = len(stage_s)
    left = [order(schedule, stage, stages, micro_batches)[::-1] for stage in range(stages)]
    end_s, free_s = dict[tuple[int, Pass], float](), [0.0] * stages
    while any(left):
        for stage, passes in enumerate(left):
            while passes and (ready_s := _ready_s(passes[-1], stage, stages, end_s)) is not None:
                now = passes.pop()
                own_s = stage_s[stage] / 3 * (1 if now.direction == "forward" else 2)
                free_s[stage] = end_s[stage, now] = max(free_s[stage], ready_s) + own_s
    return 1 - micro_batches * sum(stage_s) / (stages * max(free_s))


def _ready_s(one: Pass, stage: int, stages: int, end_s: Mapping[tuple[int, Pass], float]) -> float | None:
    """When the neighbouring stage ends the pass whose result this one needs; None if that is not known yet."""
    neighbour = stage - 1 if one.direction == "forward" else stage + 1
    return end_s.get((neighbour, one)) if 0 <= neighbour < stages else 0.0
