"""The result of checking a topology or a strategy on many worlds."""

from __future__ import annotations

from typing import NamedTuple


class Proof(NamedTuple):
    """The number of worlds checked, of worlds `refused` (with the `reason` for the last), and the faults that were found.

    >>> Proof(worlds=17, refused=0, reason="", faults=[]).faults
    []
    """

    worlds: int
    refused: int
    reason: str
    faults: list[str]
