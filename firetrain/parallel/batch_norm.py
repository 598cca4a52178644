"""The running statistics of batch norm, and of instance norm, on several ranks."""

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

    `ranks_of`: the ranks that have computed a module, by its name; default: all. The others get the average, too, and the number
    of batches that it is made of.
    """
    if transport.size == 1:
        return
    statistics = [
        (buffer, range(transport.size) if ranks_of is None else ranks_of(name)) for name, buffer in _running(model)
    ]
    if statistics and ranks_of:
        _share_counts(model, transport)
    if statistics:
        own = [buffer if transport.rank in ranks else torch.zeros_like(buffer) for buffer, ranks in statistics]
        sums = transport.sum(torch.cat(own)).split([buffer.numel() for buffer in own])
        for (buffer, ranks), found in zip(statistics, sums, strict=True):
            buffer.copy_(found / len(ranks))


def statistics(model: nn.Module) -> Tensor:
    """All running statistics of batch norm in one new vector on the CPU; empty if the model has none."""
    return torch.cat([torch.empty(0), *(buffer.flatten().cpu() for _, buffer in _running(model))])


@torch.no_grad()
def load_statistics(model: nn.Module, values: Tensor) -> None:
    """Replace the running statistics by those of a vector from `statistics`."""
    buffers = [buffer for _, buffer in _running(model)]
    for buffer, part in zip(buffers, values.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view(buffer.shape))


def _running(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The running means and variances, each with the name of its module."""
    for name, module in model.named_modules():
        buffers = dict(module.named_buffers(recurse=False))
        yield from ((name, buffers[key]) for key in ("running_mean", "running_var") if key in buffers)


def _share_counts(model: nn.Module, transport: Transport) -> None:
    """Set the numbers of batches to the largest of all ranks. Norms without a momentum average over so many batches."""
    counts = {name: buffer for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")}
    of_all = transport.gather_objects({name: int(buffer) for name, buffer in counts.items()})
    for name, buffer in counts.items():
        buffer.fill_(max(of_one[name] for of_one in of_all))
