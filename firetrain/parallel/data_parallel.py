"""Data-parallel training: every rank has the whole model and processes its share of the images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from firetrain.config import Config
from firetrain.config.sections.batch import BatchSection
from firetrain.data.batch import Batch, Normalised, blank_batch
from firetrain.data.order import Samples, micro_batches, share
from firetrain.errors import UserError
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.parallel.batch_norm import share_batch_norm
from firetrain.parallel.compiled import compiled, compiling, nothing_recompiled
from firetrain.parallel.forward_backward import ForwardBackward, accumulate, autocast
from firetrain.parallel.noise import NoiseScale
from firetrain.records.parts import Part
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context, make_context
from firetrain.reduction.gradients import Gradients
from firetrain.reduction.interface import Reduction
from firetrain.reduction.observed import Observed
from firetrain.transport.checksum import check_same_bits
from firetrain.transport.transport import Transport
from firetrain.words import counted


class DataParallel:
    """A worker whose gradients are summed over all ranks by a reduction. `Worker` describes its methods.

    - `reduction`: name of the reduction; default: the config's.
    - `bucket_bytes`: size of buckets; default: from the config, otherwise computed from the link.
    - `make_reduction`: makes the reduction from its name.

    UserError if the reduction or the noise scale does not fit these ranks.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        transport: Transport,
        reduction: str | None = None,
        bucket_bytes: int | None = None,
        make_reduction: Callable[[str, Context], Reduction] = find_reduction,
    ) -> None:
        self.model, self._config, self._transport = model, config, transport
        normalised = Normalised(model, transport.device, channels_last=config.channels_last)
        self._unit = (config.compile_unit or "model") if config.compile else None
        self._forward = compiled(normalised, self._unit) if self._unit else normalised
        self._forward_backward = ForwardBackward(self._forward, config, transport.device)
        self._optimizer = make_optimizer(model, config)
        context = make_context(transport, config.reduction)
        self._name = reduction or str(config.reduction.spec)
        self._reduction = make_reduction(self._name, context)
        self._noise: NoiseScale | None = None
        if config.log.noise_scale:
            if transport.size == 1:
                raise UserError("log.noise_scale compares the gradients of different ranks: it needs 2 or more")
            self._noise = NoiseScale(transport.size)
            self._reduction = Observed(self._reduction)
        self._bucket_bytes = bucket_bytes or context.bucket_bytes(config.reduction.bucket_bytes)
        self._gradients = Gradients(model.parameters(), self._reduction, self._bucket_bytes)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def largest_batch(self) -> int:
        return largest_batch(self._config.batch, self._transport.size)

    def micro_batches(self, samples: Samples) -> list[Samples]:
        mine = share(samples, self._transport.rank, self._transport.size)
        return list(micro_batches(mine, self._config.batch.per_rank_max))

    def reads(self, micro_batch: Samples) -> Samples:
        return micro_batch

    def backward(
        self,
        batches: Iterator[Batch],
        micro_batches: Sequence[Samples],
        epoch: int,
        lap: Callable[[Part], None] = lambda part: None,
    ) -> Tensor:
        """As `Worker.backward`; the reduction of all buckets is under way on return."""
        return accumulate(self._forward_backward, batches, len(micro_batches), self._gradients, epoch, lap)

    def finish(self, images: float | Tensor) -> None:
        self._gradients.finish(images)
        if self._noise and isinstance(self._reduction, Observed):
            self._noise.add(self._reduction.take(), [bucket.buffer for bucket in self._gradients.buckets], images)

    def finite(self) -> Tensor:
        return self._gradients.finite()

    def update(self, rate: float) -> None:
        set_rate(self._optimizer, rate)
        self._optimizer.step()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """As `Worker.evaluating`; the running statistics of batch norm are averaged over the ranks."""
        share_batch_norm(self._forward, self._transport)
        self._forward.eval()
        try:
            yield
        finally:
            self._forward.train()

    def evaluation_batches(self, images: int) -> list[Samples]:
        mine = share(np.arange(images), self._transport.rank, self._transport.size)
        return [some for some in micro_batches(mine, self.largest_batch) if len(some)]

    def predict(self, batch: Batch, micro_batch: Samples) -> tuple[Tensor, Tensor]:
        images, labels = batch.on_device(self._transport.device)
        if not len(batch):
            return torch.zeros((0, 1), device=self._transport.device), labels
        with autocast(self._transport.device, self._config.precision), nothing_recompiled():
            return cast(Tensor, self._forward(images)).float(), labels

    def warm_up(self, image_size: int, training: Collection[int], evaluation: Collection[int]) -> None:
        """As `Worker.warm_up`, by the calls that training makes; afterwards compiling again is an error."""
        kept = {name: value.clone() for name, value in self.model.state_dict().items()}
        # unreadable images that are left out change the size of any batch
        with compiling(only_now=self._config.data.on_bad_image == "fail"):
            for size in sorted(training):
                self._forward_backward(blank_batch(size, image_size), epoch=0)
            self._forward.eval()
            with torch.no_grad():
                for size in sorted(evaluation):
                    self.predict(blank_batch(size, image_size), np.arange(size))
            self._forward.train()
        self.model.load_state_dict(kept)
        self._gradients.zero()

    def noise_scale(self) -> tuple[float, float, float] | None:
        if self._noise is None:
            return None
        return self._noise.estimate(self._transport.sum(self._noise.take().to(self._transport.device)))

    def unreduced(self) -> AbstractContextManager[None]:
        return self._gradients.unreduced()

    def check_bits(self, step: int) -> None:
        """Compare all parameters between ranks by checksum; RanksDiffer names the step and the ranks that differ."""
        check_same_bits(self.model.parameters(), self._transport, step)

    def state(self) -> dict[str, Any]:
        """The content of a checkpoint: parameters, optimiser state, and the bucket size, which affects the rounding of sums."""
        return {
            "bucket_bytes": self._bucket_bytes,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def facts(self) -> dict[str, Any]:
        """The reduction's name, the bytes of its buckets, the unit of compilation, and the reduction's own facts."""
        sizes = [len(bucket) * bucket.buffer.element_size() for bucket in self._gradients.buckets]
        unit = {"compile_unit": self._unit} if self._unit else {}
        return {"name": self._name, "buckets_bytes": sizes, **unit, **self._reduction.facts()}

    def describe(self) -> str:
        """The name of the reduction, the number of its buckets, and the unit of compilation."""
        unit = f", compiled by {self._unit}" if self._unit else ""
        return f"reduction {self._name}, {counted(len(self._gradients.buckets), 'bucket')}{unit}"

    def close(self) -> None:
        self._gradients.close()
        self._reduction.close()


def largest_batch(section: BatchSection, ranks: int) -> int:
    """The largest micro-batch, in images, of any of `ranks` ranks."""
    share = -(-section.global_size // ranks)
    return min(share, section.per_rank_max or share)
