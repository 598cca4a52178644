"""Each dataset's layout is read correctly, and missing files are reported."""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from firetrain.data.digits import digits
from firetrain.data.dogs_vs_cats import dogs_vs_cats
from firetrain.data.folders import folders
from firetrain.data.idx import idx
from firetrain.data.images import Arrays
from firetrain.data.layout import fault_of
from firetrain.data.synthetic import synthetic
from firetrain.data.tiny_imagenet import tiny_imagenet
from firetrain.errors import UserError


def test_digits_are_split_without_overlap() -> None:
    data = digits()
    assert (len(data.train.labels), len(data.test.labels), len(data.classes)) == (1437, 360, 10)
    images = {data.train.read(n).tobytes() for n in range(1437)} & {data.test.read(n).tobytes() for n in range(360)}
    assert not images
    assert np.bincount(data.test.labels).min() > 20


def test_pixels_in_memory_may_be_written_to_so_that_torch_does_not_warn(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6, zipped=True)
    write_idx(tmp_path, "t10k", 3, zipped=False)
    for data in (digits(), idx(tmp_path)):
        for split in (data.train, data.test):
            assert isinstance(split, Arrays) and split.pixels.flags.writeable


def test_digits_are_scikit_learn_s_own_and_are_read_without_importing_it() -> None:
    program = """
import sys, numpy as np
from firetrain.data.digits import digits
data = digits()
assert "sklearn" not in sys.modules
from sklearn.datasets import load_digits
theirs = load_digits()
def seen(images, labels):
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels))
ours = [seen([split.read(n)[..., 0] for n in range(len(split.labels))], split.labels) for split in (data.train, data.test)]
assert sorted(ours[0] + ours[1]) == seen(np.round(theirs.images * (255 / 16)).astype(np.uint8), theirs.target)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_mnist_is_complete_and_its_first_digit_is_a_five(archive: Callable[[str], Path]) -> None:
    data = idx(archive("mnist"))
    assert (len(data.train.labels), len(data.test.labels)) == (60_000, 10_000)
    assert data.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert data.train.read(0).shape == (28, 28, 3) and data.train.read(0).max() == 255


@pytest.mark.parametrize(
    ("name", "there", "told"),
    [
        ("folders", ("train", "test"), ""), ("folders", ("train", "validation"), ""),
        ("folders", ("cat", "dog"), "folders needs train, val or test or validation in {root} (found: cat, dog)"),
        ("tiny-imagenet", ("tiny-imagenet-200/train", "tiny-imagenet-200/val"), ""),
        ("tiny-imagenet", ("train",), "tiny-imagenet needs val in"),
        ("dogs-vs-cats", ("test1",), "dogs-vs-cats needs train in"), ("packed", ("train-0.bin",), "packed needs packed.json in"),
        ("idx", ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte", "t10k-images.idx3-ubyte"), "idx needs t10k-labels in"),
        ("digits", ("anything",), ""), ("folders", (), "is empty"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_a_dataset_is_told_from_its_names(
    name: str, there: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    for one in there:
        (tmp_path / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / one).touch() if name in ("idx", "packed") else (tmp_path / one).mkdir()
    said = fault_of(name, tmp_path)
    assert told.format(root=tmp_path) in said and bool(said) == bool(told)


def write_idx(root: Path, prefix: str, count: int, *, zipped: bool) -> None:
    images = struct.pack(">4I", 0x803, count, 2, 3) + bytes(range(6)) * count
    labels = struct.pack(">2I", 0x801, count) + bytes(n % 3 for n in range(count))
    for name, data in ((f"{prefix}-images-idx3-ubyte", images), (f"{prefix}-labels-idx1-ubyte", labels)):
        if zipped:
            (root / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (root / name).write_bytes(data)


def test_idx_files_may_be_zipped_or_not(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6, zipped=True)
    write_idx(tmp_path, "t10k", 3, zipped=False)
    data = idx(tmp_path)
    assert data.classes == ("0", "1", "2")
    assert data.test.read(1)[1].tolist() == [[3, 3, 3], [4, 4, 4], [5, 5, 5]]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-1], "truncated or too long"),
        (lambda data: b"PK" + data[2:], "not an idx file"),
        (lambda data: data[:3], "not an idx file"),
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes], told: str) -> None:
    write_idx(tmp_path, "train", 6, zipped=False)
    write_idx(tmp_path, "t10k", 3, zipped=False)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"t10k-images-idx3-ubyte: {told}"):
        idx(tmp_path)


def test_junk_after_a_zipped_file_is_told(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6, zipped=True)
    write_idx(tmp_path, "t10k", 3, zipped=False)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:14] + b"\xff" * 40)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        idx(tmp_path)


def test_annotations_that_are_no_text_are_told_with_their_line(tmp_path: Path) -> None:
    photo(tmp_path / "train" / "n01" / "images" / "1.jpg")
    photo(tmp_path / "val" / "images" / "1.jpg")
    (tmp_path / "val" / "val_annotations.txt").write_bytes(b"1.jpg\tn01\n2.jpg\tn\xff1\n")
    with pytest.raises(UserError, match=r"val_annotations\.txt:2: not UTF-8 \(byte 0xff\)"):
        tiny_imagenet(tmp_path)


def test_cifar_s_folders(archive: Callable[[str], Path]) -> None:
    data = folders(archive("cifar10"))
    assert (len(data.train.labels), len(data.test.labels), len(data.classes)) == (10_000, 2_000, 10)
    assert np.bincount(data.train.labels).tolist() == [1000] * 10
    assert data.train.read(0).shape == (32, 32, 3)


def test_tiny_imagenet_s_boxes_and_annotations(archive: Callable[[str], Path]) -> None:
    root = archive("tiny-imagenet")
    for place in (root, *root.glob("tiny-imagenet-200")):
        data = tiny_imagenet(place)
        assert (len(data.train.labels), len(data.test.labels), len(data.classes)) == (10_000, 1_000, 20)
        assert all(data.classes[data.train.labels[n]] in str(data.train.paths[n]) for n in range(0, 10_000, 777))
    wnid = dict(line.split("\t")[:2] for line in next(root.rglob("val_annotations.txt")).read_text().splitlines())
    assert all(data.classes[data.test.labels[n]] == wnid[Path(str(data.test.paths[n])).name] for n in range(1000))


def test_dogs_and_cats_are_split_once_and_for_all(archive: Callable[[str], Path]) -> None:
    data = dogs_vs_cats(archive("dogs-vs-cats"))
    assert (len(data.train.labels), len(data.test.labels)) == (1476, 164)
    names = {split: set(images.paths) for split, images in (("a", data.train), ("b", data.test))}
    assert not names["a"] & names["b"]
    assert all(("dog." in Path(str(data.test.paths[n])).name) == bool(data.test.labels[n]) for n in range(164))


def test_synthetic_images_are_the_same_everywhere_and_differ_by_class() -> None:
    data = synthetic(16, images=200, classes=3)
    assert np.array_equal(data.train.read(7), synthetic(16, images=200, classes=3).train.read(7))
    assert data.train.read(7).shape == (16, 16, 3) and not np.array_equal(data.train.read(7), data.test.read(7))
    assert set(data.train.labels) == {0, 1, 2} and len(data.test.labels) == 25


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder: .*nowhere; use --set data.root=FOLDER .* train-images"):
        idx(tmp_path / "nowhere")
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match=r"expected folders train and one of val, test, validation \(found: images\)"):
        folders(tmp_path)
    photo(tmp_path / "train" / "cat" / "1.jpg")
    photo(tmp_path / "val" / "dog" / "1.jpg")
    with pytest.raises(UserError, match="contains classes that are not in .*train: dog"):
        folders(tmp_path)
    shutil.rmtree(tmp_path / "val" / "dog")
    (tmp_path / "val" / "cat").mkdir()
    with pytest.raises(UserError, match="no images in the folders of 1 classes"):
        folders(tmp_path)
    with pytest.raises(UserError, match="expected train/<wnid>/images and val/val_annotations.txt"):
        tiny_imagenet(tmp_path)
    with pytest.raises(UserError, match=r"0 images cat\.\*\.jpg, too few"):
        dogs_vs_cats(tmp_path)
