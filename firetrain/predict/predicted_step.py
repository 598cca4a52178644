"""The predicted step of a reduction on a number of ranks, and the ranking of reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.config.spec import Spec

# slightly above the mean error on held-out reductions (results/prediction)
MODEL_ERROR = 0.02
# from simplest to most complex
SIMPLEST = (
    "one rank", "native", "horovod", "ring", "tree", "parameter-server", "direct", "halving-doubling", "double-tree", "torus",
    "pipelined-tree", "hierarchical",
)  # fmt: skip


@dataclass(frozen=True)
class PredictedStep:
    """The predicted step of a reduction on a number of ranks.

    `parts`: seconds that sum to `step_s`; `low_s` and `high_s` bound 95 % of the draws.
    `place`: 1 + the number of significantly faster reductions.
    `is_named`: whether it is recommended, as the simplest reduction in first place.
    """

    ranks: int
    reduction: str
    global_batch: int
    parts: dict[str, float]
    step_s: float
    low_s: float
    high_s: float
    images_per_s: float
    speedup: float
    efficiency: float
    hours: float | None
    cost: float | None
    kwh: float | None
    place: int = 1
    is_named: bool = False

    @property
    def limit(self) -> str:
        """The name of the largest part."""
        return max(self.parts, key=self.parts.__getitem__)


def places_of(steps: Mapping[str, NDArray[np.float64]]) -> dict[str, int]:
    """The place of each reduction, from its seconds per step in each draw: 1 + the number of significantly faster reductions.

    Significantly faster: in 97.5 % of the draws, by more than the error of predictions (`MODEL_ERROR`). All reductions use the
    same draws of the links.
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
    """Where the recommended reduction changes: (ranks, reduction below, reduction from there on)."""
    best = {row.ranks: row for row in rows if row.ranks > 1 and row.is_named}
    order = sorted(best)
    return [
        (count, best[before].reduction, best[count].reduction)
        for before, count in zip(order, order[1:], strict=False)
        if best[before].reduction != best[count].reduction
    ]


def as_json(rows: Sequence[PredictedStep]) -> list[dict[str, Any]]:
    """The rows as dictionaries, without rounding; `intervals`: 95 % intervals of the values derived from the step."""
    return [{**row.__dict__, "limit": row.limit, "intervals": _intervals(row)} for row in rows]


def _intervals(row: PredictedStep) -> dict[str, tuple[float, float]]:
    shorter, longer = row.low_s / row.step_s, row.high_s / row.step_s
    speeds = {key: getattr(row, key) for key in ("images_per_s", "speedup", "efficiency")}
    spent = {key: getattr(row, key) for key in ("hours", "cost", "kwh") if getattr(row, key) is not None}
    return {key: (value / longer, value / shorter) for key, value in speeds.items()} | {
        key: (value * shorter, value * longer) for key, value in spent.items()
    }
