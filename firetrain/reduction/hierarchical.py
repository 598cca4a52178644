"""Hierarchical by the library's own means: reduce-scatter in the node, all-reduce between nodes, all-gather in the node."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.cluster import World
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.reduction.dataflow import Dataflow
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.rounds import Issued, Rounds
from firetrain.reduction.transport import lost_peers
from firetrain.reduction.wiring import Wiring
from firetrain.topology import find_topology

NATIVE = "native"


def make_hierarchical(wiring: Wiring, inner: str, outer: str) -> Reduction:
    """The library's where it is asked for, or by default on NCCL if every node has equally many ranks; else the plan."""
    world, on_nccl = wiring.transport.world, wiring.transport.name == "nccl"
    even = len({len(ranks) for ranks in world.nodes}) == 1
    if inner == NATIVE or (on_nccl and not inner and even):
        if not even:
            raise UserError(
                f"hierarchical: inner=native needs equally many ranks on each node ({world}); use inner=ring"
            )
        return Scattered(wiring, outer or NATIVE)
    given = {"inner": inner, "outer": outer}
    spec = Spec("hierarchical", tuple((key, value) for key, value in given.items() if value))
    plan = find_topology(str(spec))(world)
    return Rounds(plan, wiring) if on_nccl else Dataflow(plan, wiring)


class Scattered(Reduction):
    """Each rank reduces its share of the node's sum with the ranks of the same local number on the other nodes.

    On a GPU everything is issued on a stream of its own and the host does not wait.
    """

    def __init__(self, wiring: Wiring, outer: str) -> None:
        transport = wiring.transport
        self._transport, self._dtype = transport, wiring.dtype
        nodes = transport.world.nodes
        self._width = len(nodes[0])
        # every rank makes all groups, in one order
        inside = [dist.new_group(list(ranks)) for ranks in nodes]
        columns = [[ranks[local] for ranks in nodes] for local in range(self._width)]
        between = [dist.new_group(column) for column in columns]
        node = transport.world.node_of[transport.rank]
        local = nodes[node].index(transport.rank)
        self._inside, self._between = inside[node], between[local]
        device = transport.device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._outer: Rounds | None = None
        if outer != NATIVE and len(nodes) > 1:
            plan = find_topology(outer)(World.even(len(nodes), 1))
            self._outer = Rounds(plan, wiring, columns[local], self._between)
        self._scratch: dict[int, tuple[Tensor, Tensor]] = {}

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Issue the three parts; on Gloo, which is for tests, this waits for them."""
        where = f"hierarchical, step {step}, bucket {bucket.number}"
        if self._stream is None:
            self._run(bucket, step, where)
            return Issued(None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._run(bucket, step, where)
        return Issued(self._stream)

    def _run(self, bucket: Bucket, step: int, where: str) -> None:
        buffer, (padded, share) = bucket.buffer, self._parts(len(bucket))
        padded[: len(buffer)].copy_(buffer)
        with lost_peers(self._transport.rank, where):
            _of(dist, "reduce_scatter")(share, padded, group=self._inside)
            if self._outer is not None:
                whole = share.float()
                self._outer.start(Bucket(whole, bucket.number), step).wait()
                share.copy_(whole)
            elif self._transport.world.size > self._width:
                dist.all_reduce(share, group=self._between)
            _of(dist, "all_gather")(padded, share, group=self._inside)
        buffer.copy_(padded[: len(buffer)])

    def _parts(self, length: int) -> tuple[Tensor, Tensor]:
        """A buffer padded to a multiple of the ranks in a node, and one rank's share, in the wire dtype."""
        if length not in self._scratch:
            share = -(-length // self._width)
            device = self._transport.device
            self._scratch[length] = (
                torch.zeros(share * self._width, dtype=self._dtype, device=device),
                torch.zeros(share, dtype=self._dtype, device=device),
            )
        return self._scratch[length]


def _of(module: Any, name: str) -> Any:
    """torch 2.13 calls `reduce_scatter_tensor` reduce_scatter_single and `all_gather_into_tensor` all_gather_single."""
    older = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}
    return getattr(module, f"{name}_single", None) or getattr(module, older[name])
