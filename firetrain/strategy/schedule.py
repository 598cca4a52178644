"""The order in which a stage of a pipeline computes micro-batches: a pure function."""

from __future__ import annotations

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
