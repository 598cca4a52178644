"""Splits of datasets: labelled images, read one at a time from files or kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from firetrain.data.decode import Pixels, Scratch, read_image
from firetrain.errors import UserError


class Images(Protocol):
    """The labelled images of a split; samples are numbered from 0 to len(labels)-1."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each sample, [samples]."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes, by number."""

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """The image as uint8 [height, width, 3]; BadImage if it cannot be read.

        With `scratch` the pixels may be valid only until the thread's next read.
        """


@dataclass(frozen=True)
class Files:
    """Images in files, which are read when they are needed."""

    paths: Sequence[Path]
    labels: NDArray[np.int64]
    classes: Sequence[str]

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """Read and decode the sample's file."""
        return read_image(self.paths[sample], scratch)


@dataclass(frozen=True)
class Arrays:
    """Images in memory: uint8 [samples, height, width] (grayscale) or [samples, height, width, 3]."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: Sequence[str]

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """The sample's image, with three channels."""
        image: NDArray[Any] = self.pixels[sample]
        return image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)


@dataclass(frozen=True)
class Dataset:
    """The training and test images of a dataset, which have the same classes."""

    name: str
    train: Images
    test: Images

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes, by number."""
        return self.train.classes


def existing(root: Path, what: str, hint: str) -> Path:
    """Return `root`; UserError with the expected content if it does not exist."""
    if not root.exists():
        raise UserError(
            f"{what}: no such folder: {root}; use --set data.root=FOLDER with a folder that contains {hint}"
        )
    return root
