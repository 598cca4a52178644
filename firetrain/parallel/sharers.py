"""The gradients of a placed model on one rank: each is summed over the ranks that hold the same shard of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from firetrain.parallel.placed_model import PlacedModel
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.gradients import Gradients
from firetrain.reduction.interface import Alone, Reduction
from firetrain.strategy.buckets import shared_runs
from firetrain.transport.checksum import check_same_bits
from firetrain.transport.transport import Transport


class Sharers:
    """The groups of sharers that this rank belongs to, and its gradients in each.

    Collective: all ranks make the process groups of all groups.

    - `placed`: the rank's share of the model.
    - `reduction`: name of the reduction, with its parameters.
    - `count`: number of groups of two or more sharers, on any rank.
    """

    def __init__(self, placed: PlacedModel, context: Context, reduction: str, bucket_bytes: int) -> None:
        self._transport = context.transport
        runs = _parameters(placed)
        self.count = len({group for group, _ in runs if len(group) > 1})
        self._gradients: list[tuple[Transport | None, Gradients]] = []
        self._reductions: list[Reduction] = []
        self._known: dict[tuple[int, ...], Transport | None] = {}
        for group, parameters in runs:
            among = self._among(group)
            if self._transport.rank in group and parameters:
                own: Reduction = Alone()
                if among is not None and among.size > 1:
                    own = find_reduction(reduction, Context(among, context.wire_dtype, context.profile))
                self._reductions.append(own)
                self._gradients.append((among, Gradients(parameters, own, bucket_bytes)))
        for (_, before), (_, behind) in pairwise(self._gradients):
            behind.follow(before)

    def _among(self, group: tuple[int, ...]) -> Transport | None:
        """The transport of a group; None if this rank is alone in it, or not in it."""
        if group == tuple(range(self._transport.size)):
            return self._transport
        if group not in self._known:
            self._known[group] = self._transport.subgroup(group) if len(group) > 1 else None
        return self._known[group]

    def zero(self) -> None:
        """Set all gradients to zero, at the start of a step."""
        for _, gradients in self._gradients:
            gradients.zero()

    def sum_after_next_pass(self, last: bool) -> None:
        """Set whether the next backward pass is the last of a step, after which buckets are summed."""
        for _, gradients in self._gradients:
            gradients.last_pass = last

    def flush(self) -> None:
        """Start the sums of all buckets that have not been started."""
        for _, gradients in self._gradients:
            gradients.flush()

    def finish(self, images: float | Tensor) -> None:
        """Wait for the sums, and divide them by `images`."""
        for _, gradients in self._gradients:
            gradients.finish(images)

    def finite(self) -> Tensor:
        """Whether all gradients of all ranks are finite, as a boolean scalar."""
        found = [gradients.finite() for _, gradients in self._gradients]
        bad = torch.stack(found).logical_not().any() if found else torch.zeros((), device=self._transport.device)
        return self._transport.sum(bad.float()) == 0

    @contextmanager
    def unreduced(self) -> Iterator[None]:
        """Context manager: each rank keeps its own gradients."""
        with ExitStack() as stack:
            for _, gradients in self._gradients:
                stack.enter_context(gradients.unreduced())
            yield

    def check_bits(self, step: int) -> None:
        """Compare the parameters of each group by checksum; RanksDiffer names the step and the ranks that differ."""
        for among, gradients in self._gradients:
            if among is not None:
                check_same_bits(gradients.parameters, among, step)

    @property
    def buckets_bytes(self) -> list[int]:
        """The bytes of each of this rank's buckets."""
        buckets = (bucket for _, gradients in self._gradients for bucket in gradients.buckets)
        return [len(bucket) * bucket.buffer.element_size() for bucket in buckets]

    def close(self) -> None:
        """Release hooks, reductions and process groups."""
        for _, gradients in self._gradients:
            gradients.close()
        for reduction in self._reductions:
            reduction.close()
        for subgroup in self._known.values():
            if subgroup is not None:
                dist.destroy_process_group(subgroup.group)


def _parameters(placed: PlacedModel) -> list[tuple[tuple[int, ...], list[nn.Parameter]]]:
    """The parameters of this rank by run of layers with the same sharers; all runs, as backward passes reach them.

    The order is the same on all ranks. Parameters that this rank has alone, or that are in no layer, come last.
    """
    placement, everybody = placed.placement, tuple(range(placed.placement.ranks))
    found: list[tuple[tuple[int, ...], list[nn.Parameter]]] = []
    runs: dict[tuple[tuple[int, ...], str], list[nn.Parameter]] = {}
    for group, layers in shared_runs(placement):
        found.append((group, []))
        runs |= {(group, layer.name): found[-1][1] for layer in layers}
    alone: list[nn.Parameter] = []
    in_no_layer: list[nn.Parameter] = []
    for name, parameter in placed.model.named_parameters():
        layer = placed.layer_of(name)
        own = in_no_layer if layer is None else runs.get((placed.sharers_of(name), layer.name), alone)
        own.append(parameter)
    rank = placed.rank
    return [
        *reversed(found),
        *([((rank,), alone)] if alone else []),
        *([(everybody, in_no_layer)] if in_no_layer else []),
    ]
