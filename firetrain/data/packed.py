"""Datasets whose decoded images lie one after another in large files; reading an image opens no file and decodes nothing.

A packed folder contains `packed.json` (names and sizes), and for each split an index (`train-index.npy`) and shards
(`train-00000.bin`, ...), which are uint8 images [height, width, 3] without gaps. Samples keep their numbers: order, augmentation
and resumed runs are the same as with the files that were packed, for any number of ranks.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from firetrain.config.files import read_regular
from firetrain.data.crop import Box, resize
from firetrain.data.decode import BadImage, Pixels, Scratch
from firetrain.data.images import Arrays, Dataset, Images, existing
from firetrain.data.layout import PACKED
from firetrain.errors import CannotCreate, UserError
from firetrain.records.file import cannot_write, write_whole

_VERSION = 1
_SPLITS = ("train", "test")
# columns of an index, one row per image
_SHARD, _OFFSET, _HEIGHT, _WIDTH, _LABEL = range(5)
_AT_ONCE = 64
# of an image's height and width
_MOST_PIXELS = 1 << 20


class _PackedSplit(BaseModel):
    """A split in packed.json."""

    images: Annotated[int, Field(ge=1)]
    shards_bytes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]


class _PackedSplits(BaseModel):
    train: _PackedSplit
    test: _PackedSplit


class _PackedFile(BaseModel):
    """What packed.json must have to be read."""

    version: int
    source: str
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    splits: _PackedSplits


@dataclass(frozen=True)
class Packed:
    """The images of a packed split. `index`: int64 [samples, 5]; `shards`: the bytes of each shard."""

    index: NDArray[np.int64]
    shards: Sequence[NDArray[np.uint8]]
    classes: Sequence[str]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each sample, [samples]."""
        labels: NDArray[np.int64] = self.index[:, _LABEL]
        return labels

    def read(self, sample: int, scratch: Scratch | None = None) -> Pixels:
        """The sample's image as uint8 [height, width, 3]."""
        shard, offset, height, width, _ = self.index[sample].tolist()
        pixels: Pixels = self.shards[shard][offset : offset + height * width * 3].reshape(height, width, 3)
        return pixels

    def arrays(self) -> list[Arrays]:
        """The images of each shard as one array; empty if sizes differ, or if images do not follow one another."""
        height, width = self.index[0, _HEIGHT : _WIDTH + 1].tolist()
        found, image_bytes = [], height * width * 3
        for number, shard in enumerate(self.shards):
            rows = self.index[self.index[:, _SHARD] == number]
            offsets = np.arange(len(rows)) * image_bytes
            wanted = np.stack([offsets, np.full_like(offsets, height), np.full_like(offsets, width)], axis=1)
            if not np.array_equal(rows[:, _OFFSET : _WIDTH + 1], wanted):
                return []
            pixels = shard[: len(rows) * image_bytes].reshape(len(rows), height, width, 3)
            found.append(Arrays(pixels, rows[:, _LABEL].copy(), self.classes))
        return found if (np.diff(self.index[:, _SHARD]) >= 0).all() else []


def pack(
    dataset: Dataset, folder: Path, shorter_side: int | None, shard_bytes: int, *, threads: int, skip_bad: bool
) -> dict[str, Any]:
    """Write a dataset as packed images into a new or empty `folder`; returns the content of packed.json.

    - `shorter_side`: reduce larger images to this many pixels on their shorter side; None: keep the sizes.
    - `shard_bytes`: least size of a shard before the next one begins.
    - `skip_bad`: leave out images that cannot be read; otherwise BadImage ends the packing.

    CannotCreate if the folder has content or cannot be written; nothing is left in it then, as after any other error.
    """
    with cannot_write(folder, CannotCreate):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CannotCreate(f"{folder} has content already: give a new folder, or empty this one")
    try:
        splits = {}
        for name, images in zip(_SPLITS, (dataset.train, dataset.test), strict=True):
            with cannot_write(folder, CannotCreate):
                rows, sizes = _write(images, folder, name, shorter_side, shard_bytes, threads, skip_bad)
            index = io.BytesIO()
            np.save(index, rows, allow_pickle=False)
            write_whole(folder / f"{name}-index.npy", index.getvalue(), kind=CannotCreate)
            splits[name] = {"images": len(rows), "left_out": len(images.labels) - len(rows), "shards_bytes": sizes}
        content = {
            "version": _VERSION, "source": dataset.name, "classes": list(dataset.classes), "shorter_side": shorter_side,
            "splits": splits,
        }  # fmt: skip
        write_whole(folder / PACKED, json.dumps(content, indent=1), kind=CannotCreate)
    except BaseException:  # a folder without packed.json is useless, and the next attempt wants an empty one
        for path in folder.iterdir():
            path.unlink()
        raise
    return content


def packed(root: Path) -> Dataset:
    """The dataset in a packed folder; images are mapped into memory and read when they are needed.

    UserError if the folder is incomplete or damaged.
    """
    existing(root, "packed", "packed.json (firetrain data pack writes one)")
    content = _content(root / PACKED)
    train, test = (
        _split(root, name, content.classes, split)
        for name, split in zip(_SPLITS, dict(content.splits).values(), strict=True)
    )
    return Dataset(f"{content.source} (packed)", train, test)


def _write(
    images: Images, folder: Path, name: str, shorter_side: int | None, shard_bytes: int, threads: int, skip_bad: bool
) -> tuple[NDArray[np.int64], list[int]]:
    """Write the shards of a split; returns its index and the sizes of the shards."""
    rows: list[tuple[int, ...]] = []
    sizes: list[int] = []
    file: BinaryIO | None = None
    try:
        for label, pixels in _decoded(images, shorter_side, threads, skip_bad):
            if file is None or sizes[-1] >= shard_bytes:
                if file is not None:
                    file.close()
                file = (folder / f"{name}-{len(sizes):05}.bin").open("xb")
                sizes.append(0)
            rows.append((len(sizes) - 1, sizes[-1], *pixels.shape[:2], label))
            file.write(pixels.tobytes())
            sizes[-1] += pixels.size
    finally:
        if file is not None:
            file.close()
    return np.array(rows, dtype=np.int64).reshape(-1, 5), sizes


def _decoded(images: Images, shorter_side: int | None, threads: int, skip_bad: bool) -> Iterator[tuple[int, Pixels]]:
    """(label, pixels) of each image, in order."""

    def one(sample: int) -> Pixels | BadImage:
        try:
            return _reduced(images.read(sample), shorter_side)
        except BadImage as error:
            return error

    labels, samples = images.labels, iter(range(len(images.labels)))
    with ThreadPoolExecutor(threads) as pool:
        while some := list(islice(samples, _AT_ONCE)):
            for sample, found in zip(some, pool.map(one, some), strict=True):
                if not isinstance(found, BadImage):
                    yield int(labels[sample]), found
                elif not skip_bad:
                    raise found


def _reduced(pixels: Pixels, shorter_side: int | None) -> Pixels:
    """The whole image with `shorter_side` pixels on its shorter side, antialiased; unchanged if it is not larger."""
    height, width, _ = pixels.shape
    if shorter_side is None or min(height, width) <= shorter_side:
        return pixels
    scale = shorter_side / min(height, width)
    size = max(shorter_side, round(height * scale)), max(shorter_side, round(width * scale))
    out = torch.empty((1, 3, *size), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    resize(pixels, Box(0, 0, height, width), out[0])
    reduced: Pixels = np.ascontiguousarray(out[0].permute(1, 2, 0).numpy())
    return reduced


def _content(path: Path) -> _PackedFile:
    """The content of packed.json; UserError if it is missing, damaged, or of another version."""
    try:
        content = _PackedFile.model_validate_json(read_regular(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "text"
        raise UserError(
            f"{path} cannot be read: {where}: {first['msg']}; pack the data again with firetrain data pack"
        ) from None
    if content.version != _VERSION:
        raise UserError(f"{path} has version {content.version}; this firetrain reads version {_VERSION}: pack again")
    return content


def _split(root: Path, name: str, classes: Sequence[str], listed: _PackedSplit) -> Images:
    path, sizes = root / f"{name}-index.npy", listed.shards_bytes
    try:
        index = np.lib.format.read_array(io.BytesIO(read_regular(path)), allow_pickle=False)
        if index.dtype != np.int64 or index.shape != (listed.images, 5):
            raise ValueError(f"not an index of {listed.images} images: {index.dtype} {index.shape}")
        ends = index[:, _OFFSET] + index[:, _HEIGHT] * index[:, _WIDTH] * 3
        within = (
            (index >= 0).all()
            and (index[:, _SHARD] < len(sizes)).all()
            and (index[:, _LABEL] < len(classes)).all()
            and (index[:, _OFFSET] <= max(sizes)).all()  # so that the sums above do not overflow
            and (index[:, _HEIGHT : _WIDTH + 1] > 0).all()
            and (index[:, _HEIGHT : _WIDTH + 1] <= _MOST_PIXELS).all()
        )
        if not within or not (ends <= np.array(sizes)[index[:, _SHARD]]).all():
            raise ValueError("an image lies outside its shard")
        shards = []
        for number, size in enumerate(sizes):
            path = root / f"{name}-{number:05}.bin"
            if path.stat().st_size != size:
                raise ValueError(f"{path.stat().st_size} bytes, expected {size}")
            shards.append(np.memmap(path, np.uint8, "c"))
    except (OSError, ValueError, EOFError, MemoryError, SyntaxError, TokenError) as error:
        raise UserError(f"{path} cannot be read: {error}; pack the data again with firetrain data pack") from None
    split = Packed(index, shards, classes)
    arrays = split.arrays()
    return arrays[0] if len(arrays) == 1 else split
