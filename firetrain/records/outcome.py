"""The result of a simulated training, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from firetrain.records.count import Count

# gradients of which a plot shows when each worker computed
SHOWN = 200


class WorkerSpan(NamedTuple):
    """From pull to push: a worker pulls from `pulled_s` to `began_s`, computes until `ended_s`, and pushes until `arrived_s`."""

    worker: Count
    pulled_s: float
    began_s: float
    ended_s: float
    arrived_s: float


class Point(NamedTuple):
    """The server's weights after some gradients: virtual seconds, updates, and the score on the test images.

    `loss`: None if the weights have diverged.
    """

    seconds: float
    updates: Count
    top1: float
    loss: float | None


@dataclass(frozen=True)
class Outcome:
    """The result of training under a policy with one seed.

    - `seconds`: virtual time of the last evaluation; `target_s`: of the first one that reached `target`, the top-1 accuracy that
      was asked for; None if none did.
    - `curve`: the evaluations. `idle_share`: the share of the workers' time in which they do not compute.
    - `updates`: of the weights. `gradients`: all that arrived; of these `dropped` were not applied.
    - `staleness`: number of gradients that were applied, by staleness.
    - `spans`: when workers computed their first gradients.
    """

    policy: str
    workers: Count
    seed: Count
    target: float | None
    seconds: float
    target_s: float | None
    curve: tuple[Point, ...]
    updates: Count
    gradients: Count
    dropped: Count
    idle_share: float
    staleness: dict[Count, Count]
    spans: tuple[WorkerSpan, ...]

    @property
    def mean_staleness(self) -> float:
        """The mean over all gradients that were applied."""
        return mean_of(self.staleness)

    @property
    def seconds_per_update(self) -> float:
        """Virtual seconds between two updates, on average."""
        return self.seconds / max(1, self.updates)

    def as_json(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "mean_staleness": self.mean_staleness}


def mean_of(counts: Mapping[int, int]) -> float:
    """The mean of values that occurred so many times; 0 if there are none.

    >>> mean_of({0: 3, 4: 1})
    1.0
    """
    return sum(value * number for value, number in counts.items()) / max(1, sum(counts.values()))
