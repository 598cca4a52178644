"""Strategies built with torch's own tools, to be timed beside firetrain's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, parallelize_module
from torch.fx.passes.split_module import split_module
from torch.nn.parallel import DistributedDataParallel

from firetrain.bench.step import Loss, ddp, make_batch, mean_loss, sgd
from firetrain.config import Config
from firetrain.config.spec import Spec
from firetrain.data.batch import Normalised
from firetrain.data.order import share
from firetrain.errors import UserError, unknown
from firetrain.models.alexnet import AlexNet
from firetrain.models.graph import trace
from firetrain.models.tracing import Tracer
from firetrain.strategy.pipeline import balanced
from firetrain.transport.transport import Transport

# larger than that of `bench step`, because the changes of the weights are compared
RATE = 1e-3
# of the reference pipelining, by default
_SCHEDULE, _MICRO_BATCHES = "gpipe", 4
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


@dataclass(frozen=True)
class Reference:
    """An implementation with torch's tools. `weights`: the whole model's weights, in one vector; collective."""

    name: str
    step: Callable[[], None]
    weights: Callable[[], Tensor]


def check_reference(spec: Spec, model: str, global_batch: int, ranks: int) -> None:
    """UserError if there is no such reference, or if it does not fit the model, the batch or the ranks."""
    if spec.name not in REFERENCES:
        raise UserError(unknown("reference", spec.name, REFERENCES))
    if spec.name == "dtensor" and (model != "alexnet" or global_batch % ranks):
        raise UserError(
            f"the reference dtensor needs model.name=alexnet, and a batch that the ranks divide evenly (got {model}, "
            f"{global_batch} images, {ranks} ranks)"
        )
    arguments = spec.arguments(REFERENCES[spec.name], given=4)
    if (schedule := arguments.get("schedule", _SCHEDULE)) not in SCHEDULES:
        raise UserError(unknown("schedule", schedule, SCHEDULES))
    micro_batches = arguments.get("micro_batches", _MICRO_BATCHES if spec.name == "pipelining" else 1)
    if micro_batches < 1 or global_batch % micro_batches:
        raise UserError(
            f"{spec}: torch needs equal micro-batches: {global_batch} images cannot be divided into {micro_batches}"
        )


def make_reference(spec: Spec, config: Config, model: nn.Module, classes: int, transport: Transport) -> Reference:
    """A reference that check_reference accepts: ddp; dtensor (One Weird Trick); pipelining, with `schedule` and `micro_batches`.

    UserError if the model or the ranks do not suit it.
    """
    make = REFERENCES[spec.name]
    return make(config, model, classes, transport, **spec.arguments(make, given=4))


def _ddp(config: Config, model: nn.Module, classes: int, transport: Transport) -> Reference:
    """Data-parallel training by DistributedDataParallel."""
    made = ddp(config.optimizer, model, _loss(config, classes, transport), RATE)
    return Reference(made.name, made.step, lambda: flat(model))


def _dtensor(config: Config, model: nn.Module, classes: int, transport: Transport) -> Reference:
    """One Weird Trick: DistributedDataParallel for the convolutions, ColwiseParallel for the fully connected layers."""
    assert isinstance(model, AlexNet), "check_reference refuses other models"
    model.features = cast(nn.Sequential, DistributedDataParallel(model.features))
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # it says that Gloo has no all-to-all
    mesh = init_device_mesh(transport.device.type, (transport.size,))
    first, middle, last = (name for name, one in model.classifier.named_children() if isinstance(one, nn.Linear))
    plan: dict[str, ParallelStyle] = {
        first: ColwiseParallel(input_layouts=Shard(0), output_layouts=Shard(-1)),
        middle: ColwiseParallel(input_layouts=Shard(-1), output_layouts=Shard(-1)),
        last: ColwiseParallel(input_layouts=Shard(-1), output_layouts=Shard(0)),
    }
    parallelize_module(model.classifier, mesh, plan)
    loss, convolutions = _loss(config, classes, transport), list(model.features.parameters())
    # the two kinds of parameters cannot be updated together
    optimizers = [sgd(config.optimizer, part, RATE) for part in (model.features, model.classifier)]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss(model) / transport.size).backward()
        for parameter in convolutions:
            cast(Tensor, parameter.grad).mul_(transport.size)  # DistributedDataParallel takes the mean over ranks
        for optimizer in optimizers:
            optimizer.step()

    return Reference("DTensor and DistributedDataParallel", step, lambda: flat(model))


def _pipelining(
    config: Config,
    model: nn.Module,
    classes: int,
    transport: Transport,
    schedule: str = _SCHEDULE,
    micro_batches: int = _MICRO_BATCHES,
) -> Reference:
    """torch.distributed.pipelining with a stage on each rank, cut where firetrain's pipeline is cut."""
    layers, rank = trace(model, config.data.image_size).layers, transport.rank
    stage_of = {layer.name: stage for stage, some in enumerate(balanced(layers, transport.size)) for layer in some}
    stages = _stages(model, stage_of)
    own = _ContiguousStage(getattr(stages, f"submod_{rank}"))
    stage = PipelineStage(own, rank, transport.size, transport.device)
    runner = SCHEDULES[schedule](stage, micro_batches, loss_fn=nn.functional.cross_entropy)
    batch = make_batch(np.arange(config.batch.global_size), config.data.image_size, classes).moved(transport.device)
    normalise = Normalised(nn.Identity(), transport.device, channels_last=config.channels_last)
    images, labels = batch.on_device(transport.device)
    optimizer = sgd(config.optimizer, own, RATE)

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            runner.step(normalise(images), return_outputs=False)
        elif rank == transport.size - 1:
            runner.step(target=labels, return_outputs=False)
        else:
            runner.step()
        optimizer.step()

    def weights() -> Tensor:
        mine = set(map(id, own.parameters()))
        parts = [p.detach() if id(p) in mine else torch.zeros_like(p) for p in model.parameters()]
        return transport.sum(torch.cat([part.flatten() for part in parts])).cpu()

    return Reference(f"torch.distributed.pipelining, {schedule}, {micro_batches}", step, weights)


class _ContiguousStage(nn.Module):
    """A stage whose outputs, and gradients of inputs, are contiguous: torch sends nothing else over Gloo."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, *inputs: Tensor) -> Any:
        """As the stage, of one or several tensors."""
        seen = [one.view_as(one) for one in inputs]
        for one in seen:
            if one.requires_grad:
                one.register_hook(Tensor.contiguous)
        outputs = self.stage(*seen)
        return outputs.contiguous() if isinstance(outputs, Tensor) else tuple(one.contiguous() for one in outputs)


def _stages(model: nn.Module, stage_of: dict[str, int]) -> fx.GraphModule:
    """The model as modules submod_0, submod_1, ...: an operation without weights is in the last stage that it gets input from."""
    traced, found = fx.GraphModule(model, Tracer().trace(model)), dict[str, int]()
    for node in traced.graph.nodes:
        before = max((found[source.name] for source in node.all_input_nodes), default=0)
        # the layers of a placement are named after their module or their first operation; a module may be used twice
        found[node.name] = max(before, stage_of.get(node.name, stage_of.get(str(node.target), before)))
    return split_module(traced, model, lambda node: found[node.name])


REFERENCES: dict[str, Callable[..., Reference]] = {"ddp": _ddp, "dtensor": _dtensor, "pipelining": _pipelining}


def _loss(config: Config, classes: int, transport: Transport) -> Loss:
    """The loss of this rank's share of a global batch in memory; see mean_loss."""
    mine = share(np.arange(config.batch.global_size), transport.rank, transport.size)
    batch = make_batch(mine, config.data.image_size, classes).moved(transport.device)
    return mean_loss(config, batch, transport)


def flat(model: nn.Module) -> Tensor:
    """The weights of a model on the CPU, [parameters]; of DTensors the whole ones, which is collective."""
    whole = (one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters())
    return torch.cat([one.detach().flatten().cpu() for one in whole])
