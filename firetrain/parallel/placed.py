"""Training of a model under a placement; data-parallel training has a worker of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from firetrain.config import Config
from firetrain.data.batch import Batch, Normalised
from firetrain.data.draws import words
from firetrain.data.order import Samples, share
from firetrain.models.catalogue import auxiliary_weight
from firetrain.models.dropout import dropouts_of
from firetrain.models.graph import Graph
from firetrain.optim.catalogue import Shards, make_optimizer, set_rate
from firetrain.parallel.exchange import Exchanger
from firetrain.parallel.forward_backward import DROPOUT, autocast, losses
from firetrain.parallel.placed_model import PlacedModel
from firetrain.parallel.shard_norms import ShardNorms
from firetrain.parallel.shard_values import ShardValues
from firetrain.parallel.sharers import Sharers
from firetrain.parallel.whole_state import WholeState
from firetrain.records.parts import BUBBLE, COMPUTE, DATA, EXCHANGE, Part
from firetrain.reduction.context import make_context
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.region import NOTHING, Region
from firetrain.transport.device import copy_to_device
from firetrain.transport.transport import Transport
from firetrain.words import counted


class Placed:
    """A worker whose rank computes its slices of some layers. `Worker` describes its methods.

    Ranks that hold the same shard of a layer's weights, its sharers, sum their gradients by the config's reduction. A global
    batch is cut into micro-batches first, and each of these is shared by the ranks.

    - `model`: the whole model on this rank's device, with the same weights on all ranks; its parameters are cut in place.
    - `whole`: makes the whole model and its optimiser, for checkpoints.
    - `reduction`, `bucket_bytes`: default as in the config.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        graph: Graph,
        placement: Placement,
        transport: Transport,
        whole: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
        reduction: str | None = None,
        bucket_bytes: int | None = None,
    ) -> None:
        self._config, self._transport, self._placement = config, transport, placement
        has_stages = placement.stage(transport.rank)[1] > 1
        self._parameters = sum(parameter.numel() for parameter in model.parameters())
        self._exchanger = Exchanger(transport, waiting=BUBBLE if has_stages else EXCHANGE)
        self._placed = PlacedModel(model, graph, placement, self._exchanger)
        self._normalised = Normalised(nn.Identity(), transport.device, channels_last=config.channels_last)
        self._has_dropout = any(dropouts_of(model))
        shards = shards_of(self._placed)
        norms = ShardNorms(transport, *shards, calls=2 if config.optimizer.name in ("lars", "lamb") else 0)
        self._optimizer = make_optimizer(model, config, Shards(norms, norms.end, ShardValues(transport, *shards)))
        self._state = WholeState(self._placed, self._optimizer, transport, whole)
        context = make_context(transport, config.reduction)
        self._bucket_bytes = bucket_bytes or context.bucket_bytes(config.reduction.bucket_bytes)
        self._reduction = reduction or str(config.reduction.spec)
        self._sharers = Sharers(self._placed, context, self._reduction, self._bucket_bytes)

    @property
    def model(self) -> nn.Module:
        return self._placed.model

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def largest_batch(self) -> int:
        # smaller batches are cut into fewer micro-batches, which may be larger, and may give this rank a larger share
        largest = min(-(-self._config.batch.global_size // self._placement.micro_batches), self._most)
        split = self._placement.splits[self._first.name]
        return -(-largest // split.images) if self._transport.rank in split.ranks else 1

    @property
    def _most(self) -> int:
        """The limit of a micro-batch of all ranks, in images."""
        if (of_a_rank := self._config.batch.per_rank_max) is None:
            return self._config.batch.global_size
        return of_a_rank * self._placement.splits[self._first.name].images

    @property
    def _first(self) -> Layer:
        """The layer that reads the images."""
        return next(layer for layer in self._placement.layers if not layer.sources)

    def micro_batches(self, samples: Samples) -> list[Samples]:
        """The micro-batches of a global batch, the same on all ranks."""
        count = max(self._placement.micro_batches, -(-len(samples) // self._most))
        return [share(samples, number, count) for number in range(count)]

    def reads(self, micro_batch: Samples) -> Samples:
        region = self._placed.first_region(len(micro_batch))
        return micro_batch[region.first_image : region.end_image]

    def backward(
        self,
        batches: Iterator[Batch],
        micro_batches: Sequence[Samples],
        epoch: int,
        lap: Callable[[Part], None] = lambda part: None,
    ) -> Tensor:
        self._sharers.zero()
        totals = torch.zeros(2, dtype=torch.float64, device=self._transport.device)
        last = len(micro_batches) - 1
        waiting: dict[int, Tensor] = {}
        self._exchanger.lap = lap
        for direction, number in self._placed.passes([len(some) for some in micro_batches]):
            if direction == "forward":
                batch = next(batches)
                lap(DATA)
                waiting[number], found = self._forward(batch, micro_batches[number], epoch)
                totals += found
            else:
                self._sharers.sum_after_next_pass(number == last)
                waiting.pop(number).backward()
            lap(COMPUTE)
        self._sharers.flush()
        self._exchanger.lap = lambda part: None
        self._exchanger.settle()
        return totals

    def _forward(self, batch: Batch, piece: Samples, epoch: int) -> tuple[Tensor, Tensor]:
        """(the loss to differentiate, [sum of losses, images]) of this rank for a micro-batch of all ranks."""
        device, config = self._transport.device, self._config
        images, labels = batch.on_device(device)
        keys = None
        if self._has_dropout:
            drawn = words(config.seed, epoch, piece, DROPOUT).astype("uint32").view("int32")
            keys = copy_to_device(torch.from_numpy(drawn), device)
        with autocast(device, config.precision):
            logits = self._placed.outputs(self._normalised(images), len(piece), keys)
        mine = self._labels(labels, len(piece))
        if len(mine):
            total, main = losses(tuple(logits), mine, auxiliary_weight(config.model), config.label_smoothing)
        else:  # this rank's backward pass takes part in the exchanges nevertheless
            total = main = sum(one.sum() for one in logits)  # type: ignore[assignment]
        count = torch.full((), len(mine), dtype=torch.float64, device=device)
        return total, torch.stack([main.detach().double(), count])

    def _labels(self, labels: Tensor, count: int) -> Tensor:
        """The labels of the images of this rank's loss, which the rank has read itself, or gets from one that has."""
        reads = [Region(one.first_image, one.end_image, 0, 1) for one in self._placed.first_regions(count)]
        needs = self._placement.needs(self._placed.first_loss, count)
        need = [Region(one.first_image, one.end_image, 0, min(1, one.channels)) for one in needs]
        if all(read & wanted == wanted or not wanted.size for read, wanted in zip(reads, need, strict=True)):
            own, mine = reads[self._transport.rank], need[self._transport.rank]
            return labels[mine.first_image - own.first_image :][: mine.images]
        have = [read if read not in reads[:rank] else NOTHING for rank, read in enumerate(reads)]
        held = labels if have[self._transport.rank].size else labels[:0]
        return self._exchanger.move(held[:, None], have, need, 0, "the labels of a micro-batch").flatten()

    def finish(self, images: float | Tensor) -> None:
        self._sharers.finish(images)

    def finite(self) -> Tensor:
        return self._sharers.finite()

    def update(self, rate: float) -> None:
        set_rate(self._optimizer, rate)
        self._optimizer.step()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """As `Worker.evaluating`; the running statistics of batch norm are averaged over the ranks that compute it."""
        self._placed.share_statistics(self._transport)
        self._placed.model.eval()
        try:
            yield
        finally:
            self._placed.model.train()

    def evaluation_batches(self, images: int) -> list[Samples]:
        size = self._config.batch.global_size
        return [
            some
            for first in range(0, images, size)
            for some in self.micro_batches(np.arange(first, min(images, first + size)))
        ]

    def predict(self, batch: Batch, micro_batch: Samples) -> tuple[Tensor, Tensor]:
        (images, labels), count = batch.on_device(self._transport.device), len(micro_batch)
        with autocast(self._transport.device, self._config.precision):
            (logits,) = self._placed.outputs(self._normalised(images), count, None)
        mine = self._labels(labels, count)
        self._exchanger.settle()
        return logits.float() if len(mine) else logits.new_zeros((0, 1)), mine

    def warm_up(self, image_size: int, training: Collection[int], evaluation: Collection[int]) -> None:
        """No-op: placements are not compiled."""

    def noise_scale(self) -> tuple[float, float, float] | None:
        return None

    def unreduced(self) -> AbstractContextManager[None]:
        """As `Worker.unreduced`; activations are exchanged nevertheless."""
        return self._sharers.unreduced()

    def check_bits(self, step: int) -> None:
        self._sharers.check_bits(step)

    def state(self) -> dict[str, Any]:
        self._placed.share_statistics(self._transport)
        return {"bucket_bytes": self._bucket_bytes, **self._state.gather()}

    def load(self, state: dict[str, Any]) -> None:
        self._state.load(state)

    def facts(self) -> dict[str, Any]:
        """The reduction's name, the strategy, and the bytes of this rank's buckets."""
        sizes = self._sharers.buckets_bytes
        return {"name": self._reduction, "strategy": self._placement.strategy, "buckets_bytes": sizes}

    def describe(self) -> str:
        """The names of the strategy and of the reduction, and the number of groups of sharers."""
        groups = counted(self._sharers.count, "group")
        return f"strategy {self._placement.strategy}, reduction {self._reduction} among {groups} of sharers"

    def close(self) -> None:
        self._sharers.close()
        self._exchanger.close()


def shards_of(placed: PlacedModel) -> tuple[dict[int, int], dict[int, int], int]:
    """(index of its whole tensor, number of sharers) of each shard of this rank, by the parameter's id; number of tensors."""
    own, indices = dict(placed.model.named_parameters()), {name: index for index, name in enumerate(placed.shapes)}
    sharers = {id(parameter): len(placed.sharers_of(name)) for name, parameter in own.items()}
    return {id(own[name]): index for name, index in indices.items() if name in own}, sharers, len(indices)
