"""Kaggle's Dogs vs. Cats: `train/cat.N.jpg` and `train/dog.N.jpg`. Its test images have no labels and are not used."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firetrain.data.draws import permutation
from firetrain.data.folders import images_in
from firetrain.data.images import Dataset, Files, existing
from firetrain.errors import UserError

CLASSES = ("cat", "dog")
VALIDATION_SHARE = 0.1


def dogs_vs_cats(root: Path, validation_share: float = VALIDATION_SHARE) -> Dataset:
    """The labelled images, of which a share of each class is kept for testing; the choice does not depend on the run's seed."""
    existing(root, "dogs-vs-cats", "train/cat.0.jpg, train/dog.0.jpg and so on")
    train: list[tuple[Path, int]] = []
    test: list[tuple[Path, int]] = []
    found = images_in(root / "train")
    for label, name in enumerate(CLASSES):
        paths = [path for path in found if path.name.startswith(f"{name}.")]
        kept = round(len(paths) * validation_share)
        if not 0 < kept < len(paths):
            raise UserError(
                f"{root / 'train'}: {len(paths)} images {name}.*.jpg, too few to keep {validation_share:.0%} for testing"
            )
        order = permutation(seed=0, epoch=0, count=len(paths), stream=10 + label)
        test += [(paths[index], label) for index in sorted(order[:kept])]
        train += [(paths[index], label) for index in sorted(order[kept:])]
    return Dataset("dogs-vs-cats", _files(train), _files(test))


def _files(pairs: list[tuple[Path, int]]) -> Files:
    paths, labels = zip(*pairs, strict=True)
    return Files(paths, np.asarray(labels, np.int64), CLASSES)
