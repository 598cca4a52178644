"""Whether and when runs met their target: one rule for reports and comparisons.

The time of a run that ended without meeting its target is infinite, in medians, intervals and tests. An infinite median is
shown as "not reached", next to the number of runs that met the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from firetrain.records import COMPLETED, FAILED

NOT_REACHED = "not reached"


def has_ended(state: str, reason: str) -> bool:
    """Whether a run completed or diverged; an interrupted run does not count."""
    return state == COMPLETED or (state == FAILED and reason.startswith("diverged"))


def seconds_or_never(seconds: float | None) -> float:
    """The time of a run that has ended: infinite if it has none."""
    return math.inf if seconds is None else seconds


def in_words(seconds: float, form: Callable[[float], str]) -> str:
    """Format a time to the target, or a median of such times."""
    return form(seconds) if math.isfinite(seconds) else NOT_REACHED


def interval_in_words(low: float, high: float, form: Callable[[float], str]) -> str:
    """Format the interval of such a median; its ends may be infinite."""
    if math.isfinite(high):
        return f"{form(low)} to {form(high)}"
    return f"{form(low)} or more" if math.isfinite(low) else NOT_REACHED
