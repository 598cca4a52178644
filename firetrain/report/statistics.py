"""What a few numbers allow one to say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DRAWS = 1000


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; of one number alone the interval is unknown."""

    value: float
    low: float | None = None
    high: float | None = None


def median(numbers: Sequence[float]) -> Estimate | None:
    """With a percentile bootstrap over the numbers (Efron 1979); infinite ones, of runs that missed, count as such."""
    if not numbers:
        return None
    value = float(np.median(numbers))
    return Estimate(value, *_interval(_medians(numbers))) if len(numbers) > 1 else Estimate(value)


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """Of two medians, both sides drawn anew in each draw; None where one of them is infinite."""
    if not above or not below or not np.isfinite([np.median(above), np.median(below)]).all():
        return None
    value = float(np.median(above) / np.median(below))
    if len(above) < 2 or len(below) < 2:
        return Estimate(value)
    with np.errstate(invalid="ignore"):
        draws = _medians(above) / _medians(below, seed=2)
    # of two that are both infinite nothing can be said: the draw speaks for no side, and widens both
    unknown = np.isnan(draws)
    low, _ = _interval(np.where(unknown, 0.0, draws))
    _, high = _interval(np.where(unknown, np.inf, draws))
    return Estimate(value, low, high)


def olympic_mean(numbers: Sequence[float]) -> float | None:
    """The mean without the fastest and the slowest, as MLPerf scores (training rules, section "Benchmark Results")."""
    kept = sorted(numbers)[1:-1]
    return float(np.mean(kept)) if kept else None


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The two-sided p-value that both come from one distribution (Mann and Whitney 1947), exact for few; None without two sides.

    Infinite numbers, of runs that missed their target, are the slowest.
    """
    if not first or not second:
        return None
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(first, second).pvalue)


def smallest_p(first: int, second: int) -> float:
    """The least that `mann_whitney` can give for so many runs on each side."""
    return min(1.0, 2 / math.comb(first + second, first))


def standard_error(share: float, count: int) -> float:
    """Of a share of `count` images: how far another test set of that size would have put it (binomial)."""
    return math.sqrt(share * (1 - share) / count)


def geometric_mean(numbers: Sequence[float]) -> float:
    """Of positive numbers: means of products are products of these means."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def _medians(numbers: Sequence[float], seed: int = 1) -> NDArray[np.float64]:
    draws = np.random.default_rng(seed).choice(np.asarray(numbers, dtype=float), (_DRAWS, len(numbers)))
    return np.asarray(np.median(draws, axis=1))


def _interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(draws, [2.5, 97.5], method="nearest")  # between two infinite ones there is no number
    return float(low), float(high)
