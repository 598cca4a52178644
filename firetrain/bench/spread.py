"""Repeated measurements as a median with its spread."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, least, largest and number of `values`."""
    return {"median": median(values), "min": min(values), "max": max(values), "count": len(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """ours/theirs pair by pair: the machine's slow moments hit both of a pair, so their ratio is steadier than either."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])
