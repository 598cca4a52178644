"""PowerSGD: gradient matrices are sent as products of two thin matrices; the error is added to the next gradient."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Pending, Reduction


class Matrix(NamedTuple):
    """A gradient as a matrix: the index of its first element in the bucket, and its shape (first dimension by all others)."""

    start: int
    rows: int
    columns: int

    def view(self, flat: Tensor) -> Tensor:
        """The matrix as a view of a flat buffer, [rows, columns]."""
        return flat[self.start : self.start + self.rows * self.columns].view(self.rows, self.columns)


class PowerSGD(Reduction):
    """Lossy, with error feedback and a warm start (Vogels, Karimireddy and Jaggi 2019, algorithms 1 and 2).

    For a gradient of n x m the reduction `through` sums two matrices of n x r and m x r over the ranks, one after the other.
    That is r(n+m) elements instead of nm, at the cost of two products with the gradient, an orthogonalisation and one more
    wait. Vectors, and gradients that would not become smaller, are summed uncompressed. `rank`: r.
    """

    def __init__(self, context: Context, rank: int, through: str) -> None:
        from firetrain.reduction.catalogue import find_reduction  # imported here to avoid an import cycle

        self._rank = rank
        self._through = find_reduction(through, context)
        self._kept: dict[tuple[object, ...], Kept] = {}

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Add the error to the gradients, and start to sum the first factors."""
        kept = self._of(bucket)
        gradient = bucket.buffer
        gradient.add_(kept.error)
        for matrix, left, right in kept.factors():
            torch.matmul(matrix.view(gradient), right, out=left)
        kept.pack(gradient)
        first = self._through.start(Bucket(kept.lefts, 2 * bucket.number), step)
        return _Factors(self._through, kept, bucket, first, step)

    def error(self, bucket: Bucket) -> Tensor:
        """The part of earlier gradients of `bucket` that this rank has not sent yet, [elements]."""
        return self._of(bucket).error

    def forget(self, bucket: Bucket) -> None:
        """Release the error and the factors of a bucket."""
        self._kept.pop(bucket.key, None)

    def close(self) -> None:
        """Close the reduction that sums the factors."""
        self._through.close()

    def _of(self, bucket: Bucket) -> Kept:
        key = bucket.key
        if key not in self._kept:
            self._kept[key] = Kept(bucket, self._rank)
        return self._kept[key]


class Kept:
    """The state of a bucket between steps: error, second factors (the next step's warm start), scratch memory.

    `lefts`: the first factors of all matrices, then the uncompressed gradients. `rights`: the second factors.
    """

    def __init__(self, bucket: Bucket, rank: int) -> None:
        self.error = torch.zeros_like(bucket.buffer)
        self.matrices, self._plain = _matrices(bucket, rank)
        self._rank = rank
        lefts = sum(m.rows for m in self.matrices) * rank
        self.lefts = bucket.buffer.new_zeros(lefts + sum(end - start for start, end in self._plain))
        # all ranks must start with the same numbers
        seeded = torch.Generator().manual_seed(bucket.number)
        rights = torch.randn(sum(m.columns for m in self.matrices) * rank, generator=seeded, dtype=torch.float32)
        self.rights = rights.to(bucket.buffer)  # its device and type
        self._tallest = max((m.rows for m in self.matrices), default=0)
        indices = [
            torch.arange(m.rows * rank) + number * self._tallest * rank for number, m in enumerate(self.matrices)
        ]
        self._indices = torch.cat(indices).to(bucket.buffer.device) if indices else None

    def factors(self) -> list[tuple[Matrix, Tensor, Tensor]]:
        """Each matrix with views of its factors, [rows, r] and [columns, r]."""
        found, left, right = [], 0, 0
        for matrix in self.matrices:
            sizes = matrix.rows * self._rank, matrix.columns * self._rank
            first = self.lefts[left : left + sizes[0]].view(matrix.rows, self._rank)
            second = self.rights[right : right + sizes[1]].view(matrix.columns, self._rank)
            found.append((matrix, first, second))
            left, right = left + sizes[0], right + sizes[1]
        return found

    def orthogonalise(self) -> None:
        """Make the columns of each first factor orthonormal; all matrices at once, because each alone hardly uses a GPU."""
        if self._indices is None:
            return
        stacked = self.lefts.new_zeros(len(self.matrices) * self._tallest * self._rank)
        stacked[self._indices] = self.lefts[: len(self._indices)]
        basis = orthonormal(stacked.view(len(self.matrices), self._tallest, self._rank))
        self.lefts[: len(self._indices)] = basis.flatten()[self._indices]

    def pack(self, gradient: Tensor) -> None:
        """Copy the uncompressed gradients to the end of `lefts`, after the first factors."""
        first = sum(m.rows for m in self.matrices) * self._rank
        for start, end in self._plain:
            self.lefts[first : first + end - start].copy_(gradient[start:end])
            first += end - start

    def unpack(self, gradient: Tensor) -> None:
        """Copy the sums of the uncompressed gradients back."""
        first = sum(m.rows for m in self.matrices) * self._rank
        for start, end in self._plain:
            gradient[start:end].copy_(self.lefts[first : first + end - start])
            self.error[start:end].zero_()
            first += end - start


class _Factors:
    """A bucket whose first factors are being summed."""

    def __init__(self, through: Reduction, kept: Kept, bucket: Bucket, first: Pending, step: int) -> None:
        self._through, self._kept, self._bucket, self._first, self._step = through, kept, bucket, first, step

    def wait(self) -> None:
        """Orthogonalise the first factors, sum the second factors, and write the products into the bucket."""
        gradient, kept = self._bucket.buffer, self._kept
        self._first.wait()
        kept.error.copy_(gradient)
        kept.orthogonalise()
        for matrix, left, right in kept.factors():
            torch.matmul(matrix.view(gradient).T, left, out=right)
            matrix.view(kept.error).addmm_(left, right.T, alpha=-1)
        kept.unpack(gradient)
        if len(kept.rights):
            self._through.start(Bucket(kept.rights, 2 * self._bucket.number + 1), self._step).wait()
        for matrix, left, right in kept.factors():
            torch.matmul(left, right.T, out=matrix.view(gradient))


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis of the columns of each matrix, [matrices, rows, r], by Gram-Schmidt with reorthogonalisation.

    A column that depends on earlier ones becomes zero. Rows of zeros may be added below a matrix; they stay zero.
    """
    basis = torch.zeros_like(columns)
    lengths = torch.linalg.vector_norm(columns, dim=1)
    for number in range(columns.shape[2]):
        column = columns[:, :, number : number + 1]
        for _ in range(2):  # twice is enough (Giraud, Langou and Rozloznik 2005)
            column = column - basis @ (basis.mT @ column)
        length = torch.linalg.vector_norm(column, dim=1, keepdim=True)
        independent = length > 1e-6 * lengths[:, number, None, None]
        basis[:, :, number : number + 1] = torch.where(independent, column / length, 0.0)
    return basis


def _matrices(bucket: Bucket, rank: int) -> tuple[list[Matrix], list[tuple[int, int]]]:
    """The gradients that become smaller by compression, and the (start, end) of all others."""
    matrices, plain = [], []
    shapes = bucket.shapes or (torch.Size([len(bucket)]),)
    starts = bucket.starts or (0, *accumulate(math.prod(shape) for shape in shapes))
    for shape, start in zip(shapes, starts, strict=False):
        size = math.prod(shape)
        rows, columns = (shape[0], size // shape[0]) if len(shape) > 1 else (size, 1)
        if rank * (rows + columns) < size and rank <= min(rows, columns):
            matrices.append(Matrix(start, rows, columns))
        else:
            plain.append((start, start + size))
    return matrices, plain
