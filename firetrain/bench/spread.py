"""Summarise repeated measurements by their median and spread."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, minimum, maximum and number of `values`."""
    return {"median": median(values), "min": min(values), "max": max(values), "count": len(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """The spread of ours/theirs, pair by pair; slow moments affect both times of a pair alike, so the ratio varies less."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])
