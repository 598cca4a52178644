"""How times to a target are told. An infinite one, of a run or of most of them, is "not reached"."""

from __future__ import annotations

import math
from collections.abc import Callable

NOT_REACHED = "not reached"


def in_words(seconds: float, form: Callable[[float], str]) -> str:
    """Format a time to the target, or a median of such times."""
    return form(seconds) if math.isfinite(seconds) else NOT_REACHED


def interval_in_words(low: float, high: float, form: Callable[[float], str]) -> str:
    """Format the interval of such a median; its ends may be infinite."""
    if math.isfinite(high):
        return f"{form(low)} to {form(high)}"
    return f"{form(low)} or more" if math.isfinite(low) else NOT_REACHED
