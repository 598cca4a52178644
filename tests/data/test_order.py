"""The order of images depends only on seed and epoch; ranks and micro-batches divide it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from firetrain.data.draws import permutation, uniform, words
from firetrain.data.order import global_batches, micro_batches, share

counts = st.integers(1, 300)


@given(counts, st.integers(1, 64), st.integers(0, 2**63 - 1), st.integers(0, 100))
@settings(deadline=None)
def test_an_epoch_has_every_sample_once_and_only_the_last_batch_is_smaller(
    count: int, size: int, seed: int, epoch: int
) -> None:
    batches = global_batches(count, size, seed, epoch)
    assert sorted(np.concatenate(batches)) == list(range(count))
    assert all(len(batch) == size for batch in batches[:-1]) and 0 < len(batches[-1]) <= size


@given(counts, st.integers(1, 40), st.one_of(st.none(), st.integers(1, 20)))
@settings(deadline=None)
def test_ranks_and_micro_batches_divide_a_batch_without_loss_or_change_of_order(
    count: int, ranks: int, most: int | None
) -> None:
    batch = global_batches(count, count, 3, 5)[0]
    pieces = [list(micro_batches(share(batch, rank, ranks), most)) for rank in range(ranks)]
    assert np.array_equal(np.concatenate([piece for rank in pieces for piece in rank]), batch)
    sizes = [sum(map(len, rank)) for rank in pieces]
    assert max(sizes) - min(sizes) <= 1
    assert most is None or max(len(piece) for rank in pieces for piece in rank) <= most


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(permutation(seed, epoch, 50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_the_order_never_changes_between_versions() -> None:
    """Resuming a run and reproducing an old one need exactly the same numbers, which are recorded here."""
    assert permutation(1, 0, 8).tolist() == GOLDEN_ORDER
    assert words(1, 2, np.arange(2), 3).tolist() == GOLDEN_WORDS


def test_draws_are_uniform_and_streams_independent() -> None:
    samples = np.arange(100_000)
    first, second = uniform(1, 0, samples, 1), uniform(1, 0, samples, 2)
    for draws in (first, second):
        assert draws.min() >= 0 and draws.max() < 1
        counts = np.histogram(draws, bins=20, range=(0, 1))[0]
        assert ((counts - 5000) ** 2 / 5000).sum() < 43.8  # chi-squared, 19 degrees of freedom, 0.1 %
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.01
    assert abs(np.corrcoef(first, uniform(1, 1, samples, 1))[0, 1]) < 0.01
    assert abs(np.corrcoef(first, uniform(2, 0, samples, 1))[0, 1]) < 0.01


GOLDEN_ORDER = [0, 7, 2, 5, 4, 6, 3, 1]
GOLDEN_WORDS = [16415201034912288188, 2677980580135630567]
