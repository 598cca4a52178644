"""Medians, ratios and tests of significance, compared with textbooks and enumeration, and for infinite numbers."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrain.records.target import has_ended, or_never
from firetrain.report.statistics import (
    Estimate,
    geometric_mean,
    mann_whitney,
    median_estimate,
    olympic_mean,
    ratio,
    smallest_p,
    standard_error,
)
from firetrain.report.target import in_words, interval_in_words

NEVER = math.inf
times = st.lists(st.floats(min_value=0.1, max_value=1e6), min_size=2, max_size=9)


@given(times)
def test_a_median_lies_in_its_interval_and_the_interval_in_the_numbers(numbers: list[float]) -> None:
    found = median_estimate(numbers)
    assert found and found.interval is not None
    low, high = found.interval
    assert min(numbers) <= low <= found.value <= high <= max(numbers)


def test_one_number_has_no_interval_and_none_has_no_median() -> None:
    assert median_estimate([3.0]) == Estimate(3.0) and median_estimate([]) is None


def test_runs_that_never_reached_the_target_can_make_the_median_infinite() -> None:
    found = median_estimate([10.0, NEVER, NEVER])
    assert found and found.value == NEVER and found.interval == (10.0, NEVER)


@given(times, st.floats(min_value=0.01, max_value=100))
def test_a_ratio_does_not_depend_on_the_unit(numbers: list[float], factor: float) -> None:
    scaled = [number * factor for number in numbers]
    found = ratio(scaled, numbers)
    assert found and found.value == pytest.approx(factor, rel=1e-9)
    assert found.interval is not None
    low, high = found.interval
    assert low <= found.value * (1 + 1e-9) and high >= found.value * (1 - 1e-9)


def test_a_ratio_with_an_infinite_median_is_none_and_with_infinite_draws_is_wide() -> None:
    assert ratio([NEVER, NEVER, 1.0], [1.0, 2.0, 3.0]) is None
    wide = ratio([1.0, 2.0, NEVER], [1.0, 2.0, NEVER])
    assert wide and wide.value == 1.0 and wide.interval == (0.0, NEVER)


@pytest.mark.parametrize(
    ("first", "second"),
    [([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), ([1.0, 5.0], [2.0, 3.0, 4.0]), ([7.0], [1.0, 2.0, 9.0, 8.0])],
)
def test_the_p_value_is_that_of_all_ways_to_deal_the_numbers(first: list[float], second: list[float]) -> None:
    """Mann and Whitney's U counts the pairs in which the first is larger; ties do not occur here."""

    def u(chosen: tuple[float, ...]) -> float:
        rest = [number for number in everything if number not in chosen]
        return sum(a > b for a in chosen for b in rest)

    everything = first + second
    middle = len(first) * len(second) / 2
    dealt = [abs(u(chosen) - middle) for chosen in combinations(everything, len(first))]
    extreme = abs(u(tuple(first)) - middle)
    assert mann_whitney(first, second) == pytest.approx(sum(far >= extreme for far in dealt) / len(dealt))


@pytest.mark.parametrize(("first", "second"), [(3, 3), (1, 5), (4, 7), (1, 1)])
def test_the_smallest_p_is_that_of_complete_separation(first: int, second: int) -> None:
    low, high = [float(n) for n in range(first)], [100.0 + n for n in range(second)]
    assert mann_whitney(low, high) == pytest.approx(smallest_p(first, second))


def test_a_run_that_never_ends_is_the_slowest() -> None:
    assert mann_whitney([1.0, 2.0, 3.0], [4.0, 5.0, NEVER]) == mann_whitney([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert mann_whitney([], [1.0]) is None


def test_mlperf_s_mean_leaves_out_two() -> None:
    assert olympic_mean([9.0, 1.0, 2.0, 3.0]) == 2.5
    assert olympic_mean([1.0, 2.0]) is None


def test_the_standard_error_is_that_of_the_binomial() -> None:
    # 10,000 images at 97 %: 0.17 points
    assert standard_error(0.97, 10_000) == pytest.approx(0.0017059, abs=1e-6)
    assert standard_error(1.0, 100) == 0.0


@given(times, times)
def test_the_geometric_mean_of_products_is_the_product_of_the_means(first: list[float], second: list[float]) -> None:
    pairs = list(zip(first, second, strict=False))
    product = geometric_mean([a * b for a, b in pairs])
    assert product == pytest.approx(geometric_mean([a for a, _ in pairs]) * geometric_mean([b for _, b in pairs]))


@pytest.mark.parametrize(
    ("state", "reason", "ended"),
    [("completed", "", True), ("failed", "diverged: the loss is nan", True), ("failed", "rank 1 was killed", False),
     ("running", "", False), ("stopped", "", False), ("cancelled", "", False)],
)  # fmt: skip
def test_only_what_ended_by_itself_counts_as_missed(state: str, reason: str, ended: bool) -> None:
    assert has_ended(state, reason) is ended


def test_times_to_a_target_in_words() -> None:
    def form(seconds: float) -> str:
        return f"{seconds:g} s"

    assert or_never(None) == NEVER and or_never(2.0) == 2.0
    assert in_words(3.0, form) == "3 s" and in_words(NEVER, form) == "not reached"
    assert interval_in_words(1.0, 2.0, form) == "1 s to 2 s"
    assert interval_in_words(1.0, NEVER, form) == "1 s or more"
    assert interval_in_words(NEVER, NEVER, form) == "not reached"
