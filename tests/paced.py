"""Images that take a while to be read, so that a run for whose end nobody waits leaves the processors to other tests."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

# a small model on these images: two ranks take half an hour
PACED = (
    "--set", "model.name=lenet", "--set", "data.image_size=28", "--set", f"data.name={__file__}:noise", "--set",
    "data.arguments={pause_s: 0.005}", "--set", "target.top1=null", "--set", "target.max_epochs=500",
)  # fmt: skip
AT_ONCE = ("--set", "data.arguments={pause_s: 0}")


class Noise:
    """Images [28, 28, 3] of ten classes, each of which takes `pause_s` to be read."""

    def __init__(self, count: int, pause_s: float) -> None:
        self.targets = [number % 10 for number in range(count)]
        self._pause_s = pause_s

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        time.sleep(self._pause_s)
        return np.random.default_rng(number).integers(0, 256, (28, 28, 3), dtype=np.uint8), self.targets[number]


def noise(pause_s: float) -> tuple[Noise, Noise]:
    """1,437 training images, as many as the digits have, and a few test images, which take no time."""
    return Noise(1437, pause_s), Noise(50, 0.0)
