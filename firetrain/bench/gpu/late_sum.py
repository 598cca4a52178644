"""Checks that DistributedDataParallel waits for sums that the hook has only issued."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from firetrain.ddp import Reducer, _Started, hook
from firetrain.transport.device import backend_of, is_gpu

WAITED_FOR = "waited for"
_CYCLES = 500_000_000  # about a third of a second of a GPU


class _Late(Reducer):
    """Doubles gradients, after a delay on the device that the host does not wait for."""

    def _complete(self, one: _Started) -> None:
        super()._complete(one)
        flat = one.known.flat
        if is_gpu(flat.device):
            torch.cuda._sleep(_CYCLES)
        flat.mul_(2)


def late_sum(device: torch.device) -> str:
    """Whether the gradients of one rank are those that a late sum leaves: WAITED_FOR, or the ratio that was found."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend_of(device), store=store, rank=0, world_size=1)
    try:
        layer = nn.Linear(64, 64).to(device)
        images = torch.ones(8, 64, device=device)
        layer(images).sum().backward()
        plain = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
        layer.zero_grad()
        model, reducer = DistributedDataParallel(layer), _Late("native")
        model.register_comm_hook(reducer, hook)
        model(images).sum().backward()
        found = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
        ratio = float(sum(one.sum() for one in found) / sum(one.sum() for one in plain))
        reducer.close()
    finally:
        dist.destroy_process_group()
    return WAITED_FOR if ratio == 2.0 else f"{ratio:g} times the gradient, not twice"
