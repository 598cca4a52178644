"""Trains under policies of a parameter server: gradients are real, and a virtual clock decides when each one arrives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from firetrain.cluster import Identity, World
from firetrain.config import Config
from firetrain.config.names import STALENESS_CANCELS, rate_without_effect
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.order import Samples, steps_per_epoch
from firetrain.errors import UserError
from firetrain.optim.catalogue import make_optimizer
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.catalogue import make_worker, replicate
from firetrain.parallel.flat import flat_copy, flat_gradient, load_flat
from firetrain.parallel.local_steps import LocalSteps
from firetrain.parallel.server import make_server
from firetrain.parallel.tickets import Tickets, samples_of
from firetrain.records.outcome import SHOWN, Outcome, Point
from firetrain.simulate.machine import Machine
from firetrain.simulate.virtual_cluster import Taken, VirtualCluster
from firetrain.strategy.policy import find_policy
from firetrain.training.evaluation import evaluate
from firetrain.training.input import Input
from firetrain.transport.device import first_device
from firetrain.transport.transport import Transport


class _Push(NamedTuple):
    """What a worker sends: a gradient or weights, and on how many images they are based.

    - `stamp`: number of updates of the weights that the worker pulled.
    """

    stamp: int
    values: Tensor
    images: int


class Simulation:
    """A parameter server and its workers, all in this process, on a machine.

    Workers draw the next shares of the epoch's order when they are released, as real ones do, so that each image is used once an
    epoch, whoever is fast. A share is a global batch divided by the number of gradients that an update of `sync` needs: by all
    workers but the backup ones.
    """

    def __init__(self, config: Config, dataset: Dataset, policy: str, workers: int, machine: Machine) -> None:
        self._config, self._policy = config, policy
        transport = Transport("gloo", Identity(), World.even(1, 1), first_device(), config.cluster.timeout_s)
        classes = len(dataset.classes)
        self._transport = transport
        self._worker = make_worker(config, classes, transport, {})
        model = replicate(config, classes, transport)
        steps = steps_per_epoch(len(dataset.train.labels), config.batch.global_size)
        self._schedule = LearningRate.of(config, steps)
        self._server = make_server(model, self._optimizer(model), policy, workers, self._schedule)
        self._shares, local_steps = self._server.policy.shares, self._server.policy.local_steps
        self._images = Input(config.data, config.seed, dataset, transport, self._worker.largest_batch)
        link, own_update_s = machine.link, 0.0
        if local_steps:  # workers update their own weights
            link, own_update_s = replace(link, update_s=0.0), link.update_s
        self._gradient_s = cache(lambda images: machine.gradient_s(images) + own_update_s)
        link = link.divided([one.numel() for one in model.parameters()], machine.servers)
        self._cluster = VirtualCluster(workers, machine.times, link, config.seed)
        self._tickets = Tickets(self._schedule.total_steps * self._shares)
        self._drawn: dict[int, list[int]] = {}
        self._pushed: dict[int, _Push] = {}
        own = self._worker.model
        self._local = [LocalSteps(own, self._optimizer(own)) for _ in range(workers if local_steps else 0)]
        self._curve: list[Point] = []
        self._per_epoch, self._due, self._over = steps * self._shares, False, False
        self._draw(range(workers))

    def run(self) -> Outcome:
        """Train to the target or to the last epoch."""
        self._cluster.run(self._pull, self._push, lambda: not self._over)
        self._images.close()
        self._worker.close()
        server, target = self._server, self._config.target.top1
        reached = (point.seconds for point in self._curve if target is not None and point.top1 >= target)
        return Outcome(
            self._policy, self._cluster.workers, self._config.seed, target, self._curve[-1].seconds, next(reached, None),
            tuple(self._curve), server.updates, self._tickets.used, server.dropped, self._cluster.idle_share(),
            dict(sorted(server.staleness.items())), tuple(self._cluster.spans[:SHOWN]),
        )  # fmt: skip

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return make_optimizer(model, self._config)

    def _draw(self, workers: Iterable[int]) -> None:
        """Deal the next shares to workers that are released together."""
        self._drawn |= self._tickets.draw(list(workers), self._server.policy.local_steps or 1)

    def _pull(self, worker: int) -> list[float]:
        """Compute what the worker pushes next, with the current weights; returns the mean seconds of each gradient."""
        config, images = self._config, len(self._images.dataset.train.labels)
        shares = {
            number: samples_of(number, images, config.batch.global_size, config.seed, self._shares)
            for number in self._drawn.pop(worker)
        }
        if shares:
            load_flat(self._worker.model, self._server.weights)
            self._pushed[worker] = self._trained(shares, self._local[worker] if self._local else None)
        return [self._gradient_s(len(samples)) for _, samples in shares.values()]

    def _trained(self, shares: Mapping[int, tuple[int, Samples]], local: LocalSteps | None) -> _Push:
        """The gradient of a share with the pulled weights, or the weights after own steps with several ones.

        `shares`: (epoch, samples) by number.
        """
        trained_on = 0
        for number, (epoch, samples) in shares.items():
            pieces = self._worker.micro_batches(samples)
            _, used = self._worker.backward(self._images.training_batches(pieces, epoch), pieces, epoch).tolist()
            self._worker.finish(1.0)
            trained_on += int(used)  # without those that cannot be read
            if local:
                local.make(int(used), self._schedule.rate(number // self._shares))
        values = flat_copy(self._worker.model) if local else flat_gradient(self._worker.model)
        return _Push(self._server.updates, values, trained_on)

    def _push(self, worker: int, seconds: float) -> Taken:
        """The server takes what the worker has computed."""
        before, pushed, updates = self._tickets.used, self._pushed.pop(worker), self._server.updates
        released = self._server.push(worker, pushed.stamp, pushed.values, pushed.images)
        self._tickets.use(worker)
        used, is_updated = self._tickets.used, self._server.updates > updates
        often = self._per_epoch * self._config.target.evaluate_every_epochs
        self._due = self._due or used // often > before // often or used == self._tickets.total
        if self._due and (is_updated or not self._local):  # averages: not before the weights of all have come
            self._evaluate(seconds)
        if self._over:
            return Taken((), is_updated)
        self._draw(released)
        return Taken(released, is_updated)

    def _evaluate(self, seconds: float) -> None:
        self._due = False
        load_flat(self._worker.model, self._server.weights)
        score, target = evaluate(self._worker, self._images, self._transport), self._config.target
        loss = score.loss if math.isfinite(score.loss) else None
        self._curve.append(Point(seconds, self._server.updates, score.top1, loss))
        reached = target.top1 is not None and score.top1 >= target.top1 and not target.train_on
        self._over = reached or self._tickets.used >= self._tickets.total


def outcomes(
    config: Config, policies: Sequence[str], workers: int, seeds: Sequence[int], machine: Machine
) -> Iterator[Outcome]:
    """The outcome of every policy with every seed. UserError, before training, if a policy does not suit the workers."""
    if config.batch.global_size < workers:
        raise UserError(f"{workers} workers share a batch of {config.batch.global_size} images: give each at least one")
    found = {policy: find_policy(policy, workers) for policy in policies}
    if config.optimizer.name in STALENESS_CANCELS and any(aware for _, aware in found.values()):
        raise UserError(rate_without_effect(config.optimizer.name))
    dataset = open_dataset(config.data)
    for policy in policies:
        for seed in seeds:
            seeded = config.model_copy(update={"seed": seed})
            yield Simulation(seeded, dataset, policy, workers, machine).run()
