"""Accuracy on the test images, of which each is counted exactly once for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from firetrain.errors import FiretrainError
from firetrain.parallel.forward_backward import losses
from firetrain.parallel.worker import Worker
from firetrain.training.input import Input
from firetrain.transport.transport import Transport


@dataclass(frozen=True)
class Score:
    """The result of an evaluation.

    - `top1`, `top5`: shares of images whose class was the first guess, or among the first five.
    - `loss`: mean loss per image.
    - `images`: number of images counted.
    """

    top1: float
    top5: float
    loss: float
    images: int


@torch.no_grad()
def evaluate(worker: Worker, images: Input, transport: Transport, between: Callable[[], None] = lambda: None) -> Score:
    """The score over all test images. Every rank evaluates its share; all ranks get the same result.

    `between` is called after each batch.
    """
    totals = torch.zeros(4, dtype=torch.float64, device=transport.device)
    with worker.evaluating():
        micro_batches = worker.evaluation_batches(len(images.dataset.test.labels))
        batches = images.test_batches(worker.reads(some) for some in micro_batches)
        for batch, some in zip(batches, micro_batches, strict=True):
            totals += _count(*worker.predict(batch, some))
            between()
    top1, top5, loss, images_seen = transport.sum(totals).tolist()
    if not images_seen:
        raise FiretrainError("evaluation: none of the test images could be read")
    return Score(top1 / images_seen, top5 / images_seen, loss / images_seen, int(images_seen))


def _count(logits: Tensor, labels: Tensor) -> Tensor:
    """[correct first guesses, correct among the first five, sum of losses, images], float64."""
    guesses = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    loss, _ = losses(logits, labels, 0.0)
    counts = [guesses[:, 0].sum(), guesses.sum(), loss, torch.full((), len(labels), device=logits.device)]
    return torch.stack([count.double() for count in counts])
