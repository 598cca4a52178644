"""Makes the worker of a config: its model on this rank, and the strategy that trains it."""

from __future__ import annotations

import copy
import sys
from typing import Any, cast

import torch
from torch import nn

from firetrain.cluster import World
from firetrain.config import Config
from firetrain.config.known_failures import known_failures
from firetrain.config.spec import Spec
from firetrain.models.catalogue import make_model
from firetrain.models.graph import Graph, trace
from firetrain.models.own import draws, refuse_changed_by_placement, refuse_untrainable_output
from firetrain.optim.catalogue import make_optimizer
from firetrain.optim.kinds import is_normalised
from firetrain.parallel.data_parallel import DataParallel
from firetrain.parallel.placed import Placed
from firetrain.parallel.worker import Worker
from firetrain.strategy import find_strategy
from firetrain.strategy.check import refuse_untrainable
from firetrain.strategy.file import bucket_bytes_of
from firetrain.strategy.placement import Placement
from firetrain.transport.device import set_arithmetic
from firetrain.transport.transport import Transport


def make_worker(config: Config, classes: int, transport: Transport, state: dict[str, Any]) -> Worker:
    """The worker of a run on this rank. `state`: from a checkpoint, or empty at the start of a run."""
    if state:  # which has the weights, whatever has become of the file that the run began with
        config = config.model_copy(update={"model": config.model.model_copy(update={"weights": None})})
    # a size that the config names is that of the run's beginning, or was changed when the run was resumed
    kept_bytes = None if config.reduction.bucket_mib else state.get("bucket_bytes")
    worker = worker_of(config, replicate(config, classes, transport), transport, bucket_bytes=kept_bytes)
    if state:
        worker.load(state)
    return worker


def worker_of(
    config: Config,
    model: nn.Module,
    transport: Transport,
    reduction: str | None = None,
    bucket_bytes: int | None = None,
) -> Worker:
    """The worker that trains `model`, which is on this rank's device, by the config's strategy.

    `reduction` and `bucket_bytes`: default as in the config.

    >>> from firetrain.cluster import Identity
    >>> from firetrain.config import load_config
    >>> config = load_config("quickstart", ["cluster.ranks_per_node=1"]).config
    >>> alone = Transport("gloo", Identity(), World.even(nodes=1, ranks_per_node=1), torch.device("cpu"), timeout_s=60.0)
    >>> worker = worker_of(config, replicate(config, 10, alone), alone)
    >>> worker.describe()
    'reduction tree, 3 buckets'
    >>> worker.close()
    """
    if not config.strategy.is_data_parallel:
        return _placed(config, model, transport, reduction, bucket_bytes)
    return DataParallel(config, model, transport, reduction, bucket_bytes)


def _placed(
    config: Config, model: nn.Module, transport: Transport, reduction: str | None, bucket_bytes: int | None
) -> Worker:
    """The worker of a model that is divided among the ranks; UserError if the strategy does not suit the model or the ranks."""
    graph, placement = placement_for(config.strategy.spec, model, config.data.image_size, transport.world)
    refuse_untrainable(placement, config.batch.global_size)
    bucket_bytes = bucket_bytes_of(config, transport.world) or bucket_bytes
    if placement.is_data_parallel:  # of a placement file; batches are larger than in pieces, and nothing is exchanged
        return DataParallel(config, model, transport, reduction, bucket_bytes)
    if config.model.own:
        refuse_changed_by_placement(model, config.model.name, config.data.image_size)
    whole = copy.deepcopy(model).cpu()

    def template() -> tuple[nn.Module, torch.optim.Optimizer]:
        found = copy.deepcopy(whole)
        return found, make_optimizer(found, config)

    return Placed(config, model, graph, placement, transport, template, reduction, bucket_bytes)


def placement_for(strategy: Spec, model: nn.Module, image_size: int, world: World) -> tuple[Graph, Placement]:
    """The traced model, and its placement by a strategy; UserError if that does not suit the model or the ranks."""
    graph = trace(model, image_size)
    placement = find_strategy(str(strategy))(graph.layers, world)
    refuse_untrainable(placement)
    return graph, placement


def replicate(config: Config, classes: int, transport: Transport) -> nn.Module:
    """The model of a config on this rank's device, in training mode, with the weights of rank 0."""
    set_arithmetic(transport.device, config.precision, deterministic=config.deterministic)
    model = make_model(config.model, classes, config.seed)
    if config.model.own:
        refuse_untrainable_output(model, config.model.name, classes, config.data.image_size)
        if transport.rank == 0:
            for failure in known_failures(
                config.model, config.batch, config.learning_rate, config.optimizer, is_normalised(model)
            ):
                print(f"note: {failure.what}: {failure.advice}", file=sys.stderr)
        if transport.rank == 0 and draws(model, config.data.image_size):
            print(
                f"note: {config.model.name} draws random numbers in training, other ones on another number of ranks; only those "
                "of torch.nn.Dropout stay the same",
                file=sys.stderr,
            )
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    model = cast(nn.Module, model.to(transport.device, memory_format=layout)).train()  # type: ignore[call-overload]
    if transport.size > 1:
        parameters = list(model.parameters())
        flat = transport.broadcast(torch.cat([p.detach().flatten() for p in parameters]))
        with torch.no_grad():
            for parameter, values in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                parameter.copy_(values.view(parameter.shape))
    return model
