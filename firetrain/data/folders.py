"""Datasets with one folder per class: `train/<class>/*.jpg` and `val/<class>/*.jpg` (or test), like ImageNet and CIFAR."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firetrain.data.images import Dataset, Files, existing
from firetrain.data.layout import TEST_NAMES
from firetrain.errors import UserError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


def folders(root: Path) -> Dataset:
    """The dataset in `root`. Its classes are the sorted folder names in train; the test split may contain only these classes."""
    existing(root, "folders", "train/<class>/*.jpg and val/<class>/*.jpg or test/<class>/*.jpg")
    test_root = next((root / name for name in TEST_NAMES if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or test_root is None:
        found = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
        raise UserError(f"{root}: expected folders train and one of {', '.join(TEST_NAMES)} (found: {found})")
    classes = subfolders(root / "train")
    strange = sorted(set(subfolders(test_root)) - set(classes))
    if strange:
        raise UserError(f"{test_root}: contains classes that are not in {root / 'train'}: {', '.join(strange[:8])}")
    return Dataset("folders", split(root / "train", classes), split(test_root, classes))


def split(root: Path, classes: Sequence[str], inner: str = "") -> Files:
    """The images in each class's folder (or in its folder `inner`), sorted, so that their numbers are the same on any system."""
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        found = images_in(root / name / inner)
        paths += found
        labels += [number] * len(found)
    if not paths:
        raise UserError(
            f"{root}: no images in the folders of {len(classes)} classes (looked for {', '.join(sorted(SUFFIXES))})"
        )
    return Files(paths, np.asarray(labels, np.int64), classes)


def subfolders(root: Path) -> tuple[str, ...]:
    """The names of the folders in `root`, sorted."""
    return tuple(sorted(path.name for path in root.iterdir() if path.is_dir()))


def images_in(root: Path) -> list[Path]:
    """The regular files of images directly in `root`, recognised by suffix and sorted; none if `root` is not a folder."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:  # which knows the kind of most entries without asking the file system again
        return sorted(Path(one.path) for one in entries if Path(one.name).suffix.lower() in SUFFIXES and one.is_file())
