"""PowerSGD: a gradient matrix travels as the product of two thin ones; what they miss is kept for the next step."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from firetrain.errors import UserError
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.wiring import Wiring


class Matrix(NamedTuple):
    """Where a gradient lies in its bucket, and its shape as a matrix: the first dimension by all others."""

    start: int
    rows: int
    columns: int

    def view(self, flat: Tensor) -> Tensor:
        """The matrix in a flat buffer."""
        return flat[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


class PowerSGD(Reduction):
    """Lossy, with error feedback and a warm start (Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2).

    For a gradient of n x m two matrices n x r and m x r are summed over the ranks, one after the other, by the reduction
    `through`: r(n+m) elements in place of nm, at the cost of two products with the gradient, an orthogonalisation, and one
    more wait. Gradients that would not get smaller, and vectors, are summed as they are. `rank`: r.
    """

    def __init__(self, wiring: Wiring, rank: int, through: str) -> None:
        from firetrain.reduction.catalogue import find_reduction  # which knows this one by name

        if rank < 1:
            raise UserError(f"powersgd: rank must be 1 or more (rank: {rank})")
        self._rank = rank
        self._through = find_reduction(through, wiring)
        self._kept: dict[tuple[int, int], Kept] = {}

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Begin with the first of the two factors."""
        kept = self._of(bucket)
        gradient = bucket.buffer
        gradient.add_(kept.error)
        for matrix, left, right in kept.factors():
            torch.matmul(matrix.view(gradient), right, out=left)
        kept.pack(gradient)
        first = self._through.start(Bucket(kept.lefts, 2 * bucket.number), step)
        return _Factors(self._through, kept, bucket, first, step)

    def error(self, bucket: Bucket) -> Tensor:
        """What this rank has kept back of `bucket` so far."""
        return self._of(bucket).error

    def close(self) -> None:
        """Close the reduction that carries the factors."""
        self._through.close()

    def _of(self, bucket: Bucket) -> Kept:
        key = bucket.number, len(bucket)
        if key not in self._kept:
            self._kept[key] = Kept(bucket, self._rank)
        return self._kept[key]


class Kept:
    """What is kept of a bucket between steps: the error, the second factors (the next step starts from them), and scratch.

    `lefts` holds the first factors of all matrices, then what is not compressed; `rights` the second factors.
    """

    def __init__(self, bucket: Bucket, rank: int) -> None:
        self.error = torch.zeros_like(bucket.buffer)
        self.matrices, self._plain = _matrices(bucket, rank)
        self._rank = rank
        lefts = sum(m.rows for m in self.matrices) * rank
        self.lefts = torch.zeros(lefts + sum(end - start for start, end in self._plain), device=bucket.buffer.device)
        # the same on all ranks
        seeded = torch.Generator().manual_seed(bucket.number)
        rights = torch.randn(sum(m.columns for m in self.matrices) * rank, generator=seeded)
        self.rights = rights.to(bucket.buffer.device)

    def factors(self) -> list[tuple[Matrix, Tensor, Tensor]]:
        """Each matrix with its factors, rows x r and columns x r, as views."""
        found, left, right = [], 0, 0
        for matrix in self.matrices:
            sizes = matrix.rows * self._rank, matrix.columns * self._rank
            first = self.lefts[left : left + sizes[0]].view(matrix.rows, self._rank)
            second = self.rights[right : right + sizes[1]].view(matrix.columns, self._rank)
            found.append((matrix, first, second))
            left, right = left + sizes[0], right + sizes[1]
        return found

    def pack(self, gradient: Tensor) -> None:
        """Put what is not compressed behind the first factors."""
        place = sum(m.rows for m in self.matrices) * self._rank
        for start, end in self._plain:
            self.lefts[place : place + end - start].copy_(gradient[start:end])
            place += end - start

    def unpack(self, gradient: Tensor) -> None:
        """Take it back, summed."""
        place = sum(m.rows for m in self.matrices) * self._rank
        for start, end in self._plain:
            gradient[start:end].copy_(self.lefts[place : place + end - start])
            self.error[start:end].zero_()
            place += end - start


class _Factors:
    """A bucket between its two sums."""

    def __init__(self, through: Reduction, kept: Kept, bucket: Bucket, first: Pending, step: int) -> None:
        self._through, self._kept, self._bucket, self._first, self._step = through, kept, bucket, first, step

    def wait(self) -> None:
        """Orthogonalise, sum the second factor, multiply."""
        gradient, kept = self._bucket.buffer, self._kept
        self._first.wait()
        kept.error.copy_(gradient)
        for matrix, left, right in kept.factors():
            left.copy_(torch.linalg.qr(left).Q)
            torch.matmul(matrix.view(gradient).T, left, out=right)
            matrix.view(kept.error).addmm_(left, right.T, alpha=-1)
        kept.unpack(gradient)
        if len(kept.rights):
            self._through.start(Bucket(kept.rights, 2 * self._bucket.number + 1), self._step).wait()
        for matrix, left, right in kept.factors():
            torch.matmul(left, right.T, out=matrix.view(gradient))


def _matrices(bucket: Bucket, rank: int) -> tuple[list[Matrix], list[tuple[int, int]]]:
    """The gradients worth compressing, and the ranges of the others."""
    matrices, plain, start = [], [], 0
    for shape in bucket.shapes or (torch.Size([len(bucket)]),):
        size = math.prod(shape)
        rows, columns = (shape[0], size // shape[0]) if len(shape) > 1 else (size, 1)
        if rank * (rows + columns) < size and rank <= min(rows, columns):
            matrices.append(Matrix(start, rows, columns))
        else:
            plain.append((start, start + size))
        start += size
    return matrices, plain
