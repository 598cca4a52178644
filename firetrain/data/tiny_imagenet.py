"""Tiny ImageNet in its distributed layout: training images in a folder per class, validation labels in one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from firetrain.config.files import read_regular
from firetrain.data.folders import split, subfolders
from firetrain.data.images import Dataset, Files, existing
from firetrain.data.layout import TINY_IMAGENET
from firetrain.errors import UserError


def tiny_imagenet(root: Path) -> Dataset:
    """The dataset in `root`, or in its folder `tiny-imagenet-200`.

    Expects `train/<wnid>/images/*`, and `val/images/*` with `val/val_annotations.txt`. The classes are those with a folder in
    train, so a subset with the full `wnids.txt` works; validation images of other classes are left out.
    """
    existing(root, "tiny-imagenet", "train/<wnid>/images, val/images and val/val_annotations.txt")
    if (root / TINY_IMAGENET).is_dir():
        root = root / TINY_IMAGENET
    annotations = root / "val" / "val_annotations.txt"
    if not (root / "train").is_dir() or not annotations.is_file():
        raise UserError(f"{root}: expected train/<wnid>/images and val/val_annotations.txt")
    classes = subfolders(root / "train")
    return Dataset("tiny-imagenet", split(root / "train", classes, "images"), _validation(annotations, classes))


def _validation(annotations: Path, classes: tuple[str, ...]) -> Files:
    """Read lines of `file <tab> wnid <tab> box`; the images are in the folder `images` next to the file."""
    number = {wnid: index for index, wnid in enumerate(classes)}
    paths, labels = [], []
    for line_number, line in enumerate(_text(annotations).splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise UserError(f"{annotations}:{line_number}: expected file <tab> wnid (got {line!r})")
        if fields[1] in number:
            paths.append(annotations.parent / "images" / fields[0])
            labels.append(number[fields[1]])
    return Files(paths, np.asarray(labels, np.int64), classes)


def _text(path: Path) -> str:
    """The content of a UTF-8 file; UserError with the line that is something else."""
    content = read_regular(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: not UTF-8 (byte {content[error.start]:#04x})") from None
