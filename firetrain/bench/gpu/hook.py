"""Checks that DistributedDataParallel waits for sums that the hook of firetrain.ddp has only issued."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firetrain.ddp import Reducer, _Started, hook
from firetrain.errors import FiretrainError
from firetrain.transport.device import backend_of, is_gpu

_CYCLES = 500_000_000  # about a third of a second of a GPU


class Late(Reducer):
    """Doubles gradients, after a delay on the device that the host does not wait for."""

    def _complete(self, one: _Started) -> None:
        super()._complete(one)
        flat = one.known.flat
        if is_gpu(flat.device):
            torch.cuda._sleep(_CYCLES)
        flat.mul_(2)


def verify(device: torch.device) -> Iterator[tuple[str, float]]:
    """The gradients of one rank whose reduction doubles them late, relative to those of one without a reduction: 2."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend_of(device), store=store, rank=0, world_size=1)
    try:
        layer = nn.Linear(64, 64).to(device)
        images = torch.ones(8, 64, device=device)
        layer(images).sum().backward()
        plain = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
        layer.zero_grad()
        model, reducer = DistributedDataParallel(layer), Late("native")
        model.register_comm_hook(reducer, hook)
        model(images).sum().backward()
        found = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
        ratio = float(sum(one.sum() for one in found) / sum(one.sum() for one in plain))
        reducer.close()
    finally:
        dist.destroy_process_group()
    yield "late sums", ratio
    if ratio != 2.0:
        raise FiretrainError(f"DistributedDataParallel did not wait for late sums: {ratio:g} times the gradient, not 2")
