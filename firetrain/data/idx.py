"""Datasets in idx files, plain or gzipped, like MNIST and Fashion-MNIST (format: yann.lecun.com/exdb/mnist, section "IDX")."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firetrain.data.images import Arrays, Dataset, existing
from firetrain.errors import UserError

_UNSIGNED_BYTE = 8


def idx(root: Path) -> Dataset:
    """The dataset in `root`: `train-images-idx3-ubyte[.gz]` and its three companion files."""
    existing(
        root,
        "idx",
        "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-..., t10k-labels-..., each plain or .gz",
    )
    train, test = _split(root, "train"), _split(root, "t10k")
    if max(test.labels, default=0) >= len(train.classes):
        raise UserError(
            f"{root}: the largest test label is {max(test.labels)}, the largest training label {len(train.classes) - 1}"
        )
    return Dataset("idx", train, Arrays(test.pixels, test.labels, train.classes))


def _split(root: Path, prefix: str) -> Arrays:
    images_path, pixels = _read(root, f"{prefix}-images-idx3-ubyte", dimensions=3)
    labels_path, labels = _read(root, f"{prefix}-labels-idx1-ubyte", dimensions=1)
    if len(pixels) != len(labels):
        raise UserError(f"{images_path} has {len(pixels)} images, {labels_path} has {len(labels)} labels")
    classes = tuple(str(number) for number in range(int(labels.max(initial=0)) + 1))
    return Arrays(pixels, labels.astype(np.int64), classes)


def _read(root: Path, name: str, dimensions: int) -> tuple[Path, NDArray[Any]]:
    """The path of an idx file and its array. Format: two zero bytes, type, dimensions, big-endian 32-bit sizes, data."""
    candidates = [root / name, root / f"{name}.gz", root / name.replace("-idx", ".idx")]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise UserError(f"idx: found neither {candidates[0]} nor {candidates[1].name}")
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE or data[3] != dimensions:
        raise UserError(
            f"{path}: not an idx file of unsigned bytes in {dimensions} dimensions (starts with {data[:4].hex(' ')})"
        )
    header = 4 + 4 * dimensions
    sizes = struct.unpack(f">{dimensions}I", data[4:header]) if len(data) >= header else ()
    if len(data) - header != math.prod(sizes):
        raise UserError(
            f"{path}: truncated or too long ({len(data) - header} bytes of data, sizes {'x'.join(map(str, sizes))})"
        )
    # torch warns of arrays that cannot be written to
    return path, np.frombuffer(bytearray(data), np.uint8, offset=header).reshape(sizes)
