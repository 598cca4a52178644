"""Shares cover everything once, and are as even as they can be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from firetrain.cluster.shares import share_bounds
from firetrain.data.order import share


@given(count=st.integers(0, 1000), shares=st.integers(1, 200))
def test_shares_follow_one_another_and_differ_by_at_most_one(count: int, shares: int) -> None:
    bounds = [share_bounds(count, number, shares) for number in range(shares)]
    assert bounds[0][0] == 0 and bounds[-1][1] == count
    assert all(end == first for (_, end), (first, _) in zip(bounds, bounds[1:], strict=False))
    sizes = {end - first for first, end in bounds}
    assert max(sizes) - min(sizes) <= 1 and min(sizes) == count // shares


@given(count=st.integers(0, 200), ranks=st.integers(1, 70))
def test_samples_are_shared_in_the_same_way(count: int, ranks: int) -> None:
    samples = np.arange(count)[::-1]
    found = [share(samples, rank, ranks) for rank in range(ranks)]
    assert np.array_equal(np.concatenate(found), samples)
    assert [len(one) for one in found] == [
        end - first for first, end in (share_bounds(count, r, ranks) for r in range(ranks))
    ]
