"""The reduction by Horovod's all-reduce."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from firetrain.errors import UserError
from firetrain.reduction.context import Context
from firetrain.reduction.horovod_start import ALGORITHMS, runs_over_mpi, start_horovod
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.transport.lost_peers import lost_peers

OPERATIONS = ("sum", "adasum")
# maximum number of reductions in flight per bucket: Horovod identifies an operation by name, and names in flight must be unique
_UNDER_WAY = 16


class Horovod(Reduction):
    """Reduces each bucket by `hvd.grouped_allreduce_async_`, without Horovod's fusion.

    - `op`: sum, or adasum (Maleki et al. 2020), which adds orthogonal gradients and averages parallel ones; the number of ranks
      must then be a power of two.
    - `algorithm`: hierarchical or torus, if Horovod was built with NCCL.

    With a 16-bit wire dtype Horovod also adds in that dtype. UserError if Horovod is not installed, or was built without a
    feature that is needed.
    """

    def __init__(self, context: Context, op: str = "sum", algorithm: str = "") -> None:
        self._transport, self._dtype = context.transport, context.dtype
        if op not in OPERATIONS or algorithm not in ("", *ALGORITHMS):
            raise UserError(
                f"horovod: op is sum or adasum, algorithm hierarchical or torus (got op={op}, algorithm={algorithm or 'none'})"
            )
        size = context.transport.size
        if op == "adasum" and size & (size - 1):
            raise UserError(
                f"horovod:op=adasum needs a power of two ranks, because it halves the ranks recursively (ranks: {size})"
            )
        self._hvd = start_horovod(context.transport, algorithm)
        self._op = self._hvd.Adasum if op == "adasum" else self._hvd.Sum
        if op == "adasum" and not runs_over_mpi(self._hvd) and not context.transport.on_nccl:
            raise UserError(
                "horovod:op=adasum on CPUs needs MPI: start the ranks with mpirun (launcher: mpirun in the site) and a Horovod "
                "built with MPI"
            )
        # each gradient is the sum over a rank's images; adasum returns a sum over the images of one rank, not of all
        self._factor = size if op == "adasum" else 1
        self._algorithm = algorithm
        self._starts: Counter[tuple[int, int]] = Counter()

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Pass the bucket to Horovod's thread."""
        key = (bucket.number, len(bucket))
        self._starts[key] += 1
        name = f"bucket {bucket.number}, {len(bucket)}, {self._starts[key] % _UNDER_WAY}"
        wire = bucket.buffer if self._dtype == torch.float32 else bucket.buffer.to(self._dtype)
        where = f"Horovod's all-reduce of step {step}, bucket {bucket.number}"
        with lost_peers(self._transport.rank, where):
            handle = self._hvd.grouped_allreduce_async_([wire], name=name, op=self._op)
        return _Handle(self, handle, bucket.buffer, wire, where)

    def facts(self) -> dict[str, Any]:
        """The version of Horovod, the libraries that it was built with, its controller, and its algorithm."""
        libraries = [one for one in ("mpi", "gloo", "nccl") if getattr(self._hvd, f"{one}_built")()]
        controller = "mpi" if runs_over_mpi(self._hvd) else "gloo"
        return {"version": _version(), "built_with": libraries, "controller": controller, "algorithm": self._algorithm}

    def finish(self, handle: int, buffer: Tensor, wire: Tensor, where: str) -> None:
        """Wait for the sum, and copy it into the buffer."""
        with lost_peers(self._transport.rank, where):
            self._hvd.synchronize(handle)
        if wire is not buffer:
            buffer.copy_(wire)
        if self._factor != 1:
            buffer.mul_(self._factor)


class _Handle:
    """An all-reduce under way."""

    def __init__(self, reduction: Horovod, handle: int, buffer: Tensor, wire: Tensor, where: str) -> None:
        self._reduction, self._rest = reduction, (handle, buffer, wire, where)

    def wait(self) -> None:
        """Wait for the sum; on a GPU the host waits too."""
        self._reduction.finish(*self._rest)


def _version() -> str:
    from importlib.metadata import version

    return version("horovod")
