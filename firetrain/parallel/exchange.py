"""The one primitive of placements: ranks that have some regions of an activation get the regions that they need."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch import Tensor

from firetrain.records.parts import COMPUTE, EXCHANGE, Part
from firetrain.strategy.region import NOTHING, Region
from firetrain.transport.device import synchronize
from firetrain.transport.lost_peers import lost_peers
from firetrain.transport.transport import Transport, own_group
from firetrain.transport.watchdog import Collective


class _RegionReceive(NamedTuple):
    """A message that a rank gets in a pass: its sender, whether it is a gradient, its tag, shape and type."""

    sender: int
    back: bool
    tag: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Exchanger:
    """Sends and receives regions between ranks, in forward and in backward passes.

    Both have process groups of their own, because stages of a pipeline interleave them differently. Collective over all ranks.
    Over Gloo a message travels only once its receiver has asked for it. Therefore the receives of a pass are remembered, and
    those of the next pass of its kind are posted before it begins.

    - `dtype`: type of all values that are sent, also for ranks that hold none.
    - `waiting`: the part of a step that exchanges are counted as.
    - `lap`: is called with COMPUTE at the beginning of an exchange, and with `waiting` at its end (see Stopwatch).
    - `sent_bytes`: sent so far.
    """

    def __init__(self, transport: Transport, dtype: torch.dtype = torch.float32, waiting: Part = EXCHANGE) -> None:
        self._waiting = waiting
        self.lap: Callable[[Part], None] = lambda part: None
        self._transport, self.dtype = transport, dtype
        self._groups = [own_group(transport) if transport.size > 1 else None for _ in range(2)]
        self._under_way: list[tuple[dist.Work, Tensor]] = []
        self._receives: dict[Hashable, list[_RegionReceive]] = {}
        self._seen: list[_RegionReceive] | None = None
        self._posted: dict[_RegionReceive, deque[tuple[dist.Work, Tensor]]] = defaultdict(deque)
        self._ahead: Hashable = None
        self.sent_bytes = 0
        if transport.on_nccl:  # the first use of a group must involve all of its ranks
            with transport.waiting("the first collective of the ranks that exchange activations"):
                for group in filter(None, self._groups):
                    dist.all_reduce(torch.zeros(1, device=transport.device), group=group)
                synchronize(transport.device)

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self._transport.rank

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._transport.device

    @contextmanager
    def passing(self, kind: Hashable, following: Hashable = None) -> Iterator[None]:
        """Context manager for one pass. Passes of one `kind` receive the same messages.

        `following`: kind of the next pass, whose receives are posted early. Omit it if that pass may not happen.
        """
        if self._transport.on_nccl:  # which expects the same order on all ranks
            yield
            return
        if self._ahead != kind:
            self._post(kind)
        # never before receives of this pass, because messages of one sender and one tag are taken in the order of the receives
        self._ahead = following if {kind, following} <= self._receives.keys() else None
        if self._ahead is not None:
            self._post(following)
        self._seen = []
        yield
        self._receives.setdefault(kind, self._seen)
        self._seen = None

    def move(
        self, values: Tensor, have: Sequence[Region], need: Sequence[Region], tag: int, what: str, *, back: bool = False
    ) -> Tensor:
        """The region `need[rank]` of the sum of what all ranks have.

        `values`: region `have[rank]`, [images, channels, ...]. Contributions are added in rank order, so that
        the result is deterministic. `tag`: number of this exchange. `what`: what is exchanged, which LostPeer names.
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
        operations, received, posted = [], {}, []
        for other, (theirs, wanted) in enumerate(zip(have, need, strict=True)):
            if other != rank and (out := have[rank] & wanted).size:
                sent = _cut(values, have[rank], out).contiguous()
                self.sent_bytes += sent.numel() * sent.element_size()
                operations.append(dist.P2POp(dist.isend, sent, self._transport.number_of(other), group, tag))
            if other != rank and (into := theirs & need[rank]).size:
                one = _RegionReceive(
                    other, group is self._groups[1], tag, (into.images, into.channels, *values.shape[2:]), values.dtype
                )
                if self._seen is not None:
                    self._seen.append(one)
                if self._posted[one]:
                    work, received[other] = self._posted[one].popleft()
                    posted.append(work)
                    continue
                received[other] = values.new_empty(one.shape)
                operations.append(dist.P2POp(dist.irecv, received[other], self._transport.number_of(other), group, tag))
        self._complete(operations, what)
        with lost_peers(self._transport.identity.rank, what):
            for work in posted:
                work.wait()
        own = have[rank] & need[rank]
        if not received and own == need[rank]:
            return _cut(values, have[rank], own)
        found = values.new_zeros((need[rank].images, need[rank].channels, *values.shape[2:]))
        for other, theirs in enumerate(have):
            both = theirs & need[rank]
            if both.size:
                _cut(found, need[rank], both).add_(received[other] if other != rank else _cut(values, have[rank], both))
        return found

    def _post(self, kind: Hashable) -> None:
        """Post the receives of the next pass of this kind, if one has been seen."""
        for one in self._receives.get(kind, ()):
            buffer = torch.empty(one.shape, dtype=one.dtype, device=self._transport.device)
            with lost_peers(self._transport.identity.rank, "the receives of the next pass"):
                work = dist.irecv(buffer, self._transport.number_of(one.sender), self._groups[one.back], one.tag)
            self._posted[one].append((cast(dist.Work, work), buffer))

    def settle(self) -> None:
        """Wait until everything that was sent has left this rank."""
        with lost_peers(self._transport.identity.rank, "the end of a step's exchanges"):
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
        with lost_peers(self._transport.identity.rank, what):
            if self._transport.on_nccl:
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


def _cut(values: Tensor, region: Region, wanted: Region) -> Tensor:
    """A view of the region `wanted` of the values of `region`."""
    if wanted == NOTHING:
        return values[:0, :0]
    images = values.narrow(0, wanted.first_image - region.first_image, wanted.images)
    return images.narrow(1, wanted.first_channel - region.first_channel, wanted.channels)
