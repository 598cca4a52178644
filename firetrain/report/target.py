"""Whether runs met their target, and when: one rule for the report and for comparisons.

A run that ended without meeting its target never meets it: its time is infinite, and counts as such in medians, intervals and
tests. A median that is infinite is told as not reached; how many runs met the target stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from firetrain.records import COMPLETED, FAILED

NOT_REACHED = "not reached"


def has_ended(state: str, reason: str) -> bool:
    """Whether a run came to its end, or diverged: what was cut off in between says nothing of its target."""
    return state == COMPLETED or (state == FAILED and reason.startswith("diverged"))


def seconds_or_never(seconds: float | None) -> float:
    """The time of a run that has ended; infinite where there is none."""
    return math.inf if seconds is None else seconds


def in_words(seconds: float, form: Callable[[float], str]) -> str:
    """A time to the target, or a median of such, as text."""
    return form(seconds) if math.isfinite(seconds) else NOT_REACHED


def interval_in_words(low: float, high: float, form: Callable[[float], str]) -> str:
    """Its interval, as text: most draws may have met the target, or none."""
    if math.isfinite(high):
        return f"{form(low)} to {form(high)}"
    return f"{form(low)} or more" if math.isfinite(low) else NOT_REACHED
