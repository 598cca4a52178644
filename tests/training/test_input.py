"""What a rank reads: its share of the images, from the loader that suits its device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from firetrain.cluster import Identity, World
from firetrain.config.sections.data import DataSection
from firetrain.data.digits import digits
from firetrain.data.folders import folders
from firetrain.data.images import Dataset
from firetrain.data.loader import Loader
from firetrain.data.order import micro_batches, share
from firetrain.data.resident import ResidentLoader
from firetrain.training import input as input_module
from firetrain.training.input import Input, make_loader
from firetrain.transport.transport import Transport

DIGITS = DataSection.model_validate({"name": "digits", "image_size": 16, "augmentation": "flip"})


def alone(rank: int, ranks: int) -> Transport:
    return Transport("gloo", Identity("none", rank, ranks), World.even(1, ranks), torch.device("cpu"), 60.0)


@pytest.mark.parametrize(("ranks", "most"), [(1, 360), (3, 50), (7, 1000)])
def test_every_test_image_is_read_by_one_rank_in_pieces_that_fit(ranks: int, most: int) -> None:
    seen: Counter[int] = Counter()
    for rank in range(ranks):
        images = Input(DIGITS, 1, digits(), alone(rank, ranks), most)
        wanted = list(micro_batches(share(np.arange(360), rank, ranks), most))
        sizes = [len(samples) for samples in wanted]
        batches = list(images.test_batches(wanted))
        assert [len(batch) for batch in batches] == sizes and max(sizes) <= most
        assert not any(batch.flips.any() for batch in batches), "test images are not augmented"
        seen.update(int(sample) for batch in batches for sample in batch.samples)
        images.close()
    assert seen == Counter(range(360))


def test_training_images_are_augmented_and_test_images_are_not() -> None:
    images = Input(DIGITS, 1, digits(), alone(0, 1), 100)
    (batch,) = images.training_batches([np.arange(100)], epoch=0)
    assert 20 < batch.flips.sum() < 80
    images.close()


def test_a_gpu_s_loader_is_chosen_if_the_images_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make_loader(DIGITS, 1, digits(), alone(0, 1), 8, train=True)
    assert isinstance(loader, Loader)
    loader.close()
    monkeypatch.setattr(input_module, "fits", lambda *arguments: True)
    kept = make_loader(DIGITS, 1, digits(), alone(0, 1), 8, train=True)
    assert isinstance(kept, ResidentLoader)
    (batch,) = kept.batches([np.arange(100)], epoch=0)
    assert batch.flips.any(), "with the augmentation of the config"
    (batch,) = make_loader(DIGITS, 1, digits(), alone(0, 1), 8, train=False).batches([np.arange(100)], epoch=0)
    assert not batch.flips.any()


def spoilt(root: Path) -> Dataset:
    """Eight images in two classes, of which two cannot be read."""
    for split in ("train", "test"):
        for number in range(4):
            path = root / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (60 * number, 0, 0)).save(path)
    for path in (root / "train" / "a" / "0.png", root / "test" / "b" / "3.png"):
        path.write_bytes(b"no image")
    return folders(root)


def test_unreadable_images_are_left_out_counted_once_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = DataSection.model_validate(
        {"name": "folders", "root": str(tmp_path), "image_size": 16, "on_bad_image": "skip"}
    )
    images = Input(section, 1, spoilt(tmp_path), alone(0, 1), 4)
    for epoch in range(2):
        (batch,) = images.training_batches([np.arange(4)], epoch)
        assert len(batch) == 3
    assert sum(len(batch) for batch in images.test_batches([np.arange(4)])) == 3
    assert images.bad_images() == 2
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2 and all(line.startswith("skipped ") for line in told)
    assert "0.png" in told[0] and "3.png" in told[1]
    images.close()
