"""Packed images are the images that were packed, in the same order; damaged folders are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command
from PIL import Image

from firetrain.data.digits import digits
from firetrain.data.folders import folders
from firetrain.data.images import Arrays
from firetrain.data.loader import Loader
from firetrain.data.order import global_batches
from firetrain.data.packed import Packed, pack, packed
from firetrain.errors import CannotCreate, FiretrainError, UserError

SIZES = ((40, 61), (33, 33), (90, 47), (52, 70), (64, 40))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """JPEGs of different sizes in two classes."""
    root = tmp_path / "photos"
    for split in ("train", "test"):
        for number, (height, width) in enumerate(SIZES):
            path = root / split / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
            Image.fromarray(noise).resize((width, height)).save(path, quality=95)
    return root


def write(root: Path, out: Path, shorter_side: int | None = None, shard_bytes: int = 1 << 30) -> dict[str, object]:
    return pack(folders(root), out, shorter_side, shard_bytes, threads=2, skip_bad=False)


@pytest.mark.parametrize("shard_bytes", [1, 20_000, 1 << 30])
@pytest.mark.parametrize("augmentation", ["none", "random-resized-crop"])
def test_batches_have_the_same_bits_as_from_the_files(
    photos: Path, tmp_path: Path, shard_bytes: int, augmentation: str
) -> None:
    write(photos, tmp_path / "packed", shard_bytes=shard_bytes)
    files, found = folders(photos), packed(tmp_path / "packed")
    assert tuple(found.classes) == tuple(files.classes) and isinstance(found.train, Packed)
    assert len(found.train.shards) == {1: 5, 20_000: 2}.get(shard_bytes, 1)
    for theirs, ours in ((files.train, found.train), (files.test, found.test)):
        wanted = global_batches(len(theirs.labels), 2, 1, 4)
        pairs = zip(
            Loader(theirs, 24, 2, augmentation=augmentation, seed=1).batches(wanted, 4),
            Loader(ours, 24, 2, augmentation=augmentation, seed=1).batches(wanted, 4),
            strict=True,
        )
        for one, other in pairs:
            assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_images_of_one_size_can_be_kept_in_memory(tmp_path: Path) -> None:
    data = digits()
    pack(data, tmp_path / "packed", None, 1 << 30, threads=2, skip_bad=False)
    found = packed(tmp_path / "packed")
    assert isinstance(found.train, Arrays) and found.train.pixels.shape == (1437, 8, 8, 3)
    for sample in (0, 700, 1436):
        assert np.array_equal(found.train.read(sample), data.train.read(sample))
    assert np.array_equal(found.test.labels, data.test.labels)


def test_larger_images_are_reduced_to_the_shorter_side_and_smaller_ones_are_kept(photos: Path, tmp_path: Path) -> None:
    write(photos, tmp_path / "packed", shorter_side=40)
    found, files = packed(tmp_path / "packed").train, folders(photos).train
    sizes = {found.read(sample).shape[:2] for sample in range(5)}
    assert sizes == {(40, 61), (33, 33), (77, 40), (40, 54), (64, 40)}
    largest = max(range(5), key=lambda sample: files.read(sample).shape[0])
    theirs = Image.fromarray(files.read(largest)).resize((40, 77), Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(theirs, float) - found.read(largest)).max() <= 1


def test_unreadable_images_end_the_packing_or_are_left_out(photos: Path, tmp_path: Path) -> None:
    bad = sorted((photos / "train" / "a").iterdir())[0]
    bad.write_bytes(b"not an image")
    with pytest.raises(FiretrainError, match=bad.name):
        write(photos, tmp_path / "half")
    with pytest.raises(UserError, match="packed.json"):
        packed(tmp_path / "half")
    content = pack(folders(photos), tmp_path / "whole", None, 1 << 30, threads=2, skip_bad=True)
    assert content["splits"]["train"]["images"] == 4 and content["splits"]["train"]["left_out"] == 1
    assert len(packed(tmp_path / "whole").train.labels) == 4


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _point_outside(path: Path) -> None:
    index = np.load(path)
    index[-1, 1] += 1
    np.save(path, index)


def _name_another_version(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 2}))


def _nest(path: Path) -> None:
    path.write_text("[" * 100_000)


def _leave_out_the_shards(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["splits"]["test"]["shards_bytes"]
    path.write_text(json.dumps(content))


def _leave_out_the_source(path: Path) -> None:
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "source"}))


def _make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _overflow(path: Path) -> None:
    index = np.load(path)
    index[-1, 1] = np.iinfo(np.int64).max
    np.save(path, index)


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("packed.json", _nest, "cannot be read: text: "),
        ("packed.json", _leave_out_the_shards, "cannot be read: splits.test.shards_bytes: Field required"),
        ("packed.json", _leave_out_the_source, "cannot be read: source: Field required"),
        ("test-index.npy", _make_a_pipe, "is not a regular file"),
        ("test-index.npy", _overflow, "outside its shard"),
        ("train-00000.bin", _truncate, "bytes, expected"),
        ("test-index.npy", _point_outside, "outside its shard"),
        ("test-index.npy", _truncate, "cannot be read"),
        ("packed.json", _name_another_version, "has version 2; this firetrain reads version 1"),
        ("packed.json", _truncate, "pack the data again"),
        ("train-00000.bin", Path.unlink, "No such file"),
    ],
)
def test_a_damaged_folder_is_refused(
    photos: Path, tmp_path: Path, name: str, damage: Callable[[Path], None], said: str
) -> None:
    write(photos, tmp_path / "packed")
    damage(tmp_path / "packed" / name)
    with pytest.raises(UserError, match=said):
        packed(tmp_path / "packed")


def test_a_folder_with_content_is_not_written_to(photos: Path) -> None:
    with pytest.raises(CannotCreate, match="has content already"):
        write(photos, photos)


def test_the_command_packs_what_training_then_reads(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("data", "pack", "squeezenet-digits", "--out", "packed")
    assert done.returncode == 0 and "train: 1,437 images, 0.3 MB in 1 shard" in done.stdout, done.stderr
    use = ("--set", "data.name=packed", "--set", "data.root=packed")
    facts = json.loads(firetrain("data", "info", "squeezenet-digits", *use, "--json").stdout)
    assert facts["name"] == "digits (packed)" and facts["train"]["images"] == 1437
    again = firetrain("data", "pack", "squeezenet-digits", "--out", "packed")
    assert again.returncode == 73 and "has content already" in again.stderr and "Traceback" not in again.stderr
