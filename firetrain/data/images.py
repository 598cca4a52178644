"""A split of a dataset: labelled images, read one at a time or held in memory."""

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
    """Labelled images of one split; sample numbers run from 0 to len(labels)-1."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each sample, [samples]."""

    @property
    def classes(self) -> Sequence[str]:
        """The classes' names, by number."""

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """The image as uint8 [height, width, 3]; BadImage if it cannot be read.

        With `scratch` it may be valid only until the thread's next read.
        """


@dataclass(frozen=True)
class Files:
    """Images in files."""

    paths: Sequence[Path]
    labels: NDArray[np.int64]
    classes: Sequence[str]

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """Read and decode the file."""
        return read_image(self.paths[sample], scratch)


@dataclass(frozen=True)
class Arrays:
    """Images in memory, uint8 [samples, height, width], grayscale, or [samples, height, width, 3]."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: Sequence[str]

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """One image with three channels."""
        image: NDArray[Any] = self.pixels[sample]
        return image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2)


@dataclass(frozen=True)
class Dataset:
    """What a model is trained on and what it is evaluated on; both have the same classes."""

    name: str
    train: Images
    test: Images

    @property
    def classes(self) -> Sequence[str]:
        """The classes' names, by number."""
        return self.train.classes


def existing(root: Path, what: str, hint: str) -> Path:
    """`root`, or UserError that says what was expected there."""
    if not root.exists():
        raise UserError(f"{what}: nothing at {root}; expected {hint}; point to it with --set data.root=FOLDER")
    return root
