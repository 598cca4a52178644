"""Random numbers as a pure function of (seed, epoch, sample), so that they do not depend on workers, ranks or restarts.

The generator is counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"); its mixing function is the
finaliser of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def words(seed: int, epoch: int, samples: NDArray[Any], stream: int) -> NDArray[np.uint64]:
    """One random 64-bit word per sample; different streams are independent of each other."""
    with np.errstate(over="ignore"):
        key = _mix(np.asarray([seed], np.uint64) * _GOLDEN + np.uint64(stream))
        key = _mix(key + np.uint64(epoch + 1) * _GOLDEN)
        return _mix(key + (samples.astype(np.uint64) + np.uint64(1)) * _GOLDEN)


def uniform(seed: int, epoch: int, samples: NDArray[Any], stream: int) -> NDArray[np.float64]:
    """One random number in [0, 1) per sample."""
    result: NDArray[np.float64] = (words(seed, epoch, samples, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return result


def permutation(seed: int, epoch: int, count: int, stream: int = 0) -> NDArray[np.int64]:
    """The numbers 0 .. count-1 in a random order, which depends only on (seed, epoch, stream)."""
    return np.argsort(words(seed, epoch, np.arange(count), stream), kind="stable")


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = word ^ (word >> np.uint64(31))
    return result
