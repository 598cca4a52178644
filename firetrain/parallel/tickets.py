"""A shared counter of shares of the training images: each share is trained on once, however fast the workers are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from firetrain.data.order import Samples, global_batches, share


class Tickets:
    """Numbers of the shares of all global batches of all epochs, one after another.

    A worker draws numbers, trains on these shares, and its push counts them as used. What a worker has drawn and will not push
    is drawn again.

    - `total`: how many there are. `used`: how many were trained on.
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._next = 0
        self._again: list[int] = []
        self._drawn: dict[int, list[int]] = {}  # by worker

    def draw(self, workers: Sequence[int], each: int = 1) -> dict[int, list[int]]:
        """The next numbers for these workers, dealt in turn: `each` for every worker, or fewer if no more are left."""
        count = min(each * len(workers), len(self._again) + self.total - self._next)
        again = min(count, len(self._again))
        fresh = range(self._next, self._next + count - again)
        numbers = [*self._again[:again], *fresh]
        self._again, self._next = self._again[again:], fresh.stop
        found = {worker: numbers[place :: len(workers)] for place, worker in enumerate(workers)}
        self._drawn.update(found)
        return found

    @property
    def working(self) -> list[int]:
        """The workers that have drawn numbers and not used them yet, ascending."""
        return sorted(worker for worker, numbers in self._drawn.items() if numbers)

    def use(self, worker: int) -> int:
        """Count what a worker has drawn as used; returns how many numbers these are."""
        count = len(self._drawn.pop(worker, ()))
        self.used += count
        return count

    def give_back(self, worker: int) -> None:
        """Let others draw what a worker has drawn and will not push."""
        self._again += self._drawn.pop(worker, [])

    def skip(self, count: int) -> None:
        """Count the first `count` numbers as used, by training under another strategy."""
        self.used = self._next = count

    def state(self) -> dict[str, Any]:
        """For a checkpoint. What was drawn and is not used yet will be drawn again."""
        drawn = [number for numbers in self._drawn.values() for number in numbers]
        return {"used": self.used, "next": self._next, "again": sorted([*self._again, *drawn])}

    def load(self, state: dict[str, Any]) -> None:
        """Go on after a checkpoint."""
        self.used, self._next, self._again = state["used"], state["next"], list(state["again"])


def samples_of(number: int, images: int, batch: int, seed: int, shares: int) -> tuple[int, Samples]:
    """(epoch, samples) of a number: one of `shares` shares of a global batch of `batch` of the `images` images.

    >>> epoch, samples = samples_of(number=5, images=6, batch=4, seed=1, shares=2)
    >>> epoch, len(samples)
    (1, 2)
    """
    epoch, within = divmod(number, -(-images // batch) * shares)
    step, part = divmod(within, shares)
    return epoch, share(_batches(images, batch, seed, epoch)[step], part, shares)


# workers are at most some shares apart, and so in one of two epochs
_batches = lru_cache(maxsize=2)(global_batches)
