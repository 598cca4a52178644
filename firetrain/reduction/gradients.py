"""Gradients in flat buckets, which are reduced while the backward pass runs.

DDP's communication hooks are not suitable: a model has exactly one hook for its lifetime; buckets are rebuilt after the first
step; point-to-point sends have no futures; and the hook is not called for a bucket with an unused parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, islice

import torch
from torch import Tensor

from firetrain.errors import FiretrainError
from firetrain.reduction.interface import SUMMED, Alone, Bucket, Pending, Reduction
from firetrain.strategy.buckets import fill
from firetrain.transport.device import is_gpu

# on a GPU the gradients of a bucket begin at multiples of 256 bytes, which vectorised kernels need
_ALIGNED_ELEMENTS = 64


class Gradients:
    """The gradients of `parameters` as views of flat buckets of about `bucket_bytes`; the first is a quarter of that.

    Buckets are filled from the last parameter to the first, as the backward pass produces gradients. Every rank reduces them in
    that order, each as soon as it and all earlier ones are complete. Use in each step: `zero`, the backward passes of all
    micro-batches with `last_pass = True` before the last one, `flush`, `finish(count)`. Afterwards every `parameter.grad` is the
    sum over all ranks and micro-batches divided by `count`; the gradient of an unused parameter is zero. Each gradient begins
    at a multiple of `align` elements; default: 64 on a GPU, else 1. FiretrainError unless all parameters are float32, or all
    float64.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        reduction: Reduction,
        bucket_bytes: int,
        align: int | None = None,
    ) -> None:
        self._reduction = reduction
        self.parameters = [p for p in parameters if p.requires_grad]
        self._dtype = self.parameters[0].dtype if self.parameters else torch.float32
        if self._dtype not in SUMMED or any(p.dtype != self._dtype for p in self.parameters):
            raise FiretrainError(
                "parameters must all be float32, or all float64 (for bfloat16 use precision: bfloat16)"
            )
        self._groups = _fill(list(reversed(self.parameters)), bucket_bytes)
        self.buckets = [_flatten(number, group, align) for number, group in enumerate(self._groups)]
        reduction.prepare(self.buckets)
        self._buffers = [bucket.buffer for bucket in self.buckets]
        self._step = 0
        self.last_pass = False
        self._missing: list[set[int]] = []
        self._pending: list[Pending] = []
        self._before: Gradients | None = None
        self._behind: Gradients | None = None
        self._views = {id(p): p.grad for p in self.parameters}
        self._bucket_of = {id(p): number for number, group in enumerate(self._groups) for p in group}
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in self.parameters]

    def zero(self) -> None:
        """Set all gradients to zero, and begin a step."""
        torch._foreach_zero_(self._buffers)
        self.last_pass = False
        self._pending = []
        self._missing = [{id(p) for p in group} for group in self._groups]

    def follow(self, before: Gradients) -> None:
        """Start no bucket before all of `before`.

        Ranks that are in several groups must sum the gradients of all groups in the same order; backward passes do not ensure it,
        because on a rank without images no gradient arrives.
        """
        self._before, before._behind = before, self

    @property
    def _started(self) -> bool:
        return len(self._pending) == len(self.buckets)

    def flush(self) -> None:
        """Start the buckets that the backward pass has not started because a parameter was not used."""
        while not self._started:
            self._start()

    def finish(self, count: float | Tensor) -> None:
        """Wait for the sums, and divide them by `count`, the number of samples in the global batch."""
        for pending in self._pending:
            pending.wait()
        scale = count.clamp(min=1.0).reciprocal().to(self._dtype) if isinstance(count, Tensor) else 1.0 / count
        torch._foreach_mul_(self._buffers, scale)
        self._step += 1

    def finite(self) -> Tensor:
        """Whether all gradients are finite, as a boolean scalar on their device; after `finish` the same on every rank.

        The reduction spreads a gradient that is not finite on one rank to all ranks.
        """
        return torch.stack([buffer.sum() for buffer in self._buffers]).isfinite().all()

    @contextmanager
    def unreduced(self) -> Iterator[None]:
        """Context manager: no communication; each rank keeps its own gradients."""
        reduction, self._reduction = self._reduction, Alone()
        try:
            yield
        finally:
            self._reduction = reduction

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, parameter: Tensor) -> None:
        if parameter.grad is not self._views[id(parameter)]:
            raise FiretrainError(
                "the .grad of a parameter was replaced, but gradients must stay views of buckets: reset them with Gradients.zero"
            )
        if not self.last_pass:
            return
        self._missing[self._bucket_of[id(parameter)]].discard(id(parameter))
        self._start_complete()

    def _start_complete(self) -> None:
        """Start the buckets that are complete, if it is their turn, and those behind them."""
        if self._before is not None and not self._before._started:
            return
        while not self._started and not self._missing[len(self._pending)]:
            self._start()
        if self._started and self._behind is not None:
            self._behind._start_complete()

    def _start(self) -> None:
        self._pending.append(self._reduction.start(self.buckets[len(self._pending)], self._step))


def _fill(parameters: list[torch.nn.Parameter], limit_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Split the list into groups of at most `limit_bytes`; a larger parameter forms a group of its own."""
    rest = iter(parameters)
    counts = fill([parameter.numel() * parameter.element_size() for parameter in parameters], limit_bytes)
    return [list(islice(rest, count)) for count in counts]


def _flatten(number: int, group: list[torch.nn.Parameter], align: int | None) -> Bucket:
    """A bucket of zeros for a group of parameters; each parameter's grad becomes a view with the parameter's strides."""
    device = group[0].device
    if align is None:
        align = _ALIGNED_ELEMENTS if is_gpu(device) else 1
    ends = list(accumulate(-(-p.numel() // align) * align for p in group))
    starts = (0, *ends[:-1])
    flat = torch.zeros(ends[-1], dtype=group[0].dtype, device=device)
    for parameter, offset in zip(group, starts, strict=True):
        parameter.grad = flat[offset : offset + parameter.numel()].as_strided(
            parameter.size(), parameter.stride(), offset
        )
    return Bucket(flat, number, tuple(parameter.shape for parameter in group), starts)
