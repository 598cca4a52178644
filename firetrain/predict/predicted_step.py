"""A row of a prediction: a strategy and a reduction on a number of ranks, and the parts of their step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from firetrain.config.sections.strategy import DATA_PARALLEL, method_of


@dataclass(frozen=True)
class PredictedStep:
    """The predicted step of a strategy and a reduction on a number of ranks.

    `strategy`: how the model is placed on the ranks.
    `parts`: seconds that sum to `step_s`; `low_s` and `high_s` bound 95 % of the draws.
    `place`: 1 + the number of significantly faster rows.
    `is_recommended`: whether it is recommended, as the simplest one in first place.
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
    is_recommended: bool = False
    strategy: str = DATA_PARALLEL

    @property
    def method(self) -> str:
        """The reduction, after the strategy if that is not data-parallel."""
        return method_of(self.strategy, self.reduction)

    @property
    def limit(self) -> str:
        """The name of the largest part."""
        return max(self.parts, key=self.parts.__getitem__)


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
