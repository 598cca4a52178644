"""Every test image is counted exactly once, and images that cannot be read have no weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from ranks import on_ranks
from torch import nn
from trained import create, train

from firetrain.config import load_config, load_text
from firetrain.data.catalogue import open_dataset
from firetrain.parallel.data_parallel import DataParallel
from firetrain.records import Run
from firetrain.training.evaluation import evaluate
from firetrain.training.input import Input
from firetrain.training.setup import set_up
from firetrain.transport.transport import Transport


def test_evaluation_every_other_epoch_and_always_at_the_end(tmp_path: Path) -> None:
    overrides = ["target.max_epochs=5", "target.evaluate_every_epochs=2", "target.top1=null", "batch.global_size=720"]
    result = on_ranks(1, train, str(tmp_path), overrides)[0]
    assert [row["epoch"] for row in Run.open(Path(result["path"])).metrics("evaluation")] == [2, 4, 5]


class Cheat(nn.Module):
    """A model that predicts the class from the image's mean, and counts the images."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen += len(images)
        return torch.stack([images.mean((1, 2, 3)) * digit for digit in range(10)], 1)


def score(transport: Transport, batch_size: int) -> tuple[Any, int]:
    config, model = (
        load_config("squeezenet-digits", [f"batch.global_size={batch_size * transport.size}"]).config,
        Cheat(),
    )
    worker = DataParallel(config, model, transport)
    images = Input(config.data, config.seed, open_dataset(config.data), transport, worker.largest_batch)
    found = evaluate(worker, images, transport)
    images.close()
    return found, model.seen


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 360), (2, 7), (3, 64), (7, 100)])
def test_every_test_image_is_counted_exactly_once(ranks: int, batch_size: int) -> None:
    expected = on_ranks(1, score, 50)[0][0]
    results = on_ranks(ranks, score, batch_size)
    assert sum(seen for _, seen in results) == 360
    for own, _ in results:
        assert own.images == 360
        assert (own.top1, own.top5) == (expected.top1, expected.top5)
        assert own.loss == pytest.approx(expected.loss, rel=1e-6)


def weights_after(transport: Transport, folder: str, root: str, batch: int) -> dict[str, Any]:
    text = f"""\
name: bad
model: {{name: lenet}}
data: {{name: folders, root: {root}, image_size: 16, on_bad_image: skip}}
batch: {{global_size: {batch}}}
learning_rate: {{base: 0.01}}
target: {{max_epochs: 2}}
log: {{every_steps: 1}}
"""
    loaded = load_text(text, "bad")
    run = Run(Path(transport.broadcast_object(create(folder, loaded) if transport.rank == 0 else None)))
    training = set_up(loaded.config, transport, run)
    summary = training.run()
    weights = torch.cat([p.detach().flatten() for p in training.worker.model.parameters()]).numpy()
    training.close()
    return {**summary, "weights": weights}


def folder_of_images(root: Path, unreadable: int) -> str:
    """Ten training and eight test images of noise in two classes, and a number of training files that are not images."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 5), ("test", 4)):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    for number in range(unreadable):
        (root / "train" / "a" / f"{5 + number}.png").write_bytes(b"no image")
    return str(root)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_skipped_images_have_no_weight(ranks: int, tmp_path: Path) -> None:
    """One step over all images: the mean is over the ten readable images, as if there were no others."""
    clean, spoilt = folder_of_images(tmp_path / "clean", 0), folder_of_images(tmp_path / "spoilt", 3)
    expected = on_ranks(1, weights_after, str(tmp_path / "runs"), clean, 13)[0]
    for result in on_ranks(ranks, weights_after, str(tmp_path / "runs"), spoilt, 13):
        assert result["bad_images"] == 3 and expected["bad_images"] == 0
        assert np.allclose(result["weights"], expected["weights"], rtol=1e-4, atol=1e-6)


def test_skipped_images_are_counted_once_whichever_ranks_meet_them(tmp_path: Path) -> None:
    """Batches of four on four ranks, so that a rank's whole share may be unreadable."""
    spoilt = folder_of_images(tmp_path / "spoilt", 3)
    (tmp_path / "spoilt" / "test" / "a" / "9.png").write_bytes(b"")
    alone = on_ranks(1, weights_after, str(tmp_path / "runs"), spoilt, 4)[0]
    for result in on_ranks(4, weights_after, str(tmp_path / "runs"), spoilt, 4):
        assert result["bad_images"] == alone["bad_images"] == 4
        assert np.allclose(result["weights"], alone["weights"], rtol=1e-4, atol=1e-6)
