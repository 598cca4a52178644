"""The ranking of strategies and reductions by predicted steps, and which one is recommended."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from firetrain.config.spec import Spec
from firetrain.predict.predicted_step import PredictedStep

Method = TypeVar("Method", bound=Hashable)

# about the mean error on held-out reductions (results/prediction)
MODEL_ERROR = 0.02
# from simplest to most complex; direct is last because each rank holds a connection to every other
SIMPLEST = (
    "one rank", "native", "horovod", "ring", "tree", "parameter-server", "halving-doubling", "double-tree", "torus",
    "pipelined-tree", "hierarchical", "direct",
)  # fmt: skip


def places_of(steps: Mapping[Method, NDArray[np.float64]]) -> dict[Method, int]:
    """The place of each method, from its seconds per step in each draw: 1 + the number of significantly faster methods.

    A method is a reduction, or a strategy with a reduction. Significantly faster: in 97.5 % of the draws, by more than the error
    of predictions (`MODEL_ERROR`). All methods use the same draws of the links.
    """
    return {
        name: 1 + sum(bool(np.percentile(own / other, 2.5) > 1 + MODEL_ERROR) for other in steps.values())
        for name, own in steps.items()
    }


def simplicity(reduction: str) -> int:
    """The position of a reduction in the order of simplicity; the simplest has the lowest number."""
    name = Spec.parse(reduction).name
    return SIMPLEST.index(name) if name in SIMPLEST else len(SIMPLEST)


def crossovers(rows: Sequence[PredictedStep]) -> list[tuple[int, str, str]]:
    """Where the recommended method changes: (ranks, method below, method from there on)."""
    best = {row.ranks: row for row in rows if row.ranks > 1 and row.is_recommended}
    order = sorted(best)
    return [
        (count, best[before].method, best[count].method)
        for before, count in zip(order, order[1:], strict=False)
        if best[before].method != best[count].method
    ]
