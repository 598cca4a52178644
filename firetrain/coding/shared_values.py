"""Few values that all weights of a layer share, found by k-means (Han, Mao and Dally 2016, section 3).

If bits have a price, they are chosen for the entropy of their codes, too: entropy-constrained scalar quantisation (Choi,
El-Khamy and Lee 2017).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MOST_ROUNDS = 300
_TINY = float(np.finfo(np.float64).tiny)


class Shared(NamedTuple):
    """`values`: ascending, float32. `codes`: for each weight the number of its value, from 0."""

    values: NDArray[np.float32]
    codes: NDArray[np.uint8]


def find_shared_values(weights: NDArray[np.float32], count: int, bit_price: float = 0.0) -> Shared:
    """At most `count` values, and which of them stands for each of the weights [n], with a small sum of squared differences.

    `bit_price`: to its squared difference each weight adds so much of the variance of the weights for each bit of its code; the
    code of a value that stands for a share p of the weights has -log2 p bits. Values that stand for many weights then attract
    more of them, and the codes need fewer bytes.

    Lloyd's algorithm from values at equal distances between the smallest and the largest weight: large weights are few, but
    matter, and other beginnings leave them far from any value (section 3.2). The gap around zero that pruning leaves has no
    values. Values that stand for no weight are left out. `count` is at most 256. In one dimension a round needs only the
    bounds between values in the sorted weights; a general k-means compares every weight with every value.

    >>> find_shared_values(np.array([0.9, 1.1, -2.0], np.float32), 2)
    Shared(values=array([-2.,  1.], dtype=float32), codes=array([1, 1, 0], dtype=uint8))
    """
    if not len(weights):
        return Shared(np.empty(0, np.float32), np.empty(0, np.uint8))
    order = np.argsort(weights, kind="stable")
    ascending = weights[order].astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(ascending)])
    price = bit_price * float(ascending.var())
    bounds = _bounds(ascending, _spread(ascending, count))
    for _ in range(_MOST_ROUNDS):
        values, sizes = _means(sums, bounds)
        prices = price * np.log2(len(ascending) / sizes)
        moved = _bounds_with_prices(ascending, values, prices) if price else _bounds(ascending, values)
        if len(moved) == len(bounds) and (moved == bounds).all():
            break
        bounds = moved
    values, sizes = _means(sums, bounds)
    codes = np.empty(len(weights), np.uint8)
    codes[order] = np.repeat(np.arange(len(values), dtype=np.uint8), sizes)
    return Shared(values.astype(np.float32), codes)


def _spread(ascending: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Values at equal distances between the smallest and the largest weight, without the gap around zero."""
    positive = int(np.searchsorted(ascending, 0.0))
    if positive in (0, len(ascending)):
        return np.linspace(ascending[0], ascending[-1], count)
    last, first = ascending[positive - 1 : positive + 1]
    values = np.linspace(ascending[0], ascending[-1] - (first - last), count)
    return np.where(values > last, values + (first - last), values)


def _bounds(ascending: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first weight of each value, and the end of the last: a weight belongs to the nearest value."""
    between = np.searchsorted(ascending, (values[1:] + values[:-1]) / 2, side="right")
    return np.concatenate([[0], between, [len(ascending)]])


def _bounds_with_prices(
    ascending: NDArray[np.float64], values: NDArray[np.float64], prices: NDArray[np.float64]
) -> NDArray[np.int64]:
    """As `_bounds`, but a weight belongs to the value with the least sum of squared difference and price.

    For a weight w and a value v that is v^2 + price - 2 v w, but for w^2: a straight line. Their lower envelope is found from
    the left; values that are not part of it have no bound.
    """
    constants, slopes = (values**2 + prices).tolist(), (2 * values).tolist()
    envelope: list[tuple[int, float]] = []  # lines, and the weight from which on each is the lowest
    for line in range(len(values)):
        start = -np.inf
        while envelope:
            before, lowest_from = envelope[-1]
            start = (constants[line] - constants[before]) / max(slopes[line] - slopes[before], _TINY)
            if start > lowest_from:
                break
            envelope.pop()
            start = -np.inf
        envelope.append((line, start))
    between = np.searchsorted(ascending, [start for _, start in envelope[1:]], side="right")
    return np.concatenate([[0], between, [len(ascending)]])


def _means(sums: NDArray[np.float64], bounds: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The mean and the number of the weights between each two bounds, where there are any."""
    sizes = np.diff(bounds)
    used = sizes > 0
    return np.diff(sums[bounds])[used] / sizes[used], sizes[used]
