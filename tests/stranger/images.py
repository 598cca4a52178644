"""Images of somebody who does not know firetrain: a bright square whose place is its class."""

from typing import Any

import numpy as np
from PIL import Image


class Squares:
    """Square number k of a grid of 3 x 3 is bright in images of class k."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self._size, self._seed = size, seed
        self.targets = [int(one) for one in np.random.default_rng(seed).integers(0, 9, count)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        label, third = self.targets[number], self._size // 3
        pixels = np.random.default_rng([self._seed, number]).integers(
            0, 120, (self._size, self._size, 3), dtype=np.uint8
        )
        row, column = divmod(label, 3)
        pixels[row * third : (row + 1) * third, column * third : (column + 1) * third] += 100
        return Image.fromarray(pixels), label


def squares(count: int = 2000, size: int = 24) -> tuple[Squares, Squares]:
    """Training and test images."""
    return Squares(count, size, 1), Squares(count // 4, size, 2)
