"""What a push costs a parameter server, beside copying the pushed buffer once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.config import Config
from firetrain.errors import FiretrainError, UserError
from firetrain.models.catalogue import make_model
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.flat import flat, parts
from firetrain.parallel.server import Server, make_server
from firetrain.parallel.shard import Order
from firetrain.strategy.policy import find_policy

# of the two results; both add in float32, in different orders
_TOLERANCE = 1e-5
_CLASSES = 10


def bench_server(config: Config, policies: Sequence[str], workers: int, pushes: int) -> Iterator[dict[str, Any]]:
    """Medians over `pushes` of the seconds of deciding, applying and copying, for each policy.

    Applying adds the gradient, and updates the weights if the policy says so. Weights must agree with those of an ordinary
    optimiser that takes the sums of the same gradients; FiretrainError otherwise. UserError if a policy does not suit `workers`.
    """
    for policy in policies:
        if find_policy(policy, workers)[0].local_steps:
            raise UserError(
                f"bench server times pushes of gradients, and under {policy} workers push weights: leave it out"
            )
    for policy in policies:
        timed = _TimedPushes(config, policy, workers, pushes)
        timed.run()
        yield timed.result()


class _TimedPushes:
    """Pushes of workers that are always ready: whoever is released pushes again, in the order of release."""

    def __init__(self, config: Config, policy: str, workers: int, pushes: int) -> None:
        self._config, self._policy, self._pushes = config, policy, pushes
        self._rate = config.learning_rate.base
        model, self._reference = self._model(), self._model()
        self._sums = torch.zeros_like(flat(self._reference))
        self._optimizer, own = self._make_optimizer(self._reference), self._make_optimizer(model)
        schedule = LearningRate.of(config, pushes)
        self._server: Server = make_server(model, own, policy, workers, schedule)
        self._of_schedule, self._server.rate = self._server.rate, self._constant_rate
        draw = torch.Generator().manual_seed(1)
        self._gradients = [torch.randn(self._sums.numel(), generator=draw) for _ in range(2)]
        self._landing = torch.empty_like(self._sums)
        self._seconds: dict[str, list[float]] = {"decide_s": [], "apply_s": [], "copy_s": []}
        self._workers = deque((worker, 0) for worker in range(workers))

    def run(self) -> None:
        """Push, and check the weights."""
        for number in range(self._pushes):
            worker, stamp = self._workers.popleft()
            order = self._push(worker, stamp, self._gradients[number % 2])
            self._follow(order, self._gradients[number % 2])
            self._workers.extend((one, self._server.updates) for one in order.released)
        expected = torch.cat([one.detach().flatten() for one in self._reference.parameters()])
        found = torch.cat([one.detach().flatten() for one in _in_order(self._server, self._reference)])
        difference = float((found - expected).abs().max() / expected.abs().max())
        if not difference <= _TOLERANCE:
            raise FiretrainError(f"{self._policy}: weights differ by {difference:.1e} of the largest: not timed")

    def result(self) -> dict[str, Any]:
        """Median seconds of deciding about a push, of applying and of copying it; its bytes; deciding as a share of copying."""
        middle = {key: median(values) for key, values in self._seconds.items()}
        share = middle["decide_s"] / middle["copy_s"]
        return {"policy": self._policy, "bytes": 4 * self._sums.numel(), **middle, "decide_of_copy": share}

    def _push(self, worker: int, stamp: int, gradient: Tensor) -> Order:
        times_s = [time.perf_counter()]
        self._landing.copy_(gradient)
        times_s.append(time.perf_counter())
        order = self._server.decide(worker, stamp, images=1)
        times_s.append(time.perf_counter())
        self._server.shard.take(order, self._landing)
        times_s.append(time.perf_counter())
        for key, began_s, ended_s in zip(("copy_s", "decide_s", "apply_s"), times_s, times_s[1:], strict=False):
            self._seconds[key].append(ended_s - began_s)
        return order

    def _follow(self, order: Order, gradient: Tensor) -> None:
        """Apply the same push with an optimiser of torch, as the reference."""
        self._sums += order.factor * gradient
        if order.update is None:
            return
        for parameter, part in parts(list(self._reference.parameters()), self._sums / max(1.0, order.update.images)):
            parameter.grad = part
        set_rate(self._optimizer, order.update.rate)
        self._optimizer.step()
        self._sums.zero_()

    def _constant_rate(self, pushes: int) -> float:
        """The same rate for all pushes, so that the last one moves the weights as far as the first; it takes as long as any."""
        self._of_schedule(pushes)
        return self._rate

    def _model(self) -> nn.Module:
        return make_model(self._config.model, _CLASSES, self._config.seed)

    def _make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return make_optimizer(model, self._config)


def _in_order(server: Server, like: nn.Module) -> list[Tensor]:
    """The server's weights, as parameters."""
    return [part for _, part in parts(list(like.parameters()), server.weights)]
