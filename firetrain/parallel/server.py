"""A parameter server: weights, and a policy for gradients that come at any time; without clock, thread and network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from firetrain.optim.learning_rate import LearningRate
from firetrain.parallel.shard import AveragedShard, Order, Shard, Update, UpdatedShard
from firetrain.records.outcome import mean_of
from firetrain.strategy.policy import Policy, find_policy


class Server:
    """Decides whether a pushed gradient is kept or dropped, and when an update is made; weights if the policy averages them.

    The gradient of an update is the mean over the images of all gradients that the policy has kept since the last one. With
    `staleness_aware`, a gradient of staleness tau > 1 counts 1 / tau (Zhang et al. 2016, equation 6).

    - `shard`: the weights that are owned here. Others may be owned elsewhere: they follow the same orders.
    - `updates`: number of updates so far. `staleness`: how many pushes they have, by staleness. `dropped`: the others; at the end
      also those that were kept for an update that was not made.
    - `rate`: the learning rate of an update, by the number of pushes until then. `name`: of the policy, for checkpoints.
    """

    def __init__(
        self,
        shard: Shard,
        policy: Policy,
        rate: Callable[[int], float] = lambda gradients: 0.0,
        *,
        staleness_aware: bool = False,
        name: str = "",
    ) -> None:
        self.shard, self.policy, self.rate, self._aware, self._name = shard, policy, rate, staleness_aware, name
        self._images = 0.0
        self._before = self.updates = self._dropped = self._pushes = 0
        self.staleness: Counter[int] = Counter()
        self._kept: list[int] = []  # the staleness of what the next update will have

    @property
    def dropped(self) -> int:
        """The number of pushes that no update has."""
        return self._dropped + len(self._kept)

    @property
    def weights(self) -> Tensor:
        """The weights that are owned here, in one vector."""
        return self.shard.weights

    def push(self, worker: int, stamp: int, values: Tensor, images: int) -> tuple[int, ...]:
        """Take what a worker has computed from weights of `stamp` updates; returns who is released.

        `values`: the gradient of the loss summed over `images` images, or the worker's weights after training on them.
        """
        order = self.decide(worker, stamp, images)
        self.shard.take(order, values)
        return order.released

    def decide(self, worker: int, stamp: int, images: int) -> Order:
        """Count a push; returns what all shards must do with their part of its values."""
        decision = self.policy.push(worker, stamp - self._before)
        self._pushes += 1
        factor = 0.0
        if decision.keeps:
            staleness = self.updates - stamp
            self._kept.append(staleness)
            factor = 1 / staleness if self._aware and staleness > 1 else 1.0
            factor = float(images) if self.policy.local_steps else factor
            self._images += images
        else:
            self._dropped += 1
        update = None
        if decision.applies:
            update = Update(self._images, self.rate(self._pushes))
            self.updates, self._images = self.updates + 1, 0.0
            for one in self._kept:
                self.staleness[one] += 1
            self._kept.clear()
        return Order(factor, update, decision.released)

    def facts(self) -> dict[str, Any]:
        """The counters, ready for JSON, with the mean staleness, and under ssp this attempt's largest gap between two workers."""
        return {
            "updates": self.updates,
            "dropped": self.dropped,
            "staleness": {str(value): number for value, number in sorted(self.staleness.items())},
            "mean_staleness": mean_of(self.staleness),
            **({} if (gap := getattr(self.policy, "largest_gap", None)) is None else {"largest_gap": gap}),
        }

    def state(self) -> dict[str, Any]:
        """The counters, for a checkpoint after an update."""
        return {
            "policy": self._name, "updates": self.updates, "dropped": self.dropped, "staleness": dict(self.staleness),
            "shares": self.policy.shares,
        }  # fmt: skip

    def load(self, state: Mapping[str, Any], pushes: int) -> None:
        """Go on with the counters of a checkpoint; the policy begins again, with all workers at once.

        Of another policy only the updates are counted: what is stale, or dropped, is so under one policy.
        `pushes`: how many of this policy would have trained on as many images.
        """
        self._before = self.updates = state.get("updates", 0)
        is_of_this = state.get("policy", self._name) == self._name
        self._dropped = state.get("dropped", 0) if is_of_this else 0
        self.staleness = Counter(state.get("staleness", {}) if is_of_this else {})
        self._kept = []
        self._pushes = pushes

    def newest_rate(self) -> float:
        """The learning rate after the newest push."""
        return self.rate(max(1, self._pushes))


def make_server(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: str,
    workers: int,
    schedule: LearningRate,
    number: int = 0,
    count: int = 1,
) -> Server:
    """The server of a model, or of shard `number` of `count`. UserError if the policy does not suit the number of workers.

    The rate after some pushes is that of the step at which data-parallel training would have used as many images.
    """
    found, aware = find_policy(policy, workers)

    of_step = lru_cache(maxsize=1)(schedule.rate)

    def rate(pushes: int) -> float:
        return of_step(min(schedule.total_steps - 1, (pushes - 1) // found.shares))

    if found.local_steps:
        return Server(AveragedShard(model, number, count), found, name=policy)
    return Server(UpdatedShard(model, optimizer, number, count), found, rate, staleness_aware=aware, name=policy)
