"""The time of a training step, compared with torch's DistributedDataParallel or Horovod's DistributedOptimizer.

Both use the same model, batch, ranks and links.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from firetrain.bench.busy import Busy
from firetrain.bench.spread import ratios, spread
from firetrain.config import Config
from firetrain.config.sections.optimizer import OptimizerSection
from firetrain.data.batch import Batch, Normalised
from firetrain.data.catalogue import open_dataset
from firetrain.data.draws import uniform
from firetrain.data.order import Samples, share
from firetrain.errors import FiretrainError, UserError
from firetrain.models.catalogue import auxiliary_weight
from firetrain.models.dropout import Dropout
from firetrain.parallel.catalogue import replicate, worker_of
from firetrain.parallel.forward_backward import autocast, losses
from firetrain.parallel.worker import Worker
from firetrain.records.parts import COMPUTE, EXPOSED, Part
from firetrain.reduction.horovod_start import start_horovod
from firetrain.transport.timing import slowest_s
from firetrain.transport.transport import Transport

# allowed difference of gradients, relative to the largest, because float32 sums depend on their order
TOLERANCE = 1e-4
# so small that repeated steps on one batch hardly change the weights
RATE = 1e-4

Loss = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class Contender:
    """An implementation to time.

    `step` runs a training step and leaves the mean gradient of the global batch in the model; `alone` is the same step without
    communication.
    """

    name: str
    model: nn.Module
    step: Callable[[], None]
    alone: Callable[[], None]


def bench_step(
    config: Config, transport: Transport, steps: int, repeats: int, against: str, names: Sequence[str]
) -> dict[str, Any]:
    """Time `steps` steps of each contender `repeats` times, alternating, in changing order.

    Contenders: training with each of the reductions `names`, then the reference implementation. All must compute the same
    gradients: FiretrainError if they differ.

    The batch is fixed and in memory: forward, backward, reduction and update are timed. Seconds per step are those of the
    slowest rank. Exposed communication = time of the steps minus time of the same steps without communication, run directly
    afterwards. `busy`: see `Busy`. Returns JSON-ready facts on every rank.
    """
    _refuse_untimeable(config, transport, against)
    contenders = _contenders(config, transport, against, names)
    difference = _difference(contenders)
    if difference > TOLERANCE:
        raise FiretrainError(
            f"gradients differ by {difference:.1e} of the largest one, more than {TOLERANCE:g}: not timed"
        )
    timed = [_Timed(contender) for contender in contenders]
    for repeat in range(-1, repeats):  # the first repeat warms up
        for one in timed if repeat % 2 else timed[::-1]:
            one.time(steps, transport, keep=repeat >= 0)
    *own, theirs = timed
    result = {
        "model": config.model.name, "global_batch": config.batch.global_size, "image_size": config.data.image_size,
        "world": str(transport.world), "ranks": transport.size, "nodes": len(transport.world.nodes),
        "transport": transport.name, "steps": steps, "gradient_difference": difference,
        "step_s": {one.name: spread(one.step_s) for one in timed},
        EXPOSED.key: {one.name: spread(one.exposed_s()) for one in timed},
        "ratio": {one.name: ratios(one.step_s, theirs.step_s) for one in own},
        "busy": {one.name: one.busy.of_busiest(transport) for one in timed},
    }  # fmt: skip
    # DistributedDataParallel must be gone before its process group (see bench/strategies.py)
    del contenders, timed, one, own, theirs
    gc.collect()
    transport.close()
    return result


def _refuse_untimeable(config: Config, transport: Transport, against: str) -> None:
    if config.optimizer.name != "sgd" or config.batch.per_rank_max is not None:
        raise UserError("bench step needs optimizer.name=sgd and batch.per_rank_max=null")
    if against == "horovod" and config.channels_last:
        raise UserError("Horovod's optimizer accepts only contiguous gradients: --set channels_last=false (for both)")
    if transport.size == 1:
        raise UserError("bench step compares reductions: it needs 2 ranks or more (--ranks)")


class _Timed:
    """A contender and its seconds per step, with and without communication."""

    def __init__(self, contender: Contender) -> None:
        self.name, self._contender = contender.name, contender
        self.step_s: list[float] = []
        self._alone_s: list[float] = []
        self.busy = Busy()

    def time(self, steps: int, transport: Transport, *, keep: bool) -> None:
        """Time `steps` steps, and directly afterwards as many without communication."""
        with self.busy if keep else nullcontext():
            step_s = slowest_s(transport, self._contender.step, steps)
        alone_s = slowest_s(transport, self._contender.alone, steps)
        if keep:
            self.step_s.append(step_s)
            self._alone_s.append(alone_s)

    def exposed_s(self) -> list[float]:
        """Exposed communication of each repeat, in seconds per step."""
        return [step_s - alone_s for step_s, alone_s in zip(self.step_s, self._alone_s, strict=True)]


def _contenders(config: Config, transport: Transport, against: str, names: Sequence[str]) -> list[Contender]:
    dataset = open_dataset(config.data)
    model = replicate(config, len(dataset.classes), transport)
    for layer in model.modules():
        if isinstance(layer, Dropout):
            layer.p = 0.0  # the reference implementation would draw different masks
    models = [copy.deepcopy(model) for _ in names]
    mine = share(np.arange(config.batch.global_size), transport.rank, transport.size)
    batch = make_batch(mine, config.data.image_size, len(dataset.classes)).moved(transport.device)
    own = [ours(config, one, batch, transport, name) for name, one in zip(names, models, strict=True)]
    loss = mean_loss(config, batch, transport)
    if against == "horovod":
        return [*own, _horovod(config.optimizer, model, transport, loss)]
    return [*own, ddp(config.optimizer, model, loss, RATE)]


def make_batch(samples: Any, size: int, classes: int) -> Batch:
    """Random images of `size` pixels for these samples; the same samples have the same images on every rank."""
    first = int(samples[0]) if len(samples) else 0
    pixels = uniform(0, 0, np.arange(len(samples) * 3 * size * size) + first * 3 * size * size, 40) * 255
    images = torch.from_numpy(pixels.astype(np.uint8).reshape(len(samples), 3, size, size))
    images = images.contiguous(memory_format=torch.channels_last)
    return Batch(images, torch.from_numpy(samples % classes), samples, np.zeros(len(samples), bool))


def one_step(
    worker: Worker,
    batches: Sequence[Batch],
    pieces: Sequence[Samples],
    images: int,
    rate: float,
    lap: Callable[[Part], None] = lambda part: None,
) -> None:
    """One step of training on this rank's `batches`, the micro-batches `pieces` of a global batch of `images` images.

    References do not check whether gradients are finite, so neither does this. `lap`: gets the part of the step that ends.
    """
    worker.backward(iter(batches), pieces, epoch=0, lap=lap)
    worker.finish(images)
    lap(EXPOSED)
    worker.update(rate)
    lap(COMPUTE)


def ours(config: Config, model: nn.Module, batch: Batch, transport: Transport, reduction: str) -> Contender:
    """The training step of `firetrain train`, with this reduction and the config's optimiser, on this rank's `batch`."""
    worker = worker_of(config, model, transport, reduction)

    def step() -> None:
        one_step(worker, [batch], [batch.samples], config.batch.global_size, RATE)

    def alone() -> None:
        with worker.unreduced():
            step()

    return Contender(f"firetrain {reduction}", model, step, alone)


def ddp(section: OptimizerSection, model: nn.Module, loss: Loss, rate: float) -> Contender:
    """A step with torch's DistributedDataParallel, which takes the mean over ranks; `loss`: see mean_loss."""
    wrapped = DistributedDataParallel(model)
    optimizer = sgd(section, model, rate)

    def step() -> None:
        optimizer.zero_grad()
        loss(wrapped).backward()
        optimizer.step()

    def alone() -> None:
        with wrapped.no_sync():
            step()

    return Contender("DistributedDataParallel", model, step, alone)


def _horovod(section: OptimizerSection, model: nn.Module, transport: Transport, loss: Loss) -> Contender:
    """A step with Horovod's DistributedOptimizer, at its default fusion and cycle time; it also averages over ranks."""
    hvd = start_horovod(transport, defaults=True)
    plain = sgd(section, model, RATE)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    def alone() -> None:
        # compute gradients with autograd.grad: after backward Horovod's hooks would reduce them
        plain.zero_grad()
        scaled, parameters = loss(model), list(model.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(scaled, parameters, allow_unused=True), strict=True
        ):
            parameter.grad = gradient
        torch.optim.SGD.step(optimizer)

    return Contender("horovod.DistributedOptimizer", model, step, alone)


def sgd(section: OptimizerSection, model: nn.Module, rate: float) -> torch.optim.SGD:
    """torch's SGD with the options of a section."""
    return torch.optim.SGD(
        model.parameters(),
        lr=rate,
        momentum=section.momentum,
        weight_decay=section.weight_decay,
        nesterov=section.nesterov,
    )


def mean_loss(config: Config, batch: Batch, transport: Transport) -> Loss:
    """The loss of a model on `batch`, scaled so that the mean of its gradients over ranks is their mean over images."""

    normalise = Normalised(nn.Identity(), transport.device, channels_last=config.channels_last)

    def loss(model: nn.Module) -> Tensor:
        images, labels = batch.on_device(transport.device)
        with autocast(transport.device, config.precision):
            total, _ = losses(model(normalise(images)), labels, auxiliary_weight(config.model))
        return total * (transport.size / config.batch.global_size)

    return loss


def _difference(contenders: list[Contender]) -> float:
    """The largest difference between the first gradients of the reference and any other, relative to the largest gradient."""
    for contender in contenders:
        contender.step()
    *own, theirs = (_gradients(contender.model) for contender in contenders)
    return max(float((one - theirs).abs().max() / theirs.abs().max()) for one in own)


def _gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.detach().flatten() for p in model.parameters() if p.grad is not None])
