"""Images that are kept on the device have the bits of those that are loaded by the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from firetrain.data import resident
from firetrain.data.digits import digits
from firetrain.data.images import Arrays, Dataset
from firetrain.data.loader import Loader
from firetrain.data.order import global_batches
from firetrain.data.packed import Packed, pack, packed
from firetrain.data.resident import ResidentLoader, fits
from firetrain.data.synthetic import synthetic

CPU = torch.device("cpu")


def colours() -> Arrays:
    """Colour images of another size than the model's, which are resized once."""
    pixels = np.random.default_rng(1).integers(0, 256, (60, 20, 20, 3), np.uint8)
    return Arrays(pixels, np.arange(60) % 10, tuple(map(str, range(10))))


@pytest.mark.parametrize("augmentation", ["none", "flip", "shift-flip"])
@pytest.mark.parametrize("size", [8, 16])
def test_batches_have_the_same_bits(augmentation: str, size: int) -> None:
    for images in (digits().train, colours()):
        wanted = [*global_batches(len(images.labels), 50, 1, 2)[:3], np.arange(0)]
        hosted = Loader(images, size, 50, augmentation=augmentation, seed=3).batches(wanted, 2)  # type: ignore[arg-type]
        kept = ResidentLoader(images, size, CPU, augmentation, seed=3).batches(wanted, 2)  # type: ignore[arg-type]
        for one, other in zip(hosted, kept, strict=True):
            for theirs, ours in zip(one.on_device(CPU), other.on_device(CPU), strict=True):
                assert torch.equal(theirs, ours) and theirs.dtype == ours.dtype
            assert ours.is_contiguous() and np.array_equal(one.samples, other.samples)
            pixels = other.images
            assert pixels.is_contiguous(memory_format=torch.channels_last), "the layout for which kernels are fast"


def test_the_shards_of_a_packed_split_have_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Dataset("colours", colours(), colours())
    pack(data, tmp_path / "packed", None, 20 * 20 * 3 * 7, threads=2, skip_bad=False)
    split = packed(tmp_path / "packed").train
    assert isinstance(split, Packed) and len(split.shards) == 9
    monkeypatch.setattr(resident, "free_bytes", lambda device: 1 << 30)
    assert fits(split, 8, "none", CPU)
    wanted = [np.array([0, 59, 7, 6, 13])]
    (whole,) = ResidentLoader(colours(), 8, CPU, "shift-flip", seed=3).batches(wanted, 2)
    (shards,) = ResidentLoader(split, 8, CPU, "shift-flip", seed=3).batches(wanted, 2)
    for theirs, ours in zip(whole.on_device(CPU), shards.on_device(CPU), strict=True):
        assert torch.equal(theirs, ours)


def test_packed_images_of_several_sizes_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "free_bytes", lambda device: 1 << 30)
    index = np.array([[0, 0, 2, 3, 0], [0, 18, 3, 2, 1]])
    assert not fits(Packed(index, [np.zeros(36, np.uint8)], "ab"), 2, "none", CPU)
    swapped = np.array([[0, 18, 2, 3, 0], [0, 0, 2, 3, 1]])
    assert not fits(Packed(swapped, [np.zeros(36, np.uint8)], "ab"), 2, "none", CPU), "not in the order of samples"


def test_only_small_splits_in_memory_without_random_resizing_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    images = colours()
    assert not fits(images, 8, "none", CPU), "the CPU's memory holds them already"
    monkeypatch.setattr(resident, "free_bytes", lambda device: 4 * 60 * 3 * 8 * 8)
    assert fits(images, 8, "none", CPU) and fits(images, 8, "shift-flip", CPU)
    assert not fits(images, 9, "none", CPU) and not fits(images, 8, "random-resized-crop", CPU)
    assert not fits(synthetic(8, 16, 2).train, 8, "none", CPU)
