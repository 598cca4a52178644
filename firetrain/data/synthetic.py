"""Synthetic images that a network can learn to classify, for tests of speed and scale without data files."""

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
    """Images of one wave each: direction and frequency depend on the class, phase and noise on the sample."""

    count: int
    size: int
    classes: tuple[str, ...]
    split: int

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each sample, [samples], drawn at random from the sample's number."""
        drawn = words(0, self.split, np.arange(self.count), 20)
        labels: NDArray[np.int64] = (drawn % np.uint64(len(self.classes))).astype(np.int64)
        return labels

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """The sample's image as uint8 [size, size, 3]."""
        number = np.asarray([sample])
        label = int(words(0, self.split, number, 20)[0] % np.uint64(len(self.classes)))
        angle = np.pi * label / len(self.classes)
        cycles = 2 + label % 3
        phase = 2 * np.pi * uniform(0, self.split, number, 21)[0]
        axis = np.arange(self.size) / self.size
        along = axis[:, None] * np.sin(angle) + axis[None, :] * np.cos(angle)
        wave = 0.5 + 0.35 * np.sin(2 * np.pi * cycles * along + phase)
        pixels = np.arange(self.size**2 * 3).reshape(self.size, self.size, 3) + sample * self.size**2 * 3
        noise = 0.3 * (uniform(0, self.split, pixels, 22) - 0.5)
        result: Pixels = np.clip((wave[:, :, None] + noise) * 255, 0, 255).astype(np.uint8)
        return result


def synthetic(image_size: int, images: int = IMAGES, classes: int = CLASSES) -> Dataset:
    """A dataset of `images` training images, and an eighth as many test images, with `image_size` pixels on each side."""
    names = tuple(f"wave-{number}" for number in range(classes))
    return Dataset("synthetic", Waves(images, image_size, names, 0), Waves(max(1, images // 8), image_size, names, 1))
