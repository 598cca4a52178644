"""Factories of the reductions that are not plans.

They import torch only when called, so that a login node can inspect their parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from firetrain.config.spec import Within

if TYPE_CHECKING:
    from firetrain.reduction.context import Context
    from firetrain.reduction.interface import Reduction

Rank = Annotated[int, Within(1, 4096)]
Density = Annotated[float, Within(1e-6, 1)]


def native(context: Context, algorithm: str = "") -> Reduction:
    """The all-reduce of torch.distributed: Gloo's ring, or the algorithm that NCCL chooses or that is given.

    `algorithm`: on NCCL, a name from NCCL_ALGO (ring, tree, nvls, ...); it is used in a separate communicator.
    """
    from firetrain.reduction.native import Native

    return Native(context, algorithm)


def hierarchical(context: Context, inner: str = "", outer: str = "") -> Reduction:
    """The hierarchical plan, or the library's reduce-scatter in the node, all-reduce between nodes, all-gather in the node.

    - `inner`: a topology, or `native` (the library's reduce-scatter and all-gather; default on NCCL if all nodes have the same
      number of ranks).
    - `outer`: a topology, or `native` if inner is native.
    """
    from firetrain.reduction.hierarchical import make_hierarchical

    return make_hierarchical(context, inner, outer)


def powersgd(context: Context, rank: Rank = 2, through: str = "native") -> Reduction:
    """Lossy: sends each gradient matrix as a product of two thin matrices, with error feedback (Vogels et al. 2019)."""
    from firetrain.reduction.powersgd import PowerSGD

    return PowerSGD(context, rank, through)


def top_k(context: Context, density: Density = 0.01) -> Reduction:
    """Lossy: sends only the largest gradients of each rank, with error feedback (Aji and Heafield 2017)."""
    from firetrain.reduction.top_k import TopK

    return TopK(context, density)


def auto(context: Context, candidates: str = "") -> Reduction:
    """The fastest reduction for each bucket, by the profile's table or by a measurement before the first step.

    `candidates`: names joined by +; default: those of the profile's table, or native and all topologies.
    """
    from firetrain.reduction.auto import Auto

    return Auto(context, candidates)


def horovod(context: Context, op: str = "sum", algorithm: str = "") -> Reduction:
    """Horovod's all-reduce of the same buckets, without its fusion; needs Horovod (make horovod).

    `op`: sum, or adasum for a power of two ranks. `algorithm`: hierarchical or torus, if Horovod was built with NCCL.
    """
    from firetrain.reduction.horovod import Horovod

    return Horovod(context, op, algorithm)
