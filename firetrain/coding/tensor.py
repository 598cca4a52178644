"""A tensor of a compressed model: how its numbers are kept, and what they are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firetrain.coding.gaps import Bytes, gaps_of, positions_of
from firetrain.coding.shared_values import find_shared_values

Floats = NDArray[np.float32]
# raw: every number. sparse: the numbers that are not zero, with gaps. shared: codes of few values, with gaps if there are zeros.
# low_rank: two matrices, [rows, rank] and [rank, columns], whose product it is
Kind = Literal["raw", "sparse", "shared", "low_rank"]
KINDS: tuple[Kind, ...] = ("raw", "sparse", "shared", "low_rank")


# elements of a product that are computed in float64 at a time
_TOGETHER = 1 << 22


def _none() -> Bytes:
    return np.empty(0, np.uint8)


@dataclass(frozen=True, eq=False)
class CompressedTensor:
    """A tensor called `name` of this `shape`, float32.

    - `values`: the numbers themselves, float32; of `shared` the values that codes 1, 2, ... stand for. Code 0 is zero.
    - `bits`: the width of a code, 0 without codes. `codes`: uint8, one for each entry.
    - `gap_bits`: the width of a gap, 0 if all elements are entries. `gaps`: uint8, the number of zeros before each entry.
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
    def stream(self) -> str:
        """The stream of the file in which `values` are."""
        return stream_of(self.kind)

    @property
    def density(self) -> float:
        """The share of the elements that are not zero; of two matrices, their numbers as a share of the elements."""
        if self.kind == "low_rank" or not self.size:
            return len(self.values) / max(1, self.size)
        return int(np.count_nonzero(self.array())) / self.size

    def array(self) -> Floats:
        """The tensor, float32 of `shape`."""
        if self.kind == "raw":
            return self.values.reshape(self.shape)
        if self.kind == "low_rank":
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
        left, right = left.reshape(rows, rank), right.reshape(rank, columns)
        found = np.empty((rows, columns), np.float32)
        together = max(1, _TOGETHER // columns)
        with np.errstate(over="ignore"):  # of numbers that nobody has trained
            for first in range(0, rows, together):
                found[first : first + together] = left[first : first + together] @ right
        return found


def stream_of(kind: Kind) -> str:
    """The stream of the file in which the values of a tensor of this kind are."""
    return "values" if kind == "shared" else "numbers"


def is_weight(dimensions: int) -> bool:
    """Whether a tensor with so many dimensions is pruned and shares values: a matrix or filters, no bias or statistic."""
    return dimensions >= 2


def raw(name: str, array: Floats) -> CompressedTensor:
    """A tensor of any shape with all its numbers."""
    return CompressedTensor(name, array.shape, "raw", array.ravel())


def sparse(name: str, array: Floats, gap_bits: int) -> CompressedTensor:
    """A tensor of any shape with its numbers that are not zero, and gaps of `gap_bits`, 1 to 8."""
    flat = array.ravel()
    gaps, fillers = gaps_of(np.flatnonzero(flat), gap_bits)
    values = np.zeros(len(gaps), np.float32)
    values[~fillers] = flat[flat != 0]
    return CompressedTensor(name, array.shape, "sparse", values, gap_bits=gap_bits, gaps=gaps)


def shared(name: str, array: Floats, bits: int, gap_bits: int, bit_price: float = 0.0) -> CompressedTensor:
    """A tensor of any shape whose numbers share at most 2^`bits` - 1 values besides zero; `bits` is 1 to 8.

    A tensor with no more distinct values keeps its own. Gaps are left out if codes of all elements need fewer bits.
    `bit_price`: see `find_shared_values`.
    """
    flat = array.ravel()
    kept = flat[flat != 0]
    values = np.unique(kept)
    if len(values) >= 1 << bits:
        values, found = find_shared_values(kept, (1 << bits) - 1, bit_price)
        codes = found + np.uint8(1)
    else:
        codes = (np.searchsorted(values, kept) + 1).astype(np.uint8)
    gaps, fillers = gaps_of(np.flatnonzero(flat), gap_bits)
    if len(gaps) * (bits + gap_bits) >= len(flat) * bits:
        whole = np.zeros(len(flat), np.uint8)
        whole[flat != 0] = codes
        return CompressedTensor(name, array.shape, "shared", values.astype(np.float32), bits, whole)
    entries = np.zeros(len(gaps), np.uint8)
    entries[~fillers] = codes
    return CompressedTensor(name, array.shape, "shared", values.astype(np.float32), bits, entries, gap_bits, gaps)


def low_rank(name: str, array: Floats, rank: int) -> CompressedTensor:
    """A tensor of two dimensions or more, [rows, ...], as a matrix with its `rank` largest singular values.

    Denton et al. 2014, section 3.2. There are no more singular values than rows, or columns.
    """
    rows = array.shape[0]
    left, middle, right = np.linalg.svd(array.reshape(rows, -1).astype(np.float64), full_matrices=False)
    root = np.sqrt(middle[:rank])
    factors = np.concatenate([(left[:, :rank] * root).ravel(), (root[:, None] * right[:rank]).ravel()])
    return CompressedTensor(name, array.shape, "low_rank", factors.astype(np.float32))
