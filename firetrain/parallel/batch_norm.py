"""The running statistics of batch norm on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from firetrain.transport.transport import Transport


@torch.no_grad()
def share_batch_norm(
    model: nn.Module, transport: Transport, ranks_of: Callable[[str], Sequence[int]] | None = None
) -> None:
    """Average the running statistics over the ranks; each rank has gathered them from its own images. Collective.

    `ranks_of`: the ranks that have computed a module, by its name; default: all. The others get the average, too.
    """
    if transport.size == 1:
        return
    statistics = [
        (buffer, range(transport.size) if ranks_of is None else ranks_of(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if statistics:
        own = [buffer if transport.rank in ranks else torch.zeros_like(buffer) for buffer, ranks in statistics]
        sums = transport.sum(torch.cat(own)).split([buffer.numel() for buffer in own])
        for (buffer, ranks), found in zip(statistics, sums, strict=True):
            buffer.copy_(found / len(ranks))


def statistics(model: nn.Module) -> Tensor:
    """All running statistics of batch norm in one new vector on the CPU; empty if the model has none."""
    return torch.cat([torch.empty(0), *(buffer.flatten().cpu() for buffer in _running(model))])


@torch.no_grad()
def load_statistics(model: nn.Module, values: Tensor) -> None:
    """Replace the running statistics by those of a vector from `statistics`."""
    buffers = list(_running(model))
    for buffer, part in zip(buffers, values.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view(buffer.shape))


def _running(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            yield from (buffer for buffer in (module.running_mean, module.running_var) if buffer is not None)
