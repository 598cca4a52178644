"""Workers of a parameter server on a virtual clock: when each computes, pushes, waits and pulls; deterministic."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from firetrain.parallel.shard import shard_bounds
from firetrain.records.outcome import WorkerSpan


@dataclass(frozen=True)
class StepTimes:
    """The seconds in which workers compute a gradient: log-normal around `mean_s`, and sometimes much longer.

    - `jitter`: standard deviation, relative to the mean. `slow_share`: of the gradients that take `slow_factor` times as long.
    - `factors`: of workers that always take longer; default 1.

    Each worker draws from its own sequence, so that its n-th gradient takes as long under every policy.
    """

    mean_s: float = 1.0
    jitter: float = 0.1
    slow_share: float = 0.0
    slow_factor: float = 1.0
    factors: tuple[float, ...] = ()

    def drawn(self, worker: int, seed: int) -> Callable[[], float]:
        """A function that returns the seconds of the worker's next gradient."""
        draw = np.random.default_rng([seed, worker])
        spread = float(np.sqrt(np.log1p(self.jitter**2)))
        own = self.mean_s * (self.factors[worker] if worker < len(self.factors) else 1.0)

        def next_s() -> float:
            slow = self.slow_factor if draw.random() < self.slow_share else 1.0
            return float(own * slow * np.exp(spread * draw.standard_normal() - spread**2 / 2))

        return next_s


@dataclass(frozen=True)
class ServerLink:
    """The server's link, which carries `size_bytes` for each push and each pull; all workers share it, in each direction.

    `update_s`: seconds of an update of the weights, during which the server takes no other push.
    """

    size_bytes: float = 0
    latency_s: float = 0.0
    s_per_byte: float = 0.0
    update_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds for which a message occupies the link."""
        return self.size_bytes * self.s_per_byte

    def divided(self, sizes: Sequence[int], servers: int) -> ServerLink:
        """The link of the server that owns most of a model with parameters of these `sizes`.

        Each of several servers has a link of its own; the others have done their parts before.
        """
        largest = max(end - first for first, end in shard_bounds(sizes, servers)) / max(1, sum(sizes))
        return replace(self, size_bytes=self.size_bytes * largest, update_s=self.update_s * largest)


class Taken(NamedTuple):
    """What the server has done with a push: the workers that it has released, ascending, and whether it has made an update."""

    released: tuple[int, ...]
    updates: bool


class _Direction:
    """One direction of the server's link, which messages pass one after another."""

    def __init__(self, link: ServerLink) -> None:
        self._link, self._free_s = link, 0.0

    def passed_s(self, from_s: float) -> float:
        """The arrival time of a message sent at `from_s`."""
        self._free_s = max(from_s, self._free_s) + self._link.busy_s
        return self._free_s + self._link.latency_s


@dataclass
class VirtualCluster:
    """Lets workers compute and a server decide, in the order of virtual time.

    - `spans`: what the workers did. `now_s`: the time of the last push.
    """

    workers: int
    times: StepTimes
    link: ServerLink
    seed: int
    now_s: float = 0.0
    spans: list[WorkerSpan] = field(default_factory=list)

    def run(self, pull: Callable[[int], int], push: Callable[[int, float], Taken], goes_on: Callable[[], bool]) -> None:
        """Run the workers while `goes_on()`.

        `pull(worker)` returns how many gradients the worker computes before its next push; 0 if it has nothing more to do.
        `push(worker, seconds)` is called when the server takes a push.
        """
        next_s = [self.times.drawn(worker, self.seed) for worker in range(self.workers)]
        links = {"in": _Direction(self.link), "out": _Direction(self.link)}
        # time, number of the event, what happens, worker
        events: list[tuple[float, int, Literal["computed", "arrived"], int]] = []
        under_way: dict[int, WorkerSpan] = {}
        numbers, free_s = count(), 0.0

        def release(worker: int, from_s: float) -> None:
            if not (gradients := pull(worker)):
                return
            began_s = links["out"].passed_s(from_s)
            ended_s = began_s + sum(next_s[worker]() for _ in range(gradients))
            under_way[worker] = WorkerSpan(worker, from_s, began_s, ended_s, ended_s)
            heapq.heappush(events, (ended_s, next(numbers), "computed", worker))

        for worker in range(self.workers):
            release(worker, 0.0)
        while events and goes_on():
            time_s, _, what, worker = heapq.heappop(events)
            if what == "computed":
                heapq.heappush(events, (links["in"].passed_s(time_s), next(numbers), "arrived", worker))
                continue
            self.now_s = max(time_s, free_s)
            self.spans.append(under_way.pop(worker)._replace(arrived_s=self.now_s))
            taken = push(worker, self.now_s)
            free_s = self.now_s + (self.link.update_s if taken.updates else 0.0)
            for one in taken.released:
                release(one, free_s)

    def idle_share(self) -> float:
        """The share of the workers' time in which they do not compute a gradient that has arrived."""
        computed_s = sum(one.ended_s - one.began_s for one in self.spans)
        return 1 - computed_s / (self.workers * self.now_s) if self.now_s else 0.0
