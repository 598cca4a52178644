"""The ledger of a parameter server, which counts what its workers report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from firetrain.cluster import Clock, World
from firetrain.records import Run
from firetrain.records.parts import COMPUTE, EXPOSED, OF_A_STEP, Part
from firetrain.training.evaluation import Score
from firetrain.training.ledger import Ledger
from firetrain.transport.transport import Transport


class ServerLedger(Ledger):
    """Counts steps by images: a step is as many gradients as a global batch is divided into, however many updates they made.

    The parts of a step are means over the workers that are `present`.
    """

    def __init__(
        self, record: Run, transport: Transport, clock: Clock, began: float | None, world: World, servers: int
    ) -> None:
        super().__init__(record, transport, clock, began, world)
        self._servers = servers
        self._totals_s: dict[Part, float] = {}
        self.present = world.size - servers
        self._compute_s = [0.0] * (world.size - servers)
        self._paused_s = [0.0] * (world.size - servers)  # while workers waited for what no step consists of

    def greet(self, opening_s: float) -> None:
        """Count a worker that began to open its data `opening_s` ago; the clock starts with the last one.

        Otherwise accuracies would seem to take longer than with strategies whose ranks meet before they open their data.
        """
        self.put_off(max(0.0, self._clock.now_s() - self._started_s - opening_s))

    def take(self, worker: int, seconds: Mapping[str, float], images: int) -> None:
        """Count a push: the worker's seconds since the one before, by the part's key, and its images."""
        own, waited_s = dict(seconds), seconds.get(EXPOSED.key, 0.0)
        # who computed during a pause waits that much less afterwards, so that no second is counted twice
        cut_s = min(waited_s, self._paused_s[worker])
        own[EXPOSED.key] = waited_s - cut_s
        self._paused_s[worker] -= cut_s
        for part in OF_A_STEP:
            self._totals_s[part] = self._totals_s.get(part, 0.0) + own.get(part.key, 0.0)
        self._compute_s[worker] += seconds.get(COMPUTE.key, 0.0)
        self.images += images

    def take_back(self, worker: int, present: int) -> None:
        """Count a worker that was started again, and has waited in no pause, among those that are `present`."""
        self.present = present
        self._paused_s[worker] = 0.0

    @contextmanager
    def evaluation(self, epoch: int) -> Iterator[list[Score]]:
        """As `Ledger.evaluation`; workers wait meanwhile."""
        with self._pause(), super().evaluation(epoch) as scores:
            yield scores

    @contextmanager
    def checkpoint(self, last: bool) -> Iterator[None]:
        """As `Ledger.checkpoint`; workers wait meanwhile."""
        with self._pause(), super().checkpoint(last):
            yield

    @contextmanager
    def _pause(self) -> Iterator[None]:
        before_s = self._clock.now_s()
        yield
        took_s = self._clock.now_s() - before_s
        self._paused_s = [paused_s + took_s for paused_s in self._paused_s]

    def _spans(self) -> dict[Part, float]:
        found, self._totals_s = self._totals_s, {}
        return {part: seconds / self.present for part, seconds in found.items() if seconds}

    def _over_ranks(self) -> dict[str, Any]:
        """The worker with the longest compute time in this attempt, and the mean compute time."""
        slowest = max(range(len(self._compute_s)), key=self._compute_s.__getitem__)
        mean_s = sum(self._compute_s) / len(self._compute_s)
        return {
            "slowest_rank": self._servers + slowest,
            "slowest_compute_s": self._compute_s[slowest],
            "mean_compute_s": mean_s,
        }
