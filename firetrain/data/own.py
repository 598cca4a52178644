"""Datasets of the user's own: a pair of map-style datasets, as torchvision's and Hugging Face's are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import IterableDataset, Subset

from firetrain.config.imported import explained, line_of, load_own
from firetrain.config.own import Own
from firetrain.data.decode import BadImage, Pixels, Scratch, to_rgb
from firetrain.data.images import Dataset
from firetrain.errors import UserError
from firetrain.generators import seeded_generators

# of what a function draws when it makes the datasets; not the run's, so that seeds are compared on the same images
_SEED = 1
# how many images are read how often, to find out whether they change
_TRIED = 3
_TRAIN, _TEST = ("train",), ("test", "validation", "val")
# keys of items that are mappings, and names of columns
_IMAGE, _LABEL = ("image", "img"), ("label", "labels", "fine_label")


class OwnImages:
    """A split: items are (image, class) or a mapping with `image` and `label`; images are PIL's, or uint8 arrays.

    Arrays are [height, width], [height, width, 1] or [height, width, 3].
    """

    def __init__(self, name: str, items: Any, classes: Sequence[str] | None = None) -> None:
        self.name, self.items = name, items
        self.labels = _labels(name, items)
        found = _class_names(items) or classes or [str(number) for number in range(int(self.labels.max(initial=0)) + 1)]
        self.classes: Sequence[str] = tuple(map(str, found))

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """The sample's image; BadImage if the dataset raises an error, or returns something else."""
        try:
            image = _part(self.items[int(sample)], 0, _IMAGE)
        except Exception as error:  # the user's code may raise anything
            raise BadImage(f"{self.name}, image {sample}: {type(error).__name__}: {error}{line_of(error)}") from None
        if isinstance(image, Image.Image):
            image = to_rgb(image)
        if not (isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim in (2, 3)):
            what = f"{image.dtype} {list(image.shape)}" if hasattr(image, "dtype") else type(image).__name__
            advice = ": leave out transforms such as ToTensor, because images are normalised later"
            raise BadImage(
                f"{self.name}, image {sample}: expected an image of PIL or a uint8 array (got {what})"
                f"{advice if isinstance(image, torch.Tensor) else ''}"
            )
        image = image[:, :, None] if image.ndim == 2 else image
        if image.shape[2] not in (1, 3):
            raise BadImage(f"{self.name}, image {sample}: expected [height, width, 3] (got {list(image.shape)})")
        return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def own_dataset(own: Own, arguments: Mapping[str, Any]) -> Dataset:
    """The dataset that the user's function returns: (train, test), or a mapping with `train` and `test` or `validation`.

    UserError for what cannot be imported, called or used.
    """
    with (
        explained(own, "failed when it was called"),
        seeded_generators(_SEED),
    ):  # otherwise every rank would have images of its own
        made = load_own(own)(**arguments)
    with explained(own, "has no usable images"):
        train, test = _splits(own, made)
        trained = OwnImages(f"{own}, train", train)
        tested = OwnImages(f"{own}, test", test, trained.classes)
    for images in (trained, tested):
        _refuse_other_labels(images)
    if _changes(trained):
        print(
            f"note: {own}, train: an image is another one when it is read again. What its transforms draw is not the same after "
            "a restart, nor on another number of ranks",
            file=sys.stderr,
        )
    for name, split in (("training", trained), ("test", tested)):
        if max(split.labels, default=0) >= len(trained.classes):
            raise UserError(
                f"{own}: the largest {name} label is {max(split.labels)}, and there are {len(trained.classes)} classes"
            )
    return Dataset(own.attribute, trained, tested)


def _refuse_other_labels(images: OwnImages) -> None:
    """UserError if one of the first items has another class than the dataset says."""
    for sample in range(min(_TRIED, len(images.labels))):
        try:
            label = np.asarray(_part(images.items[sample], 1, _LABEL))
        except Exception:  # training tells what cannot be read, and what is no item
            return
        if label.dtype.kind in "iu" and label.size == 1 and int(label.flat[0]) != images.labels[sample]:
            raise UserError(
                f"{images.name}: item {sample} has class {int(label.flat[0])}, and the labels of the dataset say "
                f"{images.labels[sample]}"
            )


def _changes(images: OwnImages) -> bool:
    """Whether some of the first images are not the same when they are read again."""
    try:
        return any(
            not np.array_equal(images.read(sample), images.read(sample))
            for sample in range(min(_TRIED, len(images.labels)))
            for _ in range(_TRIED)
        )
    except BadImage:  # training tells which one
        return False


def _splits(own: Own, made: Any) -> tuple[Any, Any]:
    if isinstance(made, Mapping):
        found = [made[name] for names in (_TRAIN, _TEST) for name in [one for one in names if one in made][:1]]
    else:
        found = list(made) if isinstance(made, tuple | list) else []
    if len(found) != 2:
        what = f"a mapping with {', '.join(map(str, made))}" if isinstance(made, Mapping) else type(made).__name__
        raise UserError(
            f"{own} must return (training images, test images), or a mapping with {_TRAIN[0]} and {' or '.join(_TEST)} "
            f"(got {what})"
        )
    for name, split in zip(("train", "test"), found, strict=True):
        iterable = isinstance(split, IterableDataset)  # which inherits [number], but has none
        if iterable or not (hasattr(split, "__getitem__") and hasattr(split, "__len__")):
            raise UserError(
                f"{own}, {name}: {type(split).__name__} can only be iterated; it needs len() and [number], because the order of "
                "images is a function of seed and epoch"
            )
        if not len(split):
            raise UserError(f"{own}, {name}: {type(split).__name__} has no images")
    return found[0], found[1]


def _labels(name: str, items: Any) -> NDArray[np.int64]:
    """The class of each item: `labels`, `targets`, a column, or else what reading all items once finds.

    Labels that torchvision's `target_transform` changes are those of the items.
    """
    known = _known_labels(items)
    if known is not None:
        return _whole_numbers(name, known, len(items))
    print(
        f"note: {name}: its labels are known from its items only: all {len(items):,} are read once to find the classes",
        file=sys.stderr,
    )
    try:
        found = [_part(items[number], 1, _LABEL) for number in range(len(items))]
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"{name}: cannot be read: {type(error).__name__}: {error}{line_of(error)}") from error
    return _whole_numbers(name, found, len(items))


def _known_labels(items: Any) -> Any:
    """The classes of a dataset that has them without reading its items, or of a part of one (torch's Subset); otherwise None."""
    if isinstance(items, Subset):
        known = _known_labels(items.dataset)
        return None if known is None else np.asarray(known)[np.asarray(items.indices, np.int64)]
    for key in ("labels", "targets"):
        known = getattr(items, key, None) if getattr(items, "target_transform", None) is None else None
        if known is not None and not callable(known):
            return known
    columns = getattr(items, "column_names", None) or ()
    return next((items[column] for column in _LABEL if column in columns), None)


def _whole_numbers(name: str, values: Any, count: int) -> NDArray[np.int64]:
    numbers = np.asarray(list(values) if isinstance(values, Iterable) else values)
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu" or (count and numbers.min() < 0):
        is_negative = numbers.shape == (count,) and numbers.dtype.kind == "i"
        text = ", texts: number the classes from 0" if numbers.dtype.kind in "US" else ""
        found = f"{numbers.min()}" if is_negative else f"{numbers.dtype} {list(numbers.shape)}{text}"
        raise UserError(f"{name}: expected a class from 0 for each of {count} images (got {found})")
    return numbers.astype(np.int64)


def _class_names(items: Any) -> Sequence[str] | None:
    """The names of the classes, as torchvision (`classes`) or Hugging Face (`features`) has them."""
    if isinstance(items, Subset):
        return _class_names(items.dataset)
    found = getattr(items, "classes", None)
    if isinstance(found, Sequence) and not isinstance(found, str) and found:
        return list(found)
    features = getattr(items, "features", None)
    if isinstance(features, Mapping):
        return next((features[key].names for key in _LABEL if hasattr(features.get(key), "names")), None)
    return None


def _part(item: Any, index: int, keys: Sequence[str]) -> Any:
    if isinstance(item, tuple | list):
        return item[index]
    if not isinstance(item, Mapping):  # such as an image, whose first row would be taken for one
        raise TypeError(f"an item is {type(item).__name__}, and not (image, class) or a mapping with both")
    key = next((key for key in keys if key in item), None)
    if key is None:
        raise LookupError(f"an item has {', '.join(map(repr, item))}, and neither {' nor '.join(map(repr, keys))}")
    return item[key]
