"""Images made by a formula, which a network can learn: for speed and scale, where no data is at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firetrain.data.decode import Pixels, Scratch
from firetrain.data.draws import uniform, words
from firetrain.data.images import Dataset

IMAGES = 4096
CLASSES = 10


@dataclass(frozen=True)
class Waves:
    """A wave per image: its direction and frequency tell the class, its phase and the noise on it are the sample's own."""

    count: int
    size: int
    classes: tuple[str, ...]
    split: int

    @property
    def labels(self) -> NDArray[np.int64]:
        """Drawn from the sample's number."""
        drawn = words(0, self.split, np.arange(self.count), 20)
        labels: NDArray[np.int64] = (drawn % np.uint64(len(self.classes))).astype(np.int64)
        return labels

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """uint8 [size, size, 3]."""
        number = np.asarray([sample])
        label = int(words(0, self.split, number, 20)[0] % np.uint64(len(self.classes)))
        angle = np.pi * label / len(self.classes)
        cycles = 2 + label % 3
        phase = 2 * np.pi * uniform(0, self.split, number, 21)[0]
        axis = np.arange(self.size) / self.size
        along = axis[:, None] * np.sin(angle) + axis[None, :] * np.cos(angle)
        wave = 0.5 + 0.35 * np.sin(2 * np.pi * cycles * along + phase)
        places = np.arange(self.size**2 * 3).reshape(self.size, self.size, 3) + sample * self.size**2 * 3
        noise = 0.3 * (uniform(0, self.split, places, 22) - 0.5)
        result: Pixels = np.clip((wave[:, :, None] + noise) * 255, 0, 255).astype(np.uint8)
        return result


def synthetic(image_size: int, images: int = IMAGES, classes: int = CLASSES) -> Dataset:
    """`images` to train on and an eighth of it to test, of `image_size` pixels on each side."""
    names = tuple(f"wave-{number}" for number in range(classes))
    return Dataset("synthetic", Waves(images, image_size, names, 0), Waves(max(1, images // 8), image_size, names, 1))
