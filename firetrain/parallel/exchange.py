"""The one primitive of placements: ranks that have some regions of an activation get the regions that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.records.parts import COMPUTE, EXCHANGE, Part
from firetrain.strategy.region import NOTHING, Region
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport, own_group
from firetrain.transport.watchdog import Collective


class Exchanger:
    """Sends and receives regions between ranks, in forward and in backward passes.

    Both have process groups of their own, because stages of a pipeline interleave them differently. Collective over all ranks.

    - `dtype`: type of all values on the wire, also of a rank that has none.
    - `waiting`: the part of a step that exchanges are counted as.
    - `lap`: is called with COMPUTE at the begin of an exchange, and with `waiting` at its end (see Stopwatch).
    - `sent_bytes`: sent so far.
    """

    def __init__(self, transport: Transport, dtype: torch.dtype = torch.float32, waiting: Part = EXCHANGE) -> None:
        self._waiting = waiting
        self.lap: Callable[[Part], None] = lambda part: None
        self._transport, self.dtype = transport, dtype
        self._groups = [own_group(transport) if transport.size > 1 else None for _ in range(2)]
        self._under_way: list[tuple[dist.Work, Tensor]] = []
        self.sent_bytes = 0

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._transport.rank

    def move(
        self, values: Tensor, have: Sequence[Region], need: Sequence[Region], tag: int, what: str, *, back: bool = False
    ) -> Tensor:
        """The region `need[rank]` of the sum of what all ranks have.

        `values`: region `have[rank]`, [images, channels, ...]. Contributions are added in rank order, so that the result has the
        same bits wherever the same regions meet. `tag`: number of this exchange. LostPeer, which says `what` was exchanged.
        """
        self.lap(COMPUTE)
        try:
            return self._move(values, have, need, tag, what, self._groups[back])
        finally:
            self.lap(self._waiting)

    def _move(
        self, values: Tensor, have: Sequence[Region], need: Sequence[Region], tag: int, what: str, group: Any
    ) -> Tensor:
        rank = self._transport.rank
        operations, received = [], {}
        for other, (theirs, wanted) in enumerate(zip(have, need, strict=True)):
            if other != rank and (out := have[rank] & wanted).size:
                part = _cut(values, have[rank], out).contiguous()
                self.sent_bytes += part.numel() * part.element_size()
                operations.append(dist.P2POp(dist.isend, part, self._transport.number_of(other), group, tag))
            if other != rank and (into := theirs & need[rank]).size:
                received[other] = values.new_empty((into.images, into.channels, *values.shape[2:]))
                operations.append(dist.P2POp(dist.irecv, received[other], self._transport.number_of(other), group, tag))
        self._complete(operations, what)
        own = have[rank] & need[rank]
        if not received and own == need[rank]:
            return _cut(values, have[rank], own)
        found = values.new_zeros((need[rank].images, need[rank].channels, *values.shape[2:]))
        for other, theirs in enumerate(have):
            both = theirs & need[rank]
            if both.size:
                _cut(found, need[rank], both).add_(received[other] if other != rank else _cut(values, have[rank], both))
        return found

    def settle(self) -> None:
        """Wait until everything that was sent has left this rank."""
        with lost_peers(self._transport.rank, "the end of a step's exchanges"):
            for work, _ in self._under_way:
                work.wait()
        self._under_way.clear()

    def close(self) -> None:
        """Destroy the process groups."""
        for group in self._groups:
            if group is not None:
                dist.destroy_process_group(group)

    def _complete(self, operations: list[dist.P2POp], what: str) -> None:
        """Start all operations, and wait for those that receive; a GPU's stream waits, not the host."""
        if not operations:
            return
        with lost_peers(self._transport.rank, what):
            if self._transport.name == "nccl":
                works = dist.batch_isend_irecv(operations)
                self._transport.watchdog.watch(Collective(works[-1]), lambda: what)
                if any(one.op is dist.irecv for one in operations):
                    for work in works:
                        work.wait()
                else:  # waiting for sends, stages of a pipeline that send to each other would never receive
                    self._under_way += [(work, one.tensor) for work in works for one in operations]
                return
            for one in operations:
                work = one.op(one.tensor, one.peer, one.group, one.tag)
                if one.op is dist.isend:
                    self._under_way.append((work, one.tensor))
                else:
                    one.work = work  # type: ignore[attr-defined]
            for one in operations:
                if one.op is dist.irecv:
                    one.work.wait()  # type: ignore[attr-defined]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, exchanger: Exchanger, have: Any, need: Any, tag: int, what: str) -> Tensor:
        ctx.exchanger, ctx.have, ctx.need, ctx.tag, ctx.what = exchanger, have, need, tag, what
        return exchanger.move(values, have, need, tag, what)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        what = f"the gradient of {ctx.what}"
        return ctx.exchanger.move(gradient, ctx.need, ctx.have, ctx.tag, what, back=True), None, None, None, None, None


def exchange(
    values: Tensor, exchanger: Exchanger, have: Sequence[Region], need: Sequence[Region], tag: int, what: str
) -> Tensor:
    """`Exchanger.move` with a gradient: its backward pass moves the gradients from `need` to `have`, and sums them."""
    return _Exchange.apply(values.to(exchanger.dtype), exchanger, tuple(have), tuple(need), tag, what)  # type: ignore[no-any-return]


def _cut(values: Tensor, region: Region, part: Region) -> Tensor:
    """A view of `part` of the values of `region`."""
    if part == NOTHING:
        return values[:0, :0]
    images = values.narrow(0, part.first_image - region.first_image, part.images)
    return images.narrow(1, part.first_channel - region.first_channel, part.channels)
