"""Trains under policies of a parameter server: gradients are real, and a virtual clock decides when each one arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor, nn

from firetrain.cluster import Identity, World
from firetrain.config import Config
from firetrain.config.names import STALENESS_CANCELS, rate_without_effect
from firetrain.data.batch import Batch
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.order import Samples, global_batches, share, steps_per_epoch
from firetrain.errors import UserError
from firetrain.optim.catalogue import make_optimizer
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.catalogue import make_worker, replicate
from firetrain.parallel.flat import flat_copy, flat_gradient, load_flat
from firetrain.parallel.local_steps import LocalSteps
from firetrain.parallel.server import make_server
from firetrain.records.outcome import SHOWN, Outcome, Point
from firetrain.simulate.machine import Machine
from firetrain.simulate.virtual_cluster import ServerLink, StepTimes, VirtualCluster
from firetrain.strategy.policy import find_policy
from firetrain.training.evaluation import evaluate
from firetrain.training.input import Input
from firetrain.transport.device import first_device
from firetrain.transport.transport import Transport


class _Push(NamedTuple):
    """What a worker sends: a gradient or weights, and on how many images and gradients they are based.

    - `stamp`: number of updates of the weights that the worker pulled.
    """

    stamp: int
    values: Tensor
    images: int
    gradients: int


class Simulation:
    """A parameter server and its workers, all in this process.

    Every worker takes the next share of the epoch's order, so that each image is used once an epoch, whoever is fast. A share is
    a global batch divided by the number of gradients that an update of `sync` needs: by all workers but the backup ones.
    """

    def __init__(
        self, config: Config, dataset: Dataset, policy: str, workers: int, times: StepTimes, link: ServerLink
    ) -> None:
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
        self._cluster = VirtualCluster(workers, times, link, config.seed)
        self._gradients = self._gradients_in_order()
        self._pushed: dict[int, _Push] = {}
        own = self._worker.model
        self._local = [LocalSteps(own, self._optimizer(own)) for _ in range(workers if local_steps else 0)]
        self._curve: list[Point] = []
        self._arrived, self._per_epoch, self._due, self._over = 0, steps * self._shares, False, False

    def run(self) -> Outcome:
        """Train to the target or to the last epoch."""
        self._cluster.run(self._pull, self._push, lambda: not self._over)
        self._images.close()
        self._worker.close()
        server, target = self._server, self._config.target.top1
        reached = (point.seconds for point in self._curve if target is not None and point.top1 >= target)
        return Outcome(
            self._policy, self._cluster.workers, self._config.seed, target, self._curve[-1].seconds, next(reached, None),
            tuple(self._curve), server.updates, self._arrived, server.dropped, self._cluster.idle_share(),
            dict(sorted(server.staleness.items())), tuple(self._cluster.spans[:SHOWN]),
        )  # fmt: skip

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return make_optimizer(model, self._config)

    def _pull(self, worker: int) -> int:
        """Compute what the worker pushes next, with the current weights; returns the number of gradients."""
        load_flat(self._worker.model, self._server.weights)
        self._pushed[worker] = self._trained(worker) if self._local else self._computed()
        return self._pushed[worker].gradients

    def _computed(self) -> _Push:
        """A gradient with the pulled weights."""
        gradient, images = next(self._gradients)
        return _Push(self._server.updates, gradient, images, 1)

    def _trained(self, worker: int) -> _Push:
        """The weights after a worker's own steps."""
        local, most, trained_on = self._local[worker], self._server.policy.local_steps or 1, 0
        steps = range(local.step, min(local.step + most, self._schedule.total_steps))
        for step in steps:
            _, images = next(self._gradients)
            local.make(images, self._schedule.rate(step))
            trained_on += images
        return _Push(self._server.updates, flat_copy(self._worker.model), trained_on, len(steps))

    def _push(self, worker: int, seconds: float) -> Iterable[int]:
        """What the worker has computed arrives; returns who is released."""
        before, pushed, updates = self._arrived, self._pushed.pop(worker), self._server.updates
        released = self._server.push(worker, pushed.stamp, pushed.values, pushed.images)
        self._arrived += pushed.gradients
        often = self._per_epoch * self._config.target.evaluate_every_epochs
        self._due = self._due or self._arrived // often > before // often
        self._due = self._due or self._arrived == self._schedule.total_steps * self._shares
        if self._due and (
            not self._local or self._server.updates > updates
        ):  # averages: not before the weights of all have come
            self._evaluate(seconds)
        return released

    def _evaluate(self, seconds: float) -> None:
        self._due = False
        load_flat(self._worker.model, self._server.weights)
        score, target = evaluate(self._worker, self._images, self._transport), self._config.target
        self._curve.append(Point(seconds, self._server.updates, score.top1, score.loss))
        reached = target.top1 is not None and score.top1 >= target.top1 and not target.train_on
        self._over = reached or self._arrived >= self._schedule.total_steps * self._shares

    def _gradients_in_order(self) -> Iterator[tuple[Tensor, int]]:
        """Gradients of the summed loss over the next shares, and their numbers of images, with the pulled weights."""
        worker = self._worker
        for epoch in count():
            shares = self._epoch_shares(epoch)
            pieces = [worker.micro_batches(one) for one in shares]
            batches: Iterator[Batch] = self._images.training_batches((some for one in pieces for some in one), epoch)
            for own in pieces:
                _, images = worker.backward(batches, own, epoch).tolist()  # without those that cannot be read
                worker.finish(1.0)
                yield flat_gradient(worker.model), int(images)

    def _epoch_shares(self, epoch: int) -> list[Samples]:
        config = self._config
        images = len(self._images.dataset.train.labels)
        whole = global_batches(images, config.batch.global_size, config.seed, epoch)
        return [share(samples, number, self._shares) for samples in whole for number in range(self._shares)]


def outcomes(
    config: Config, policies: Sequence[str], workers: int, seeds: Sequence[int], machine: Machine
) -> Iterator[Outcome]:
    """The outcome of every policy with every seed. UserError, before training, if a policy does not suit the workers."""
    if config.batch.global_size < workers:
        raise UserError(f"{workers} workers share a batch of {config.batch.global_size} images: give each at least one")
    found = {policy: find_policy(policy, workers) for policy in policies}
    if config.optimizer.name in STALENESS_CANCELS and any(aware for _, aware in found.values()):
        raise UserError(rate_without_effect(config.optimizer.name))
    shares = {policy: one.shares for policy, (one, _) in found.items()}
    dataset = open_dataset(config.data)
    for policy in policies:
        times = machine.times_of(-(-config.batch.global_size // shares[policy]))
        for seed in seeds:
            seeded = config.model_copy(update={"seed": seed})
            yield Simulation(seeded, dataset, policy, workers, times, machine.link).run()
