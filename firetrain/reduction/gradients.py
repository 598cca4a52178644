"""Gradients in flat buckets, reduced while backward still runs.

DDP's communication hooks were not used: one per model and no switching, rebuilt buckets after the first step, no
futures for point-to-point sends, and an unused parameter means no call at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from firetrain.errors import FiretrainError
from firetrain.reduction.interface import Alone, Bucket, Pending, Reduction


class Gradients:
    """The gradients of `parameters` as views of flat float32 buckets of about `bucket_bytes`, the first a quarter of that.

    Buckets are filled from the last parameter to the first, as backward produces them, and reduced in that order on every
    rank, each as soon as it and those before it are complete. Use, per step: `zero`, backward over all micro-batches with
    `armed = True` before the last one, `flush`, `finish(count)`. Afterwards every `parameter.grad` is the sum over all ranks and
    micro-batches divided by `count`; parameters that took no part have zeros.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], reduction: Reduction, bucket_bytes: int) -> None:
        self._reduction = reduction
        self._parameters = [p for p in parameters if p.requires_grad]
        self._groups = _fill(list(reversed(self._parameters)), bucket_bytes)
        self.buckets = [_flatten(number, group) for number, group in enumerate(self._groups)]
        reduction.prepare(self.buckets)
        self._buffers = [bucket.buffer for bucket in self.buckets]
        self._step = 0
        self.armed = False
        self._missing: list[set[int]] = []
        self._pending: list[Pending] = []
        self._views = {id(p): p.grad for p in self._parameters}
        self._bucket_of = {id(p): number for number, group in enumerate(self._groups) for p in group}
        self._hooks = [p.register_post_accumulate_grad_hook(self._arrived) for p in self._parameters]

    def zero(self) -> None:
        """Begin a step."""
        torch._foreach_zero_(self._buffers)
        self.armed = False
        self._pending = []
        self._missing = [{id(p) for p in group} for group in self._groups]

    def flush(self) -> None:
        """Start what backward did not: buckets with parameters that took no part."""
        while len(self._pending) < len(self.buckets):
            self._start()

    def finish(self, count: float) -> None:
        """Wait for the sums and divide them by `count`, the samples of the global batch."""
        for pending in self._pending:
            pending.wait()
        torch._foreach_mul_(self._buffers, 1.0 / count)
        self._step += 1

    def finite(self) -> Tensor:
        """Whether all of them are finite, as one value on their device: after `finish` the same on every rank.

        What is not finite on one rank has reached all of them by the reduction.
        """
        return torch.stack([buffer.sum() for buffer in self._buffers]).isfinite().all()

    @contextmanager
    def unreduced(self) -> Iterator[None]:
        """Steps in which every rank keeps its own gradients: what a step costs without communication."""
        reduction, self._reduction = self._reduction, Alone()
        try:
            yield
        finally:
            self._reduction = reduction

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, parameter: Tensor) -> None:
        if parameter.grad is not self._views[id(parameter)]:
            raise FiretrainError(
                "a parameter's .grad was replaced; gradients are views of buckets, zero them with Gradients.zero"
            )
        if not self.armed:
            return
        self._missing[self._bucket_of[id(parameter)]].discard(id(parameter))
        while (number := len(self._pending)) < len(self.buckets) and not self._missing[number]:
            self._start()

    def _start(self) -> None:
        self._pending.append(self._reduction.start(self.buckets[len(self._pending)], self._step))


def _fill(parameters: list[torch.nn.Parameter], limit_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Cut the list into groups of at most `limit_bytes`; a larger parameter has a group to itself.

    The first group is a quarter as large: the sooner the link has something to do, the more of it backward hides.
    """
    groups: list[list[torch.nn.Parameter]] = []
    held_bytes = 0
    for parameter in parameters:
        size_bytes = parameter.numel() * parameter.element_size()
        if not groups or held_bytes + size_bytes > (limit_bytes if len(groups) > 1 else limit_bytes / 4):
            groups.append([])
            held_bytes = 0
        groups[-1].append(parameter)
        held_bytes += size_bytes
    return groups


def _flatten(number: int, group: list[torch.nn.Parameter]) -> Bucket:
    """A bucket of zeros for a group; each parameter's grad becomes a view with the parameter's own strides."""
    if any(p.dtype != torch.float32 for p in group):
        raise FiretrainError("parameters must be float32; bfloat16 is a matter of precision, not of storage")
    flat = torch.zeros(sum(p.numel() for p in group), device=group[0].device)
    offset = 0
    for parameter in group:
        parameter.grad = flat[offset : offset + parameter.numel()].as_strided(
            parameter.size(), parameter.stride(), offset
        )
        offset += parameter.numel()
    return Bucket(flat, number, tuple(parameter.shape for parameter in group))
