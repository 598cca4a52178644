"""95 % confidence intervals of medians by the percentile bootstrap (Efron 1979)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_DRAWS = 1000


def medians(numbers: Sequence[float] | NDArray[np.float64], seed: int = 1) -> NDArray[np.float64]:
    """The median of each bootstrap draw from `numbers`, [1000]."""
    draws = np.random.default_rng(seed).choice(np.asarray(numbers, dtype=float), (_DRAWS, len(numbers)))
    return np.asarray(np.median(draws, axis=1))


def medians_of_medians(groups: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """The median of the groups' medians in each bootstrap draw, [1000]; groups are drawn first, then numbers within them."""
    random = np.random.default_rng(1)
    arrays = [np.asarray(group) for group in groups]
    found = []
    for _ in range(_DRAWS):
        chosen = [arrays[number] for number in random.integers(len(arrays), size=len(arrays))]
        found.append(np.median([np.median(random.choice(array, len(array))) for array in chosen]))
    return np.asarray(found)


def interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """The bounds of the middle 95 % of the draws."""
    # interpolation between two infinities would give NaN
    method = "linear" if np.isfinite(draws).all() else "nearest"
    low, high = np.percentile(draws, [2.5, 97.5], method=method)  # type: ignore[call-overload]
    return float(low), float(high)
