"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, part of that package (Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firetrain.data.draws import permutation
from firetrain.data.images import Arrays, Dataset
from firetrain.errors import UserError

TEST_IMAGES = 360


def digits() -> Dataset:
    """The digits, split into 1,437 training and 360 test images; the split does not depend on the run's seed."""
    rows = _rows()
    pixels = np.round(rows[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    labels = rows[:, -1].astype(np.int64)
    order = permutation(seed=0, epoch=0, count=len(labels), stream=9)
    classes = tuple(map(str, range(10)))
    splits = (order[TEST_IMAGES:], order[:TEST_IMAGES])
    train, test = (Arrays(pixels[chosen], labels[chosen], classes) for chosen in splits)
    return Dataset("digits", train, test)


def _rows() -> NDArray[np.float64]:
    """The 64 pixels (0 to 16) and the label of each image, float64 [1797, 65].

    The file is read without importing scikit-learn, because the import takes a second on each rank. UserError without it.
    """
    package = find_spec("sklearn")
    path = Path(package.origin if package and package.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise UserError("the digits are part of scikit-learn, which is not installed: pip install scikit-learn")
    with gzip.open(path) as file:
        return np.loadtxt(file, delimiter=",")
