"""Trains under one policy of a parameter server: gradients are real, and a virtual clock decides when each one arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

from torch import Tensor

from firetrain.cluster import Identity, World
from firetrain.config import Config
from firetrain.data.batch import Batch
from firetrain.data.images import Dataset
from firetrain.data.order import Samples, global_batches, share, steps_per_epoch
from firetrain.optim.catalogue import make_optimizer
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.catalogue import make_worker, replicate
from firetrain.parallel.server import Server, flat_gradient, load_flat
from firetrain.simulate.outcome import SHOWN, Outcome, Point
from firetrain.simulate.virtual_cluster import ServerLink, StepTimes, VirtualCluster
from firetrain.strategy.policy import find_policy
from firetrain.training.evaluation import evaluate
from firetrain.training.input import Input
from firetrain.transport.device import first_device
from firetrain.transport.transport import Transport


class Simulation:
    """A parameter server and its workers, all in this process.

    Every worker takes the next share of the epoch's order, so that each image is used once an epoch, whoever is fast. A share is
    a global batch divided by the number of gradients that an update of `sync` needs: by all workers but the spare ones.
    """

    def __init__(
        self, config: Config, dataset: Dataset, policy: str, workers: int, times: StepTimes, link: ServerLink
    ) -> None:
        self._config, self._policy = config, policy
        machine, aware = find_policy(policy, workers)
        self._shares = machine.shares
        transport = Transport("gloo", Identity(), World.even(1, 1), first_device(), config.cluster.timeout_s)
        classes = len(dataset.classes)
        self._transport = transport
        self._worker = make_worker(config, classes, transport, {})
        model = replicate(config, classes, transport)
        optimizer = make_optimizer(model, config.optimizer, config.learning_rate, config.batch.global_size)
        steps = steps_per_epoch(len(dataset.train.labels), config.batch.global_size)
        self._schedule = LearningRate.of(config, steps)
        self._server = Server(model, optimizer, machine, self._rate, staleness_aware=aware)
        self._images = Input(config.data, config.seed, dataset, transport, self._worker.largest_batch)
        self._cluster = VirtualCluster(workers, times, link, config.seed)
        self._gradients = self._draw()
        self._flying: dict[int, tuple[int, Tensor, int]] = {}
        self._curve: list[Point] = []
        self._pushes, self._per_epoch, self._over = 0, steps * self._shares, False

    def run(self) -> Outcome:
        """Train to the target or to the last epoch."""
        self._cluster.run(self._pull, self._push, lambda: not self._over)
        self._images.close()
        self._worker.close()
        server, target = self._server, self._config.target.top1
        reached = (point.seconds for point in self._curve if target is not None and point.top1 >= target)
        return Outcome(
            self._policy, self._config.seed, self._curve[-1].seconds, next(reached, None), tuple(self._curve),
            server.updates, self._pushes, server.dropped, self._cluster.idle_share(), dict(sorted(server.staleness.items())),
            tuple(self._cluster.spans[:SHOWN]),
        )  # fmt: skip

    def _rate(self, gradients: int) -> float:
        """The rate after some gradients: that of the step at which data-parallel training would have used as many images."""
        return self._schedule.rate(min(self._schedule.total_steps - 1, (gradients - 1) // self._shares))

    def _pull(self, worker: int) -> None:
        """The worker's next gradient, which it computes with the weights as they are now."""
        load_flat(self._worker.model, self._server.weights)
        gradient, images = next(self._gradients)
        self._flying[worker] = self._server.updates, gradient, images

    def _push(self, worker: int, seconds: float) -> Iterable[int]:
        """The worker's gradient arrives; returns who is released."""
        released = self._server.push(worker, *self._flying.pop(worker))
        self._pushes += 1
        often = self._per_epoch * self._config.target.evaluate_every_epochs
        if self._pushes % often == 0 or self._pushes == self._schedule.total_steps * self._shares:
            self._evaluate(seconds)
        return released

    def _evaluate(self, seconds: float) -> None:
        load_flat(self._worker.model, self._server.weights)
        score, target = evaluate(self._worker, self._images, self._transport), self._config.target
        self._curve.append(Point(seconds, self._server.updates, score.top1, score.loss))
        reached = target.top1 is not None and score.top1 >= target.top1 and not target.train_on
        self._over = reached or self._pushes >= self._schedule.total_steps * self._shares

    def _draw(self) -> Iterator[tuple[Tensor, int]]:
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
