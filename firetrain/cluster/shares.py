"""Divides a number of things as evenly as possible."""

from __future__ import annotations


def share_bounds(count: int, number: int, shares: int) -> tuple[int, int]:
    """The first and the end of share `number` of 0 .. count-1. Sizes differ by at most one; with more shares than things some
    are empty.

    >>> [share_bounds(5, number, 3) for number in range(3)]
    [(0, 1), (1, 3), (3, 5)]
    """
    return number * count // shares, (number + 1) * count // shares
