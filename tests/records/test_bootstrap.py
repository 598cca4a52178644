"""Confidence intervals of medians, for a known distribution and for infinite numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from firetrain.records.bootstrap import interval, medians, medians_of_medians


@pytest.mark.parametrize("count", [9, 25])
def test_the_interval_covers_the_median_of_the_distribution_about_95_times_of_100(count: int) -> None:
    random = np.random.default_rng(7)
    samples = random.lognormal(0.0, 1.0, (400, count))  # whose median is 1
    covered = sum(low <= 1.0 <= high for low, high in (interval(medians(list(sample))) for sample in samples))
    # for few numbers, the percentile bootstrap covers somewhat less than its nominal 95 %
    assert binom.cdf(covered, 400, 0.90) > 0.001 and covered < 400


def test_the_same_numbers_have_the_same_interval() -> None:
    assert interval(medians([3.0, 1.0, 2.0])) == interval(medians([3.0, 1.0, 2.0]))
    assert interval(medians([2.0, 2.0, 2.0])) == (2.0, 2.0)


def test_infinite_numbers_count_and_leave_the_finite_end_alone() -> None:
    low, high = interval(medians([1.0, 2.0, math.inf]))
    assert low == 1.0 and high == math.inf
    assert interval(medians([math.inf, math.inf])) == (math.inf, math.inf)


def test_groups_are_drawn_before_the_numbers_within_them() -> None:
    """Two groups far apart, each without spread: the only uncertainty is which group is drawn."""
    apart = medians_of_medians([[1.0] * 50, [3.0] * 50])
    assert set(apart) == {1.0, 2.0, 3.0}
    assert np.mean(apart == 2.0) == pytest.approx(0.5, abs=0.06)
    together = medians_of_medians([[1.0, 3.0] * 25] * 2)
    assert np.mean(apart == 1.0) > np.mean(together == 1.0)
