"""A 64-bit checksum to verify that all ranks have identical parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from firetrain.errors import FiretrainError
from firetrain.transport.transport import Transport

_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 / golden ratio, as a signed number


class RanksDiffer(FiretrainError):
    """Ranks that must have the same bits have different ones."""


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> Tensor:
    """An int64 scalar that changes with any bit of the float32 `tensors`: the sums of their 32-bit words, combined in order."""
    total: Tensor | None = None
    for tensor in tensors:
        words = tensor.detach().view(torch.int32).sum(dtype=torch.int64)
        total = words if total is None else total * _ODD + words
    return torch.zeros((), dtype=torch.int64) if total is None else total


def check_same_bits(tensors: Iterable[Tensor], transport: Transport, step: int) -> None:
    """Compare the checksum of `tensors` between ranks; RanksDiffer names the step and the ranks that differ."""
    sums = [int(value) for value in torch.stack(transport.gather(checksum(tensors))).tolist()]
    if len(set(sums)) == 1:
        return
    usual = max(sums, key=sums.count)
    ranks = [str(transport.number_of(rank)) for rank in range(len(sums))]
    if 2 * sums.count(usual) > len(sums):
        odd = [rank for rank, value in zip(ranks, sums, strict=True) if value != usual]
        same = [rank for rank in ranks if rank not in odd]
        others = f"those of rank {', '.join(same)}" if transport.members else "the other ranks"
        which = f"rank {', '.join(odd)} differ from {others}"
    else:
        which = f"ranks {', '.join(ranks)} differ"
    raise RanksDiffer(
        f"after step {step}, the parameters of {which} (checksums: "
        f"{', '.join(f'{value & (1 << 64) - 1:016x}' for value in sums)}). Possible causes: hardware or library error, different "
        "code on the ranks. Set reduction.checksum_every_steps: 1 to find the first step that differs"
    )
