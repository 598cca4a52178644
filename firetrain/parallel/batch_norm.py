"""The running statistics of batch norm on several ranks."""

from __future__ import annotations

import torch
from torch import nn

from firetrain.transport.transport import Transport


@torch.no_grad()
def share_batch_norm(model: nn.Module, transport: Transport) -> None:
    """Average the running statistics over the ranks; each rank has gathered them from its own images."""
    if transport.size == 1:
        return
    statistics = [
        buffer
        for module in model.modules()
        if isinstance(module, nn.BatchNorm2d)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if statistics:
        flat = transport.sum(torch.cat([buffer.flatten() for buffer in statistics])) / transport.size
        for buffer, mean in zip(statistics, flat.split([buffer.numel() for buffer in statistics]), strict=True):
            buffer.copy_(mean)
