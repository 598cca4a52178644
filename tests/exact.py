"""Gradients and losses of placed models beside those of one process, in float64."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from firetrain.cluster.shares import share_bounds
from firetrain.models.catalogue import model_by_name
from firetrain.models.dropout import set_dropout_keys
from firetrain.models.graph import trace
from firetrain.optim.lars import Lars
from firetrain.parallel.exchange import Exchanger
from firetrain.parallel.placed_model import PlacedModel, of_bias, of_weight
from firetrain.parallel.shard_norms import ShardNorms
from firetrain.strategy import find_strategy
from firetrain.transport.transport import Transport

CLASSES = 10
SIZES = {
    "lenet": 20,
    "alexnet": 32,
    "squeezenet1_1": 32,
    "googlenet": 32,
    "googlenet_paper": 32,
    "googlenet_mini": 16,
    "nin": 32,
    "sequential": 16,
}


def make(name: str) -> nn.Module:
    """A model in float64 with the same weights in every process; `name+heads` has auxiliary heads."""
    torch.manual_seed(1)
    if name == "sequential":
        return sequential().double().train()
    base, plus, _ = name.partition("+")
    options: dict[str, Any] = {"auxiliary_heads": True} if plus else {}
    return model_by_name(base, classes=CLASSES, stem="small", **options).double().train()


def sequential() -> nn.Module:
    """A model as a user of torch writes it, with layers that firetrain's own models do not have."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 5, 2), nn.GELU(), nn.Flatten(),
        nn.Linear(20, 13), nn.Sigmoid(), nn.Linear(13, CLASSES),
    )  # fmt: skip


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
    return images, torch.randint(0, CLASSES, (count,), generator=draw)


def loss(outputs: list[Tensor], labels: Tensor) -> Tensor:
    """The sum of the losses of the images; auxiliary heads count 0.3."""
    weights = (1.0, 0.3, 0.3)
    return sum(  # type: ignore[return-value]
        weight * nn.functional.cross_entropy(one, labels, reduction="sum")
        for weight, one in zip(weights, outputs, strict=False)
    )


class Beside:
    """A placed model, and on rank 0 the whole model beside it."""

    def __init__(self, transport: Transport, name: str, strategy: str) -> None:
        self.transport, self.name = transport, name
        self.whole = make(name) if transport.rank == 0 else None
        self.mine = make(name)
        graph = trace(self.mine, size_of(name))
        self.placement = find_strategy(strategy)(graph.layers, transport.world)
        self.placed = PlacedModel(self.mine, graph, self.placement, Exchanger(transport, torch.float64))

    def backward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The gradients of a batch, which are not summed over sharers; the sum of this rank's losses."""
        count = len(images)
        self.mine.zero_grad()
        first = self.placed.first_region(count)
        needs = self.placement.needs(self.placed.first_loss, count)[self.transport.rank]
        outputs = self.placed.outputs(images[first.first_image : first.end_image], count, keys_of(count))
        found = loss(outputs, labels[needs.first_image : needs.end_image])
        found.backward()
        return found.detach()

    def backward_whole(self, images: Tensor, labels: Tensor, shares: int = 1) -> Tensor:
        """The same of the whole model, which normalises each of `shares` shares of the images; only on rank 0."""
        assert self.whole is not None
        self.whole.zero_grad()
        keys, total = keys_of(len(images)), torch.zeros((), dtype=torch.float64)
        for number in range(shares):
            own = slice(*share_bounds(len(images), number, shares))
            set_dropout_keys(self.whole, keys[own])
            outputs = self.whole(images[own])
            found = loss(list(outputs) if isinstance(outputs, tuple) else [outputs], labels[own])
            found.backward()
            total += found.detach()
        return total

    def gathered(self, name: str, shape: torch.Size) -> Tensor:
        """The gradient of a parameter of the whole model, summed over all parts and their sharers."""
        summed, own = torch.zeros(shape, dtype=torch.float64), dict(self.mine.named_parameters())
        if name in own and own[name].grad is not None:
            part = self.placed.blocks.get(name)
            cut = summed if part is None else (of_bias if name.endswith("bias") else of_weight)(summed, part)
            cut += own[name].grad
        return self.transport.sum(summed)


def gradients(transport: Transport, model: str, strategy: str, counts: list[int], shares: int = 1) -> float:
    """The largest relative difference to the gradient of the whole model, over batches of `counts` images; 0 on other ranks."""
    both, worst = Beside(transport, model, strategy), 0.0
    for count in counts:
        images, labels = batch_of(model, count, seed=count)
        both.backward(images, labels)
        if both.whole is not None:
            both.backward_whole(images, labels, shares)
        for name, shape in both.placed.shapes.items():
            found = both.gathered(name, shape)
            if both.whole is not None:
                truth = both.whole.get_parameter(name).grad
                assert truth is not None
                worst = max(worst, float((found - truth).norm() / truth.norm().clamp(min=1e-9)))
    return worst


def curves(transport: Transport, model: str, strategy: str, steps: int = 20, size: int = 7) -> float:
    """The largest relative difference of the losses of `steps` steps with LARS to those of one process; 0 on other ranks.

    Every third batch is smaller.
    """
    both, worst = Beside(transport, model, strategy), 0.0
    ours, theirs = _lars(both.mine), _lars(both.whole)
    indices = {name: index for index, name in enumerate(both.placed.shapes)}
    own = dict(both.mine.named_parameters())
    layer_of = {name: next(one for one in both.placement.layers if name.startswith(f"{one.name}.")) for name in own}
    sharers = {name: both.placement.splits[layer.name].sharers(transport.rank) for name, layer in layer_of.items()}
    groups = {
        group: transport.subgroup(group) if len(group) > 1 else None
        for group in dict.fromkeys(group for layer in both.placement.layers for group in both.placement.sharers(layer))
    }
    norms = ShardNorms(
        transport, {id(own[name]): index for name, index in indices.items() if name in own},
        {id(own[name]): len(group) for name, group in sharers.items()}, len(indices), calls=2,
    )  # fmt: skip
    ours.norms = norms
    for step in range(steps):
        images, labels = batch_of(model, size if step % 3 else 3, seed=step)
        total = transport.sum(both.backward(images, labels).clone())
        for name, parameter in own.items():
            among = groups[sharers[name]]
            assert parameter.grad is not None
            if among is not None:
                dist.all_reduce(parameter.grad, group=among.group)
            parameter.grad /= len(images)
        ours.step()
        norms.end()
        if theirs is not None and both.whole is not None:
            truth = both.backward_whole(images, labels)
            for parameter in both.whole.parameters():
                parameter.grad /= len(images)  # type: ignore[operator]
            theirs.step()
            worst = max(worst, abs(float(total / truth) - 1))
    return worst


def _lars(model: nn.Module | None) -> Any:
    if model is None:
        return None
    weights = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    groups: list[dict[str, object]] = [{"params": weights}, {"params": biases, "excluded": True}]
    found = Lars(
        [group for group in groups if group["params"]], momentum=0.9, weight_decay=0.001, trust_coefficient=0.01
    )
    for group in found.param_groups:
        group["lr"] = 0.1
    return found
