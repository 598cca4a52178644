"""scikit-learn's handwritten digits: 1,797 images of 8x8 pixels, part of that package (Alpaydin and Kaynak 1998)."""

from __future__ import annotations

import numpy as np

from firetrain.data.draws import permutation
from firetrain.data.images import Arrays, Dataset

TEST_IMAGES = 360


def digits() -> Dataset:
    """The digits, split into 1,437 training and 360 test images; the split does not depend on the run's seed."""
    from sklearn.datasets import load_digits  # imported here, because it takes a second

    bunch = load_digits()
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)
    labels = bunch.target.astype(np.int64)
    order = permutation(seed=0, epoch=0, count=len(labels), stream=9)
    classes = tuple(map(str, range(10)))
    splits = (order[TEST_IMAGES:], order[:TEST_IMAGES])
    train, test = (Arrays(pixels[chosen], labels[chosen], classes) for chosen in splits)
    return Dataset("digits", train, test)
