"""The time of a training step, ours beside torch's DistributedDataParallel or Horovod's DistributedOptimizer: same model, batch,
ranks and links."""

from __future__ import annotations

import copy
import time
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
from firetrain.cluster import Identity
from firetrain.config import Config
from firetrain.data.catalogue import open_dataset
from firetrain.data.draws import uniform
from firetrain.data.loader import Batch
from firetrain.data.order import part
from firetrain.errors import FiretrainError, UserError
from firetrain.models.catalogue import auxiliary_weight
from firetrain.models.dropout import Dropout
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.gradients import Gradients
from firetrain.reduction.horovod import connect_horovod
from firetrain.reduction.transport import Transport, connect
from firetrain.reduction.wiring import make_wiring
from firetrain.training.loop import prepare_model
from firetrain.training.step import ForwardBackward, accumulate, autocast, losses

# float32 sums in another order: relative to the largest gradient
TOLERANCE = 1e-4
_RATE = 1e-4


@dataclass(frozen=True)
class Contender:
    """A way to do a step: `step` leaves the mean gradient over the global batch in the model; `alone` does the same without
    any communication."""

    name: str
    model: nn.Module
    step: Callable[[], None]
    alone: Callable[[], None]


def bench_step(
    config: Config, identity: Identity, steps: int, repeats: int, against: str = "ddp", reductions: Sequence[str] = ()
) -> dict[str, Any]:
    """Time `repeats` rounds of `steps` steps of each, in turn and in changing order, after checking that all compute the same.

    Ours with each of `reductions` (none: the config's), and the peer, which comes last.

    The batch is fixed and in memory: what is timed is forward, backward, reduction and update. Seconds per step are those
    of the slowest rank. Exposed communication is a timing less that of the same steps without communication, which follow
    at once. `busy`: see `Busy`. Returns JSON-ready facts on every rank; FiretrainError if gradients differ.
    """
    if config.optimizer.name != "sgd" or config.batch.per_rank_max is not None:
        raise UserError("bench step compares plain steps: optimizer.name sgd and batch.per_rank_max null")
    if against == "horovod" and config.channels_last:
        raise UserError("Horovod's optimizer takes contiguous gradients only: --set channels_last=false, for both")
    names = reductions or [str(config.reduction.spec)]
    transport = connect(identity, config.cluster.transport, config.cluster.timeout_s, names)
    if transport.size == 1:
        raise UserError("bench step compares reductions: it needs 2 ranks or more (--ranks)")
    contenders = _contenders(config, transport, against, names)
    difference = _difference(contenders)
    if difference > TOLERANCE:
        raise FiretrainError(
            f"gradients differ by {difference:.1e} of the largest one, more than {TOLERANCE:g}: not timed"
        )
    times: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    alone: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    busy = {contender.name: Busy() for contender in contenders}
    for repeat in range(-1, repeats):  # the first round warms up
        for contender in contenders if repeat % 2 else contenders[::-1]:
            with busy[contender.name] if repeat >= 0 else nullcontext():
                seconds = time_steps(contender.step, steps, transport)
            without = time_steps(contender.alone, steps, transport)
            if repeat >= 0:
                times[contender.name].append(seconds)
                alone[contender.name].append(without)
    *own, theirs = (contender.name for contender in contenders)
    result = {
        "model": config.model.name, "global_batch": config.batch.global_size, "image_size": config.data.image_size,
        "world": str(transport.world), "ranks": transport.size, "nodes": len(transport.world.nodes),
        "transport": transport.name, "steps": steps, "gradient_difference": difference,
        "step_s": {name: spread(seconds) for name, seconds in times.items()},
        "exposed_communication_s": {
            name: spread([a - b for a, b in zip(times[name], alone[name], strict=True)]) for name in times
        },
        "ratio": {name: ratios(times[name], times[theirs]) for name in own},
        "busy": {name: one.of_busiest(transport) for name, one in busy.items()},
    }  # fmt: skip
    transport.close()
    return result


def _contenders(config: Config, transport: Transport, against: str, names: Sequence[str]) -> list[Contender]:
    dataset = open_dataset(config.data)
    model = prepare_model(config, dataset, transport)
    for layer in model.modules():
        if isinstance(layer, Dropout):
            layer.p = 0.0  # the peer would draw other masks
    models = [copy.deepcopy(model) for _ in names]
    mine = part(np.arange(config.batch.global_size), transport.rank, transport.size)
    batch = make_batch(mine, config.data.image_size, len(dataset.classes))
    peer = {"ddp": _ddp, "horovod": _horovod}[against]
    own = [ours(config, one, batch, transport, name) for name, one in zip(names, models, strict=True)]
    return [*own, peer(config, model, batch, transport)]


def make_batch(samples: Any, size: int, classes: int) -> Batch:
    """Random images of `size` pixels for these samples, the same on every rank that asks for the same ones."""
    pixels = uniform(0, 0, np.arange(len(samples) * 3 * size * size) + int(samples[0]) * 3 * size * size, 40) * 255
    images = torch.from_numpy(pixels.astype(np.uint8).reshape(len(samples), 3, size, size))
    images = images.contiguous(memory_format=torch.channels_last)
    return Batch(images, torch.from_numpy(samples % classes), samples, torch.zeros(len(samples), dtype=torch.bool))


def ours(config: Config, model: nn.Module, batch: Batch, transport: Transport, reduction_name: str) -> Contender:
    """A step as training has it, with this reduction and the config's optimiser, on this rank's `batch`."""
    optimizer = make_optimizer(model, config)
    set_rate(optimizer, _RATE)
    wiring = make_wiring(transport, config.reduction)
    reduction = find_reduction(reduction_name, wiring)
    gradients = Gradients(model.parameters(), reduction, wiring.bucket_bytes(config.reduction.bucket_mib))
    forward_backward = ForwardBackward(model, config, transport.device)

    def run(gradients: Gradients) -> None:
        accumulate(forward_backward, iter([batch]), 1, gradients, epoch=0)
        gradients.finish(config.batch.global_size)
        optimizer.step()

    def step() -> None:
        run(gradients)

    def alone() -> None:
        with gradients.unreduced():
            run(gradients)

    return Contender(f"firetrain {reduction_name}", model, step, alone)


def _ddp(config: Config, model: nn.Module, batch: Batch, transport: Transport) -> Contender:
    """As a user of torch would write it; the loss is scaled so that DDP's mean over ranks is the mean over images."""
    wrapped = DistributedDataParallel(model)
    optimizer = _sgd(config, model)

    def step() -> None:
        optimizer.zero_grad()
        _backward(config, wrapped, batch, transport)
        optimizer.step()

    def alone() -> None:
        with wrapped.no_sync():
            step()

    return Contender("DistributedDataParallel", model, step, alone)


def _horovod(config: Config, model: nn.Module, batch: Batch, transport: Transport) -> Contender:
    """As a user of Horovod would write it, with Horovod's own fusion and cycle; its gradients are averaged over ranks, too."""
    hvd = connect_horovod(transport, defaults=True)
    plain = _sgd(config, model)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        _backward(config, model, batch, transport)
        optimizer.step()

    def alone() -> None:
        # gradients by themselves: Horovod's hooks would reduce whatever backward leaves in the parameters
        plain.zero_grad()
        scaled, parameters = _loss(config, model, batch, transport), list(model.parameters())
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(scaled, parameters, allow_unused=True), strict=True
        ):
            parameter.grad = gradient
        torch.optim.SGD.step(optimizer)

    return Contender("horovod.DistributedOptimizer", model, step, alone)


def _sgd(config: Config, model: nn.Module) -> torch.optim.SGD:
    options = config.optimizer
    return torch.optim.SGD(
        model.parameters(),
        lr=_RATE,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
        nesterov=options.nesterov,
    )


def _backward(config: Config, model: nn.Module, batch: Batch, transport: Transport) -> None:
    _loss(config, model, batch, transport).backward()


def _loss(config: Config, model: nn.Module, batch: Batch, transport: Transport) -> Tensor:
    """Scaled so that the mean over ranks of its gradients is that over images."""
    images, labels = batch.on_device(transport.device)
    with autocast(transport.device, config.precision):
        loss, _ = losses(model(images), labels, auxiliary_weight(config.model))
    return loss * (transport.size / config.batch.global_size)


def _difference(contenders: list[Contender]) -> float:
    """The largest difference between the peer's first gradients and another's, relative to the largest gradient."""
    for contender in contenders:
        contender.step()
    *own, theirs = (_gradients(contender.model) for contender in contenders)
    return max(float((one - theirs).abs().max() / theirs.abs().max()) for one in own)


def _gradients(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.detach().flatten() for p in model.parameters() if p.grad is not None])


def time_steps(step: Callable[[], None], steps: int, transport: Transport) -> float:
    """Seconds per step over `steps` steps, of the slowest rank."""
    transport.barrier()
    started_s = time.perf_counter()
    for _ in range(steps):
        step()
    if transport.device.type == "cuda":
        torch.cuda.synchronize()
    spent = torch.tensor([(time.perf_counter() - started_s) / steps], device=transport.device)
    return max(float(value) for value in transport.gather(spent))
