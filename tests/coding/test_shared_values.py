"""Few values stand for all weights of a layer: the nearest ones or, with a price of bits, those with short codes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firetrain.coding.shared_values import find_shared_values
from firetrain.coding.tensor import shared


@given(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=60), st.integers(1, 16))
def test_shared_values_are_the_means_of_their_weights_and_each_weight_has_the_nearest(
    numbers: list[float], count: int
) -> None:
    array = np.array(numbers, np.float32)
    found = find_shared_values(array, count)
    assert 1 <= len(found.values) <= count and (np.diff(found.values) >= 0).all()
    for code, value in enumerate(found.values):
        assert value == pytest.approx(float(array[found.codes == code].astype(np.float64).mean()), rel=1e-5, abs=1e-6)
    distances = np.abs(array[:, None] - found.values[None, :])
    assert (distances[np.arange(len(array)), found.codes] <= distances.min(axis=1) + 1e-5).all()


def test_shared_values_are_those_of_lloyd_s_algorithm_from_equal_distances() -> None:
    """From quantiles, or from weights drawn at random, few values would be left for the large weights."""
    weights = np.random.default_rng(1).laplace(size=3000).astype(np.float32)
    values = np.linspace(weights.min(), weights.max(), 16, dtype=np.float64)
    for _ in range(300):
        codes = np.abs(weights[:, None] - values[None, :]).argmin(axis=1)
        values = np.array([weights[codes == code].astype(np.float64).mean() for code in np.unique(codes)])
    assert find_shared_values(weights, 16).values == pytest.approx(values, rel=1e-6)


@pytest.mark.parametrize("count", [15, 31, 63])
def test_no_values_are_wasted_on_the_gap_that_pruning_leaves(count: int) -> None:
    dense = np.random.default_rng(1).standard_normal(20_000).astype(np.float32)
    kept = dense[np.abs(dense) > np.quantile(np.abs(dense), 0.9)]
    values, codes = find_shared_values(kept, count)
    assert len(values) >= 0.9 * count
    through = np.linspace(kept.min(), kept.max(), count, dtype=np.float64)
    for _ in range(300):
        nearest = np.abs(kept[:, None] - through[None, :]).argmin(axis=1)
        through = np.array([kept[nearest == code].astype(np.float64).mean() for code in np.unique(nearest)])
    nearest = np.abs(kept[:, None] - through[None, :]).argmin(axis=1)
    assert len(through) < 0.7 * count, "what equal distances through the gap leave"
    errors = [float(np.square(found.astype(np.float64) - kept).sum()) for found in (values[codes], through[nearest])]
    assert errors[0] < 0.6 * errors[1]


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=60),
    st.integers(1, 16),
    st.sampled_from([0.001, 0.02, 0.3]),
)
def test_with_a_price_of_bits_each_weight_has_the_value_whose_difference_and_code_cost_least(
    numbers: list[float], count: int, bit_price: float
) -> None:
    array = np.array(numbers, np.float32).astype(np.float64)
    values, codes = find_shared_values(array.astype(np.float32), count, bit_price)
    assert len(values) <= count and set(codes) == set(range(len(values)))
    for code, value in enumerate(values):
        assert value == pytest.approx(array[codes == code].mean(), rel=1e-5, abs=1e-6)
    bits = -np.log2(np.bincount(codes) / len(codes))
    costs = (array[:, None] - values[None, :]) ** 2 + bit_price * array.var() * bits[None, :]
    assert (costs[np.arange(len(array)), codes] <= costs.min(axis=1) + 1e-4).all()


def test_a_price_of_bits_gives_smaller_codes_than_fewer_values_with_no_larger_differences() -> None:
    array = np.random.default_rng(1).laplace(size=20_000).astype(np.float32)

    def bits_and_error(count: int, bit_price: float) -> tuple[float, float]:
        values, codes = find_shared_values(array, count, bit_price)
        shares = np.bincount(codes) / len(codes)
        return -float(shares @ np.log2(shares)), float(np.square(values[codes] - array).sum())

    few, priced = bits_and_error(15, 0.0), bits_and_error(63, 0.028)
    assert priced[0] < 0.97 * few[0] and priced[1] < few[1]
    sizes = [bits_and_error(63, price)[0] for price in (0.0, 0.002, 0.008, 0.03)]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 0.7 * sizes[0]


def test_more_values_lose_less_and_as_many_values_as_weights_lose_nothing() -> None:
    array = np.random.default_rng(1).standard_normal(2000).astype(np.float32)
    losses = []
    for count in (3, 15, 63, 255):
        values, codes = find_shared_values(array, count)
        losses.append(float((values[codes] - array).astype(np.float64).std()))
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.02
    few = np.array([0.5, 0.5, -1.0, 3.0], np.float32)
    assert (shared("few", few, 2, 4).array() == few).all(), "it has three values already"
