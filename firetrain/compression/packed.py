"""A tensor of a compressed model: how its numbers are kept, and what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firetrain.compression.gaps import Bytes, gaps_of, positions_of
from firetrain.compression.shared_values import share

Floats = NDArray[np.float32]
# raw: every number. sparse: the numbers that are not zero, with gaps. shared: codes of few values, with gaps if there are zeros.
# product: two matrices, [rows, rank] and [rank, columns], whose product it is
Kind = Literal["raw", "sparse", "shared", "product"]
KINDS: tuple[Kind, ...] = ("raw", "sparse", "shared", "product")


def _none() -> Bytes:
    return np.empty(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Packed:
    """A tensor called `name` of this `shape`, float32.

    - `values`: the numbers themselves; of `shared` the values that codes 1, 2, ... stand for. Code 0 is zero.
    - `bits`: of a code, or 0; `codes`: of the entries. `gap_bits`: of a gap, or 0; `gaps`: before the entries.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind
    values: Floats
    bits: int = 0
    codes: Bytes = field(default_factory=_none)
    gap_bits: int = 0
    gaps: Bytes = field(default_factory=_none)

    @property
    def size(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def density(self) -> float:
        """The share of the elements that are kept, without fillers."""
        if self.kind == "product" or not self.size:
            return len(self.values) / max(1, self.size)
        return int(np.count_nonzero(self.array())) / self.size

    def array(self) -> Floats:
        """The tensor, float32 of `shape`."""
        if self.kind == "raw":
            return self.values.reshape(self.shape)
        if self.kind == "product":
            return self._product().reshape(self.shape)
        entries = self.values
        if self.kind == "shared":
            entries = np.concatenate([np.zeros(1, np.float32), self.values])[self.codes]
        if not self.gap_bits:
            return entries.reshape(self.shape)
        found = np.zeros(self.size, np.float32)
        found[positions_of(self.gaps)] = entries
        return found.reshape(self.shape)

    def _product(self) -> Floats:
        rows, columns = self.shape[0], self.size // self.shape[0]
        rank = len(self.values) // (rows + columns)
        left, right = np.split(self.values.astype(np.float64), [rows * rank])
        with np.errstate(over="ignore"):  # of numbers that nobody has trained
            return np.asarray(left.reshape(rows, rank) @ right.reshape(rank, columns), np.float32)


def raw(name: str, array: Floats) -> Packed:
    """Every number of a tensor."""
    return Packed(name, array.shape, "raw", array.ravel())


def sparse(name: str, array: Floats, gap_bits: int) -> Packed:
    """The numbers of a tensor that are not zero."""
    flat = array.ravel()
    gaps, fillers = gaps_of(np.flatnonzero(flat), gap_bits)
    values = np.zeros(len(gaps), np.float32)
    values[~fillers] = flat[flat != 0]
    return Packed(name, array.shape, "sparse", values, gap_bits=gap_bits, gaps=gaps)


def shared(name: str, array: Floats, bits: int, gap_bits: int) -> Packed:
    """A tensor whose numbers share at most 2^`bits` - 1 values, and zero: the tensor's own values, if they are as few already.

    Gaps are left out if codes of all elements need fewer bits.
    """
    flat = array.ravel()
    kept = flat[flat != 0]
    values = np.unique(kept)
    if len(values) >= 1 << bits:
        values, found = share(kept, (1 << bits) - 1)
        codes = found + np.uint8(1)
    else:
        codes = (np.searchsorted(values, kept) + 1).astype(np.uint8)
    gaps, fillers = gaps_of(np.flatnonzero(flat), gap_bits)
    if len(gaps) * (bits + gap_bits) >= len(flat) * bits:
        whole = np.zeros(len(flat), np.uint8)
        whole[flat != 0] = codes
        return Packed(name, array.shape, "shared", values.astype(np.float32), bits, whole)
    entries = np.zeros(len(gaps), np.uint8)
    entries[~fillers] = codes
    return Packed(name, array.shape, "shared", values.astype(np.float32), bits, entries, gap_bits, gaps)


def product(name: str, array: Floats, rank: int) -> Packed:
    """A matrix by its `rank` largest singular values (Denton et al. 2014, section 3.2)."""
    rows = array.shape[0]
    left, middle, right = np.linalg.svd(array.reshape(rows, -1).astype(np.float64), full_matrices=False)
    root = np.sqrt(middle[:rank])
    factors = np.concatenate([(left[:, :rank] * root).ravel(), (root[:, None] * right[:rank]).ravel()])
    return Packed(name, array.shape, "product", factors.astype(np.float32))
