"""Hierarchical reduction with the library's reduce-scatter in the node, all-reduce between nodes and all-gather in the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.reduction.context import Context
from firetrain.reduction.executor import execute
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.nccl_executor import Issued, NcclExecutor
from firetrain.reduction.wire import type_on_wire
from firetrain.topology import find_topology
from firetrain.transport.device import end_of, issued_on, new_stream
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport, destroy

NATIVE = "native"
# the shares of ranks begin where vectorised kernels can
_ALIGNED_ELEMENTS = 64


def make_hierarchical(context: Context, inner: str, outer: str) -> Reduction:
    """The library's operations if `inner` is native, or by default for all ranks on NCCL if nodes are alike; else the plan."""
    world, on_nccl = context.transport.world, context.transport.on_nccl
    even = len({len(ranks) for ranks in world.nodes}) == 1
    everybody = not context.transport.members  # making process groups is collective over all ranks
    if inner == NATIVE and not everybody:
        raise UserError("hierarchical: inner=native sums over all ranks only; among some of them use inner=ring")
    if inner == NATIVE or (on_nccl and not inner and even and everybody):
        if not even:
            raise UserError(
                f"hierarchical: inner=native needs equally many ranks on each node ({world}); use inner=ring"
            )
        return Scattered(context, outer or NATIVE)
    given = {"inner": inner, "outer": outer}
    spec = Spec("hierarchical", tuple((key, value) for key, value in given.items() if value))
    return execute(find_topology(str(spec)), context)


class Scattered(Reduction):
    """Each rank reduces its share of the node's sum with the ranks of the same local number on the other nodes.

    On a GPU all operations are issued on a separate stream, and the host does not wait.
    """

    def __init__(self, context: Context, outer: str) -> None:
        transport = context.transport
        self._transport, self._dtype = transport, context.dtype
        nodes = transport.world.nodes
        self._width = len(nodes[0])
        columns = [[ranks[local] for ranks in nodes] for local in range(self._width)]
        self._inside, self._between = _own_subgroup(transport, nodes), _own_subgroup(transport, columns)
        self._stream = new_stream(transport.device)
        self._outer: Reduction | None = None
        if outer != NATIVE and len(nodes) > 1:
            between = replace(context, transport=self._between)
            self._outer = NcclExecutor(find_topology(outer)(self._between.world).on(self._between.members), between)
        self._scratch: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Issue the three operations; on Gloo, which is used in tests, the host waits for them."""
        where = f"hierarchical, step {step}, bucket {bucket.number}"
        with issued_on(self._stream):
            self._run(bucket, step, where)
        end = end_of(self._stream)
        if end is not None:
            self._transport.watchdog.watch(end, lambda: where)
        return Issued(end)

    def close(self) -> None:
        """Destroy the process groups of the node and of the ranks between nodes, unless the script has destroyed all."""
        for subgroup in (self._between, self._inside):
            destroy(subgroup.group)

    def _run(self, bucket: Bucket, step: int, where: str) -> None:
        buffer, (padded, share) = bucket.buffer, self._parts(bucket.buffer)
        padded[: len(buffer)].copy_(buffer)
        with lost_peers(self._transport.identity.rank, where):
            _of(dist, "reduce_scatter")(share, padded, group=self._inside.group)
            if self._outer is not None:
                whole = share.to(buffer.dtype)
                self._outer.start(Bucket(whole, bucket.number), step).wait()
                share.copy_(whole)
            elif self._transport.world.size > self._width:
                dist.all_reduce(share, group=self._between.group)
            _of(dist, "all_gather")(padded, share, group=self._inside.group)
        buffer.copy_(padded[: len(buffer)])

    def _parts(self, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """Memory in the type on the wire: padded to a multiple of the ranks in a node, and for the share of one rank."""
        key = length, dtype = len(buffer), type_on_wire(buffer, self._dtype)
        if key not in self._scratch:
            share = -(-length // (_ALIGNED_ELEMENTS * self._width)) * _ALIGNED_ELEMENTS
            device = self._transport.device
            self._scratch[key] = (
                torch.zeros(share * self._width, dtype=dtype, device=device),
                torch.zeros(share, dtype=dtype, device=device),
            )
        return self._scratch[key]


def _own_subgroup(transport: Transport, groups: Sequence[Sequence[int]]) -> Transport:
    """The subgroup of this rank. Collective over all ranks, which make all subgroups in the same order."""
    made = [transport.subgroup(group) for group in groups]
    return next(group for group in made if group is not None)


def _of(module: Any, name: str) -> Any:
    """A collective of torch, under its new or old name.

    torch 2.13 renamed reduce_scatter_tensor to reduce_scatter_single and all_gather_into_tensor to all_gather_single.
    """
    older = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}
    return getattr(module, f"{name}_single", None) or getattr(module, older[name])
