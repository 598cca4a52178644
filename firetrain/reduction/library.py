"""Reductions that are not plans, by name. Torch is loaded when one is made, so that their parameters can be read without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firetrain.reduction.interface import Reduction
    from firetrain.reduction.wiring import Wiring


def native(wiring: Wiring, algorithm: str = "") -> Reduction:
    """torch.distributed's own all-reduce: Gloo's ring, or what NCCL chooses or is told to use.

    `algorithm`: on NCCL, as NCCL_ALGO names them (ring, tree, nvls, ...), for a communicator of its own.
    """
    from firetrain.reduction.native import Native

    return Native(wiring, algorithm)


def hierarchical(wiring: Wiring, inner: str = "", outer: str = "") -> Reduction:
    """The plan; on NCCL reduce-scatter inside the node, all-reduce between nodes, all-gather inside.

    `inner`: a topology, or native for the library's reduce-scatter and all-gather, which is what NCCL gets where all nodes have
    equally many ranks. `outer`: a topology; with inner native also native.
    """
    from firetrain.reduction.hierarchical import make_hierarchical

    return make_hierarchical(wiring, inner, outer)


def powersgd(wiring: Wiring, rank: int = 2, through: str = "native") -> Reduction:
    """Lossy: each gradient matrix as a product of two thin ones, with error feedback (Vogels et al. 2019)."""
    from firetrain.reduction.powersgd import PowerSGD

    return PowerSGD(wiring, rank, through)


def top_k(wiring: Wiring, density: float = 0.01) -> Reduction:
    """Lossy: each rank's largest gradients only, with error feedback (Aji and Heafield 2017)."""
    from firetrain.reduction.top_k import TopK

    return TopK(wiring, density)


def auto(wiring: Wiring, candidates: str = "") -> Reduction:
    """For each bucket the reduction that was fastest here: from the profile's table, or measured before the first step.

    `candidates`: names joined by +; not given: the profile's, or native and the topologies that can be fastest.
    """
    from firetrain.reduction.auto import Auto

    return Auto(wiring, candidates)


def horovod(wiring: Wiring, op: str = "sum", algorithm: str = "") -> Reduction:
    """Horovod's all-reduce of the same buckets, without its fusion; needs Horovod (make horovod).

    `op`: sum, or adasum for a power of two ranks. `algorithm`: hierarchical or torus, where Horovod was built with NCCL.
    """
    from firetrain.reduction.horovod import Horovod

    return Horovod(wiring, op, algorithm)
