"""Positions of the weights that are kept, as gaps of a few bits (Han, Mao and Dally 2016, section 2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


def gaps_of(positions: Positions, bits: int) -> tuple[Bytes, NDArray[np.bool_]]:
    """The gaps between ascending positions, and which of them end at a filler.

    A gap is the number of zeros before an entry, at most 2^`bits` - 1. Where more zeros follow one another, an entry that is
    zero itself, a filler, divides them.

    >>> gaps, fillers = gaps_of(np.array([2, 3, 9]), bits=2)
    >>> gaps.tolist(), fillers.tolist()
    ([2, 0, 3, 1], [False, False, True, False])
    """
    reach = 1 << bits
    steps = np.diff(positions, prepend=-1)
    needed = (steps - 1) // reach
    ends = np.cumsum(needed + 1) - 1
    gaps = np.full(int(ends[-1]) + 1 if len(ends) else 0, reach - 1, np.uint8)
    gaps[ends] = (steps - 1) % reach
    fillers = np.ones(len(gaps), np.bool_)
    fillers[ends] = False
    return gaps, fillers


def positions_of(gaps: Bytes) -> Positions:
    """The positions of all entries, fillers included.

    >>> positions_of(np.array([2, 0, 3, 1], np.uint8)).tolist()
    [2, 3, 7, 9]
    """
    return np.cumsum(gaps.astype(np.int64) + 1) - 1
