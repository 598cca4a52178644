"""Statistics of small samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from firetrain.records.bootstrap import interval, medians


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, which is unknown (None) for a single number."""

    value: float
    interval: tuple[float, float] | None = None


def median_estimate(numbers: Sequence[float]) -> Estimate | None:
    """The median with its interval; None without numbers. Numbers may be infinite (missed targets)."""
    if not numbers:
        return None
    value = float(np.median(numbers))
    return Estimate(value, interval(medians(numbers))) if len(numbers) > 1 else Estimate(value)


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """The ratio of two medians, with its interval from bootstrap draws of both; None if a median is infinite."""
    if not above or not below or not np.isfinite([np.median(above), np.median(below)]).all():
        return None
    value = float(np.median(above) / np.median(below))
    if len(above) < 2 or len(below) < 2:
        return Estimate(value)
    with np.errstate(invalid="ignore"):
        draws = medians(above) / medians(below, seed=2)
    # draws with two infinite medians widen the interval on both sides
    unknown = np.isnan(draws)
    low, _ = interval(np.where(unknown, 0.0, draws))
    _, high = interval(np.where(unknown, np.inf, draws))
    return Estimate(value, (low, high))


def olympic_mean(numbers: Sequence[float]) -> float | None:
    """The mean without the smallest and the largest number: MLPerf's score (training rules, "Benchmark Results")."""
    kept = sorted(numbers)[1:-1]
    return float(np.mean(kept)) if kept else None


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The two-sided p-value of the Mann-Whitney test (1947), exact for small samples; None if a sample is empty.

    Infinite numbers (missed targets) rank as the slowest.
    """
    if not first or not second:
        return None
    place = {number: place for place, number in enumerate(sorted({*first, *second}))}
    return _p_of_places(tuple(place[number] for number in first), tuple(place[number] for number in second))


@cache
def _p_of_places(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """`mann_whitney` of the numbers' places in their order, on which alone it depends; groups of few runs often share them."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(first, second).pvalue)


def smallest_p(first: int, second: int) -> float:
    """The smallest p-value that `mann_whitney` can give for these numbers of runs."""
    return min(1.0, 2 / math.comb(first + second, first))


def standard_error(share: float, count: int) -> float:
    """The binomial standard error of a share of `count` images: the expected deviation for another test set of this size."""
    return math.sqrt(share * (1 - share) / count)


def geometric_mean(numbers: Sequence[float]) -> float:
    """The geometric mean of positive numbers. The geometric mean of products is the product of the geometric means."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))
