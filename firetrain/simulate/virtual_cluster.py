"""Workers of a parameter server on a virtual clock: when each computes, pushes, waits and pulls; deterministic."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from firetrain.parallel.shard import shard_bounds
from firetrain.records.outcome import WorkerSpan


@dataclass(frozen=True)
class StepTimes:
    """How the seconds of gradients vary around their means: log-normal, and sometimes much longer.

    - `jitter`: standard deviation, relative to the mean. `slow_share`: of the gradients that take `slow_factor` times as long.
    - `factors`: of workers that always take longer; default 1.

    Each worker draws from its own sequence, so that its n-th gradient takes as many times its mean under every policy.
    """

    jitter: float = 0.1
    slow_share: float = 0.0
    slow_factor: float = 1.0
    factors: tuple[float, ...] = ()

    def drawn(self, worker: int, seed: int) -> Callable[[], float]:
        """A function that returns how many times its mean the worker's next gradient takes."""
        draw = np.random.default_rng([seed, worker])
        spread = float(np.sqrt(np.log1p(self.jitter**2)))
        own = self.factors[worker] if worker < len(self.factors) else 1.0

        def next_factor() -> float:
            slow = self.slow_factor if draw.random() < self.slow_share else 1.0
            return float(own * slow * np.exp(spread * draw.standard_normal() - spread**2 / 2))

        return next_factor


@dataclass(frozen=True)
class ServerLink:
    """The server's link, which carries `size_bytes` for each push and each pull; the messages of a direction share it.

    `update_s`: seconds of an update of the weights, during which the server takes no other push. `parts`: all
    weights, divided by those of this server; a worker's own link carries all of them, so that a message uses no more of the
    server's link than 1 / `parts`.
    """

    size_bytes: float = 0
    latency_s: float = 0.0
    s_per_byte: float = 0.0
    update_s: float = 0.0
    parts: float = 1.0

    @property
    def busy_s(self) -> float:
        """Seconds that a message takes if it has the link alone."""
        return self.size_bytes * self.s_per_byte

    def divided(self, sizes: Sequence[int], servers: int) -> ServerLink:
        """The link of the server that owns most of a model with parameters of these `sizes`.

        Each of several servers has a link of its own, and so has each worker; the other servers have done their parts before.
        """
        largest = max(end - first for first, end in shard_bounds(sizes, servers)) / max(1, sum(sizes))
        return replace(
            self, size_bytes=self.size_bytes * largest, update_s=self.update_s * largest, parts=1 / max(largest, 1e-12)
        )


class Taken(NamedTuple):
    """What the server has done with a push: the workers that it has released, ascending, and whether it has made an update."""

    released: tuple[int, ...]
    updates: bool


class _Direction:
    """One direction of the server's link. The messages on their way share it equally, as TCP connections do.

    - `next_s`: when the first of them has passed; infinity if there is none.
    """

    def __init__(self, link: ServerLink) -> None:
        self._link = link
        # until `now`, each message on its way has had as much of the link as it would have alone in `share` seconds
        self._now_s = self._share_s = 0.0
        self._leave: deque[tuple[float, int]] = deque()  # the share at which a message has passed, and its worker
        self.next_s = math.inf

    @property
    def _crowd(self) -> float:
        return max(len(self._leave), self._link.parts)

    def enter(self, worker: int, now_s: float) -> None:
        """Let a message of the worker set out. All have the same size, so that they pass in the order in which they came."""
        if self._leave:
            self._share_s += (now_s - self._now_s) / self._crowd
        self._now_s = now_s
        self._leave.append((self._share_s + self._link.busy_s, worker))
        self._foresee()

    def leave(self) -> tuple[int, float]:
        """Let the first message pass; returns its worker and when it arrives."""
        self._now_s = self.next_s
        self._share_s, worker = self._leave.popleft()
        if not self._leave:
            self._share_s = 0.0  # which would otherwise grow, and be rounded
        self._foresee()
        return worker, self._now_s + self._link.latency_s

    def _foresee(self) -> None:
        first = self._leave[0][0] if self._leave else math.inf
        self.next_s = self._now_s + (first - self._share_s) * self._crowd


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

    def run(
        self, pull: Callable[[int], Sequence[float]], push: Callable[[int, float], Taken], goes_on: Callable[[], bool]
    ) -> None:
        """Run the workers while `goes_on()`.

        `pull(worker)` returns the mean seconds of each gradient that the worker computes before its next push; none if it has
        nothing more to do.
        `push(worker, seconds)` is called when the server takes a push.
        """
        factors = [self.times.drawn(worker, self.seed) for worker in range(self.workers)]
        pulls, pushes = _Direction(self.link), _Direction(self.link)
        # time, number of the event, what happens, worker
        events: list[tuple[float, int, Literal["released", "pulled", "computed", "arrived"], int]] = []
        means_s: dict[int, Sequence[float]] = {}
        pulled_s: dict[int, float] = {}
        under_way: dict[int, WorkerSpan] = {}
        numbers, free_s = count(), 0.0

        def happens(time_s: float, what: Literal["released", "pulled", "computed", "arrived"], worker: int) -> None:
            heapq.heappush(events, (time_s, next(numbers), what, worker))

        def release(workers: Iterable[int], from_s: float) -> None:
            for worker in workers:
                if drawn := pull(worker):
                    means_s[worker] = drawn
                    happens(from_s, "released", worker)

        release(range(self.workers), 0.0)
        while goes_on():
            passing = pulls if pulls.next_s <= pushes.next_s else pushes
            if not events or passing.next_s < events[0][0]:
                if passing.next_s == math.inf:
                    return
                worker, arrives_s = passing.leave()
                happens(arrives_s, "pulled" if passing is pulls else "arrived", worker)
                continue
            time_s, _, what, worker = heapq.heappop(events)
            if what == "released":
                pulled_s[worker] = time_s
                pulls.enter(worker, time_s)
            elif what == "pulled":
                ended_s = time_s + sum(mean_s * factors[worker]() for mean_s in means_s[worker])
                under_way[worker] = WorkerSpan(worker, pulled_s[worker], time_s, ended_s, math.inf)
                happens(ended_s, "computed", worker)
            elif what == "computed":
                pushes.enter(worker, time_s)
            else:
                self.now_s = max(time_s, free_s)
                self.spans.append(under_way.pop(worker)._replace(arrived_s=self.now_s))
                taken = push(worker, self.now_s)
                free_s = self.now_s + (self.link.update_s if taken.updates else 0.0)
                release(taken.released, free_s)

    def idle_share(self) -> float:
        """The share of the workers' time in which they do not compute a gradient that has arrived."""
        computed_s = sum(one.ended_s - one.began_s for one in self.spans)
        return 1 - computed_s / (self.workers * self.now_s) if self.now_s else 0.0
