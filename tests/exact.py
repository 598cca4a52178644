"""Gradients and losses of placed models beside those of one process, in float64."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from users_models import CLASSES, OWN

from firetrain.cluster.shares import share_bounds
from firetrain.models.catalogue import model_by_name
from firetrain.models.dropout import set_dropout_keys
from firetrain.models.graph import trace
from firetrain.optim.kept_weights import keep_weights
from firetrain.optim.lars import Lars
from firetrain.parallel.exchange import Exchanger
from firetrain.parallel.placed import shards_of
from firetrain.parallel.placed_model import PlacedModel, of_bias, of_weight
from firetrain.parallel.shard_norms import ShardNorms
from firetrain.parallel.shard_values import ShardValues
from firetrain.parallel.sharers import Sharers
from firetrain.reduction.context import Context
from firetrain.strategy import find_strategy
from firetrain.transport.transport import Transport

FEW_CLASSES = 2
SHARED = "shared"
BUCKET_BYTES = 1 << 20
STEPS = 20
SIZES = {
    "lenet": 20,
    "alexnet": 32,
    "squeezenet1_1": 32,
    "squeezenet_mini": 16,
    "googlenet": 32,
    "googlenet_paper": 32,
    "googlenet_mini": 16,
    "nin": 32,
    "sequential": 16,
    "in-place": 16,
    "unused": 16,
    "views": 16,
    "joined": 16,
    "classic": 16,
    "lines": 16,
}


def make(name: str) -> nn.Module:
    """A model in float64 with the same weights in every process.

    `name+heads` has auxiliary heads, `name+few` two classes; the weights of `name+shared` share at most eleven values.
    """
    torch.manual_seed(1)
    if name in OWN:
        return OWN[name]().double().train()
    base, _, plus = name.partition("+")
    options: dict[str, Any] = {"auxiliary_heads": True} if plus == "heads" else {}
    model = model_by_name(base, classes=classes_of(name), stem="small", **options).double().train()
    if plus == SHARED:
        for parameter in filter(lambda one: one.dim() > 1, model.parameters()):
            unit = parameter.detach().abs().max() / 5
            parameter.data.div_(unit).round_().mul_(unit)
    return model


def classes_of(name: str) -> int:
    """The number of a model's classes."""
    return FEW_CLASSES if name.endswith("+few") else CLASSES


def size_of(name: str) -> int:
    """The pixels of a model's images."""
    return SIZES[name.partition("+")[0]]


def keys_of(count: int) -> Tensor:
    """Dropout keys of a batch."""
    return (torch.arange(count, dtype=torch.int64) * 7919 + 17).to(torch.int32)


def batch_of(name: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images and labels."""
    draw, size = torch.Generator().manual_seed(seed), size_of(name)
    images = torch.randn(count, 3, size, size, dtype=torch.float64, generator=draw)
    return images, torch.randint(0, classes_of(name), (count,), generator=draw)


def share_slices(count: int, shares: int) -> list[slice]:
    """Where each of `shares` shares of `count` images lies."""
    return [slice(*share_bounds(count, number, shares)) for number in range(shares)]


def loss(outputs: list[Tensor], labels: Tensor) -> Tensor:
    """The sum of the losses of the images; auxiliary heads count 0.3."""
    weights = (1.0, 0.3, 0.3)
    return sum(  # type: ignore[return-value]
        weight * nn.functional.cross_entropy(one, labels, reduction="sum")
        for weight, one in zip(weights, outputs, strict=False)
    )


class Placed:
    """A placed model, and what its gradients and losses are compared with."""

    def __init__(self, transport: Transport, name: str, strategy: str) -> None:
        self.transport, self.name = transport, name
        self.mine = make(name).to(transport.device)
        graph = trace(self.mine, size_of(name))
        self.placement = find_strategy(strategy)(graph.layers, transport.world)
        self.exchanger = Exchanger(transport, torch.float64)
        self.placed = PlacedModel(self.mine, graph, self.placement, self.exchanger)

    def backward(self, images: Tensor, labels: Tensor, sharers: Sharers | None = None) -> Tensor:
        """The gradients of a batch, whose sums over the `sharers` are started; the sum of this rank's losses."""
        if sharers:
            sharers.zero()
        else:
            self.mine.zero_grad()
        parts = share_slices(len(images), self.placement.micro_batches)
        images, labels = images.to(self.transport.device), labels.to(self.transport.device)
        waiting, total = dict[int, Tensor](), torch.zeros((), dtype=torch.float64, device=images.device)
        for direction, number in self.placed.passes([part.stop - part.start for part in parts]):
            if direction == "backward":
                if sharers:
                    sharers.sum_after_next_pass(number == len(parts) - 1)
                waiting.pop(number).backward()
                continue
            part = parts[number]
            waiting[number] = self._forward(images[part], labels[part], keys_of(len(images)).to(images.device)[part])
            total += waiting[number].detach()
        self.exchanger.settle()
        return total

    def _forward(self, images: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
        """The sum of this rank's losses for a micro-batch of all ranks."""
        first = self.placed.first_region(len(images))
        needs = self.placement.needs(self.placed.first_loss, len(images))[self.transport.rank]
        outputs = self.placed.outputs(images[first.first_image : first.end_image], len(images), keys)
        return loss(outputs, labels[needs.first_image : needs.end_image])

    def gathered(self, name: str, shape: torch.Size) -> Tensor:
        """The gradient of a parameter of the whole model, summed over all parts and their sharers."""
        summed = torch.zeros(shape, dtype=torch.float64, device=self.transport.device)
        own = dict(self.mine.named_parameters())
        if name in own and own[name].grad is not None:
            part = self.placed.blocks.get(name)
            cut = summed if part is None else (of_bias if name.endswith("bias") else of_weight)(summed, part)
            cut += own[name].grad
        return self.transport.sum(summed).cpu()

    def gradients(self, counts: list[int], truth: list[dict[str, Tensor]]) -> float:
        """The largest relative difference to the gradients `truth` of batches of `counts` images; 0 without a truth."""
        found = []
        for count, whole in zip(counts, truth or [{}] * len(counts), strict=True):
            self.backward(*batch_of(self.name, count, seed=count))
            for name, shape in self.placed.shapes.items():
                own = self.gathered(name, shape)
                if whole:
                    found.append(float((own - whole[name]).norm() / whole[name].norm().clamp(min=1e-9)))
        return largest(found)

    def losses(self, steps: int = STEPS, reduction: str = "ring") -> list[float]:
        """The losses of `steps` steps with LARS, whose gradients are summed by a reduction as in training."""
        found, optimizer = [], _lars(self.mine)
        shards = shards_of(self.placed)
        optimizer.norms = norms = ShardNorms(self.transport, *shards, calls=2)
        optimizer.register_step_post_hook(lambda *_: norms.end())
        if self.name.endswith(SHARED):
            keep_weights(optimizer, "values", ShardValues(self.transport, *shards))
        sharers = Sharers(self.placed, Context(self.transport), reduction, BUCKET_BYTES)
        for step in range(steps):
            images, labels = step_batch(self.name, step)
            total = self.backward(images, labels, sharers)
            sharers.flush()
            sharers.finish(len(images))
            found.append(float(self.transport.sum(total.clone())))
            optimizer.step()
        sharers.close()
        return found


def whole_gradients(name: str, counts: list[int], shares: int = 1) -> list[dict[str, Tensor]]:
    """The gradients in one process, by batch and name. The model normalises each of `shares` shares of the images."""
    found, whole = [], make(name)
    for count in counts:
        _backward_whole(whole, *batch_of(name, count, seed=count), shares)
        named = whole.named_parameters()
        found.append({one: torch.zeros_like(p) if p.grad is None else p.grad.clone() for one, p in named})
    return found


def whole_losses(name: str, steps: int = STEPS) -> list[float]:
    """The losses of `steps` steps with LARS in one process."""
    found, whole = [], make(name)
    optimizer = _lars(whole)
    if name.endswith(SHARED):
        keep_weights(optimizer, "values")
    for step in range(steps):
        images, labels = step_batch(name, step)
        found.append(_backward_whole(whole, images, labels))
        for parameter in whole.parameters():
            parameter.grad /= len(images)  # type: ignore[operator]
        optimizer.step()
    return found


def step_batch(name: str, step: int) -> tuple[Tensor, Tensor]:
    """The images and labels of a step; every third batch is smaller."""
    return batch_of(name, 7 if step % 3 else 3, seed=step)


def _backward_whole(whole: nn.Module, images: Tensor, labels: Tensor, shares: int = 1) -> float:
    """The gradients of a batch, added up over its shares; the sum of its losses."""
    whole.zero_grad()
    keys, total = keys_of(len(images)), 0.0
    for own in share_slices(len(images), shares):
        set_dropout_keys(whole, keys[own])
        outputs = whole(images[own])
        found = loss(list(outputs) if isinstance(outputs, tuple) else [outputs], labels[own])
        found.backward()
        total += float(found.detach())
    return total


def gradients(transport: Transport, model: str, strategy: str, counts: list[int], shares: int = 1) -> float:
    """The largest relative difference to the gradient of the whole model, over batches of `counts` images; 0 on other ranks."""
    truth = whole_gradients(model, counts, shares) if transport.rank == 0 else []
    return Placed(transport, model, strategy).gradients(counts, truth)


def curves(transport: Transport, model: str, strategy: str, reduction: str = "ring") -> float:
    """The largest relative difference of the losses of 20 steps with LARS to those of one process."""
    losses = Placed(transport, model, strategy).losses(reduction=reduction)
    return apart(losses, whole_losses(model) if transport.rank == 0 else [])


def apart(losses: list[float], truth: list[float]) -> float:
    """The largest relative difference of losses; 0 without a truth."""
    return largest(abs(one / other - 1) for one, other in zip(losses, truth, strict=bool(truth)))


def largest(differences: Iterable[float]) -> float:
    """The largest difference, which is nan if one of them is: Python's `max` would pass over it; 0 if there is none."""
    return float(torch.tensor([0.0, *differences], dtype=torch.float64).max())


def both(transport: Transport, model: str, strategy: str, counts: list[int], truth: Path) -> tuple[float, list[float]]:
    """The difference of the gradients to those in the file `truth`, which is 0 on other ranks than the first, and the losses."""
    whole = torch.load(truth, mmap=True, weights_only=True) if transport.rank == 0 else []
    placed = Placed(transport, model, strategy)
    return placed.gradients(counts, whole), placed.losses()


def _lars(model: nn.Module) -> Any:
    weights = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    groups: list[dict[str, object]] = [{"params": weights}, {"params": biases, "excluded": True}]
    found = Lars(
        [group for group in groups if group["params"]], momentum=0.9, weight_decay=0.001, trust_coefficient=0.01
    )
    for group in found.param_groups:
        group["lr"] = 0.1
    return found
