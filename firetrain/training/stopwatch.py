"""Measures the parts of a step's time on the host or on the GPU, without blocking either."""

from __future__ import annotations

from typing import Any

import torch

from firetrain.cluster import Clock
from firetrain.records.parts import Part
from firetrain.transport.device import is_gpu, timing_event


class Stopwatch:
    """Adds up the laps of each part. On a GPU, a lap ends with an event on the current stream, which only `totals` reads."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._on_gpu = is_gpu(device)
        self._clock = clock
        self._ends: list[tuple[Part | None, Any]] = []
        self._totals: dict[Part, float] = {}

    def start(self) -> None:
        """Restart; the time since the last lap belongs to no part."""
        self._settle()
        self._ends = [(None, self._now())]

    def lap(self, part: Part) -> None:
        """End a lap: the time since the end of the previous one was spent on `part`."""
        self._ends.append((part, self._now()))

    def totals(self) -> dict[Part, float]:
        """Seconds of each part since the last call; on a GPU this waits for the device."""
        self._settle()
        totals, self._totals = self._totals, {}
        return totals

    def _now(self) -> Any:
        return timing_event() if self._on_gpu else self._clock.now_s()

    def _settle(self) -> None:
        if self._on_gpu and self._ends:
            self._ends[-1][1].synchronize()
        for (_, before), (part, after) in zip(self._ends, self._ends[1:], strict=False):
            seconds = before.elapsed_time(after) / 1000 if self._on_gpu else after - before
            if part is not None:
                self._totals[part] = self._totals.get(part, 0.0) + seconds
        self._ends = self._ends[-1:]
