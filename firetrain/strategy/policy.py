"""When a parameter server applies gradients, and which workers it lets go on: state machines without time and without tensors.

The server counts its updates. A worker pulls the weights, which carry the number of updates so far as their stamp, computes a
gradient with them, and pushes it. The staleness of a gradient is the number of updates between its weights and the weights that
it is applied to.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from firetrain.config.names import make_policy
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.limits import MOST_STEPS


class Decision(NamedTuple):
    """What the server does with a push.

    - `keeps`: whether the gradient counts; otherwise it is dropped.
    - `applies`: whether the gradients that were kept since the last update make an update now.
    - `released`: the workers that pull the weights now and go on, in ascending order.
    """

    keeps: bool
    applies: bool
    released: tuple[int, ...]


class Policy(Protocol):
    """Decides about the pushes of some workers, which are numbered from 0. A worker pushes again only after it was released.

    A policy that counts iterations may have `largest_gap`, the most iterations that a worker was ahead of the slowest; it goes
    into the run's record.

    >>> policy, _ = find_policy("backup:spare=1", workers=3)
    >>> policy.push(0, 0), policy.push(2, 0)  # of three workers two make the update; the third is late
    (Decision(keeps=True, applies=False, released=()), Decision(keeps=True, applies=True, released=(0, 2)))
    >>> policy.push(1, 0)
    Decision(keeps=False, applies=False, released=(1,))
    """

    @property
    def goes_on(self) -> bool:
        """Whether the others go on if a worker dies."""

    @property
    def shares(self) -> int:
        """The number of gradients into which a global batch is divided."""

    @property
    def local_steps(self) -> int | None:
        """The steps that a worker makes by itself before it pushes its weights; None if it pushes gradients."""

    def push(self, worker: int, stamp: int) -> Decision:
        """Decide about a gradient for weights of `stamp` updates."""

    def lose(self, worker: int) -> tuple[int, ...]:
        """Forget a worker that has died; returns the workers that are released because of it."""

    def join(self, worker: int) -> None:
        """Count a restarted worker in, which pulls the weights now."""


class Sync:
    """All workers wait for each other: every update has one gradient of each worker, and no gradient is stale.

    With `spare` backup workers, an update takes the first workers - `spare` gradients, and later ones are dropped (Chen et al.
    2016, section 3.2).

    >>> policy = Sync(workers=3, spare=1)
    >>> policy.push(2, stamp=0), policy.push(0, stamp=0), policy.push(1, stamp=0)[0]
    (Decision(keeps=True, applies=False, released=()), Decision(keeps=True, applies=True, released=(0, 2)), False)
    """

    local_steps: int | None = None

    def __init__(self, workers: int, spare: int = 0) -> None:
        if not 0 <= spare < workers:
            raise UserError(f"backup: spare is {spare}, but at least one of {workers} workers is needed")
        self._needed, self._spare = workers - spare, spare
        self._updates = self._kept = 0
        self._waiting: set[int] = set()

    @property
    def goes_on(self) -> bool:
        return self._spare > 0

    @property
    def shares(self) -> int:
        return self._needed

    def push(self, worker: int, stamp: int) -> Decision:
        if stamp < self._updates:
            return Decision(keeps=False, applies=False, released=(worker,))
        self._waiting.add(worker)
        self._kept += 1
        if self._kept < self._needed:
            return Decision(keeps=True, applies=False, released=())
        released, self._waiting, self._kept = tuple(sorted(self._waiting)), set(), 0
        self._updates += 1
        return Decision(keeps=True, applies=True, released=released)

    def lose(self, worker: int) -> tuple[int, ...]:
        """A backup worker fewer. UserError if there is none left; a gradient that it has pushed counts nevertheless."""
        if self._spare == 0:
            raise UserError("no backup worker is left, and every update needs all of the others")
        self._spare -= 1
        self._waiting.discard(worker)
        return ()

    def join(self, worker: int) -> None:
        self._spare += 1


class Average(Sync):
    """Every worker trains by itself, and the server averages their weights after `every` steps (Stich 2019, "local SGD").

    Without `every` they are averaged once, at the end.
    """

    def __init__(self, workers: int, every: int = MOST_STEPS) -> None:
        if every < 1:
            raise UserError(f"average: every is {every}, expected 1 or more steps")
        super().__init__(workers)
        self.local_steps = every


class Async:
    """Nobody waits: every gradient is applied when it comes, however stale it is (Dean et al. 2012, "Downpour").

    With `group` > 1 an update has that many gradients, of any workers (Zhang et al. 2016, "softsync").
    """

    goes_on = True
    local_steps = None

    def __init__(self, workers: int, group: int = 1) -> None:
        self.shares, self._group, self._kept = workers, group, 0

    def push(self, worker: int, stamp: int) -> Decision:
        self._kept = (self._kept + 1) % self._group
        return Decision(keeps=True, applies=self._kept == 0, released=(worker,))

    def lose(self, worker: int) -> tuple[int, ...]:
        return ()

    def join(self, worker: int) -> None:
        return


class StaleSync:
    """A worker may be at most `staleness` iterations ahead of the slowest (Ho et al. 2013, "stale synchronous parallel").

    Every gradient is applied when it comes. A worker that is too far ahead waits until the slowest has caught up.

    >>> policy = StaleSync(workers=2, staleness=1)
    >>> [policy.push(0, stamp=0).released, policy.push(0, stamp=1).released, policy.push(1, stamp=0).released]
    [(0,), (), (0, 1)]
    """

    goes_on = True
    local_steps = None

    def __init__(self, workers: int, staleness: int) -> None:
        if staleness < 0:
            raise UserError(f"ssp: staleness is {staleness}, expected 0 or more")
        self.shares, self._staleness = workers, staleness
        self.largest_gap = 0
        self.iterations = dict.fromkeys(range(workers), 0)
        self._waiting: set[int] = set()
        # the iterations of the slowest workers, and their number
        self._least, self._slowest = 0, workers

    def push(self, worker: int, stamp: int) -> Decision:
        own = self.iterations[worker] + 1
        self.iterations[worker] = own
        self._slowest -= own == self._least + 1
        if self._slowest and own <= self._least + self._staleness:  # nearly always
            released: tuple[int, ...] = (worker,)
        else:
            self._waiting.add(worker)
            released = () if self._slowest else self._released()
        if own - self._least > self.largest_gap:
            self.largest_gap = own - self._least
        return Decision(keeps=True, applies=True, released=released)

    def lose(self, worker: int) -> tuple[int, ...]:
        self._waiting.discard(worker)
        del self.iterations[worker]
        return self._released()

    def join(self, worker: int) -> None:
        """A restarted worker is as far as the slowest of the others."""
        self.iterations[worker] = min(self.iterations.values(), default=0)
        self._count()

    def _released(self) -> tuple[int, ...]:
        """Those of the waiting workers that the slowest have caught up with."""
        self._count()
        most = self._least + self._staleness
        found = sorted([one for one in self._waiting if self.iterations[one] <= most])
        self._waiting.difference_update(found)
        return tuple(found)

    def _count(self) -> None:
        all_iterations = list(self.iterations.values())
        self._least = min(all_iterations, default=0)
        self._slowest = all_iterations.count(self._least)


def sync(workers: int) -> Policy:
    """All workers wait for each other."""
    return Sync(workers)


def backup(workers: int, spare: int) -> Policy:
    """All workers but `spare` are waited for."""
    return Sync(workers, spare)


def asynchronous(workers: int) -> Policy:
    """Nobody waits."""
    return Async(workers)


def softsync(workers: int, n: int) -> Policy:
    """Updates of floor(workers / n) gradients, so that the mean staleness is about n."""
    if not 1 <= n <= workers:
        raise UserError(f"softsync: n is {n}, expected 1 to {workers}, the number of workers")
    return Async(workers, group=workers // n)


def ssp(workers: int, staleness: int) -> Policy:
    """Nobody is more than `staleness` iterations ahead of the slowest."""
    return StaleSync(workers, staleness)


def average(workers: int, every: int = MOST_STEPS) -> Policy:
    """Weights are averaged every `every` steps; by default once, at the end."""
    return Average(workers, every)


def find_policy(text: str, workers: int) -> tuple[Policy, bool]:
    """The policy `name` or `name:key=value,...` of some workers, and whether its rate is staleness-aware (`rate=staleness`).

    UserError if there is no such policy, or if a value does not fit.

    >>> policy, aware = find_policy("ssp:staleness=3,rate=staleness", workers=8)
    >>> policy.goes_on, aware
    (True, True)
    """
    return make_policy(Spec.parse(text), workers)
