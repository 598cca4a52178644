"""Opens the dataset of a config by its name."""

from __future__ import annotations

from pathlib import Path

from firetrain.config.sections.data import DataSection
from firetrain.data.digits import digits
from firetrain.data.dogs_vs_cats import VALIDATION_SHARE, dogs_vs_cats
from firetrain.data.folders import folders
from firetrain.data.idx import idx
from firetrain.data.images import Dataset
from firetrain.data.own import own_dataset
from firetrain.data.packed import packed
from firetrain.data.synthetic import CLASSES, IMAGES, synthetic
from firetrain.data.tiny_imagenet import tiny_imagenet


def open_dataset(section: DataSection) -> Dataset:
    """The dataset of a config; no image is decoded yet. UserError if files are missing or have the wrong format."""
    if section.own:
        return own_dataset(section.own, section.arguments or {})
    if section.name == "digits":
        return digits()
    if section.name == "synthetic":
        return synthetic(section.image_size, section.images or IMAGES, section.classes or CLASSES)
    root = Path(section.root or "")
    if section.name == "dogs-vs-cats":
        return dogs_vs_cats(root, section.validation_share or VALIDATION_SHARE)
    return {"folders": folders, "idx": idx, "packed": packed, "tiny-imagenet": tiny_imagenet}[section.name](root)
