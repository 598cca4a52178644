"""Accuracy on the test images, each counted exactly once, whatever the number of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from firetrain.data.loader import Loader
from firetrain.data.order import micro_batches, part
from firetrain.errors import FiretrainError
from firetrain.reduction.transport import Transport
from firetrain.training.step import autocast, losses


@dataclass(frozen=True)
class Score:
    """Shares of images whose class was the first, or among the first five, guesses; mean loss; images counted."""

    top1: float
    top5: float
    loss: float
    images: int


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: Loader, count: int, batch_size: int, transport: Transport, precision: str
) -> Score:
    """The score over all `count` test images; every rank works on its part and all get the same result."""
    share_batch_norm(model, transport)
    model.eval()
    totals = torch.zeros(4, dtype=torch.float64, device=transport.device)
    mine = part(np.arange(count), transport.rank, transport.size)
    for batch in loader.batches(micro_batches(mine, batch_size), epoch=0):
        if len(batch):
            images, labels = batch.on_device(transport.device)
            with autocast(transport.device, precision):
                outputs = model(images)
            totals += _count(outputs, labels)
    model.train()
    top1, top5, loss, images_seen = transport.sum(totals).tolist()
    if not images_seen:
        raise FiretrainError("evaluation: not one test image could be read")
    return Score(top1 / images_seen, top5 / images_seen, loss / images_seen, int(images_seen))


@torch.no_grad()
def share_batch_norm(model: nn.Module, transport: Transport) -> None:
    """Batch norm's running statistics, which each rank gathers from its own images, become their mean over the ranks."""
    if transport.size == 1:
        return
    statistics = [
        b
        for m in model.modules()
        if isinstance(m, nn.BatchNorm2d)
        for b in (m.running_mean, m.running_var)
        if b is not None
    ]
    if statistics:
        flat = transport.sum(torch.cat([b.flatten() for b in statistics])) / transport.size
        for buffer, mean in zip(statistics, flat.split([b.numel() for b in statistics]), strict=True):
            buffer.copy_(mean)


def _count(outputs: Tensor, labels: Tensor) -> Tensor:
    logits = outputs.float()
    guesses = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss, _ = losses(logits, labels, 0.0)
    counts = [guesses[:, 0].sum(), guesses.sum(), loss, torch.tensor(len(labels), device=logits.device)]
    return torch.stack([count.double() for count in counts])
