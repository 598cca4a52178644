"""Whether and when runs met their target: one rule for reports, comparisons and predictions.

The time of a run that ended without meeting its target is infinite, in medians, intervals and tests.
"""

from __future__ import annotations

import math

from firetrain.records.run import COMPLETED, FAILED


def has_ended(state: str, reason: str) -> bool:
    """Whether a run completed or diverged; an interrupted run does not count."""
    return state == COMPLETED or (state == FAILED and reason.startswith("diverged"))


def or_never(value: float | None) -> float:
    """The time, or the number of epochs, after which a run that has ended met its target: infinite if it has none."""
    return math.inf if value is None else value
