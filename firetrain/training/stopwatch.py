"""Measures the parts of a step's time on the host or on the GPU, without blocking either."""

from __future__ import annotations

from typing import Any

import torch

from firetrain.cluster import Clock
from firetrain.transport.device import is_gpu


class Stopwatch:
    """Adds up the time between marks by part. On a GPU, marks are events on the current stream, which only `totals` reads."""

    def __init__(self, device: torch.device, clock: Clock) -> None:
        self._on_gpu = is_gpu(device)
        self._clock = clock
        self._marks: list[tuple[str, Any]] = []
        self._totals: dict[str, float] = {}

    def start(self) -> None:
        """Restart; the time since the last mark belongs to no part."""
        self._settle()
        self._marks = [("", self._now())]

    def mark(self, part: str) -> None:
        """Count the time since the last mark as time of `part`."""
        self._marks.append((part, self._now()))

    def totals(self) -> dict[str, float]:
        """Seconds of each part since the last call; on a GPU this waits for the device."""
        self._settle()
        totals, self._totals = self._totals, {}
        return totals

    def _now(self) -> Any:
        if not self._on_gpu:
            return self._clock.now_s()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _settle(self) -> None:
        if self._on_gpu and self._marks:
            self._marks[-1][1].synchronize()
        for (_, before), (part, after) in zip(self._marks, self._marks[1:], strict=False):
            seconds = before.elapsed_time(after) / 1000 if self._on_gpu else after - before
            self._totals[part] = self._totals.get(part, 0.0) + seconds
        self._marks = self._marks[-1:]
