"""Batches contain the right pixels for any number of threads and ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from firetrain.data import loader as loader_module
from firetrain.data.batch import DEVIATION, MEAN, Normalised, prefetched
from firetrain.data.crop import Box, centre_box, random_box, resize
from firetrain.data.decode import BadImage, read_image
from firetrain.data.digits import digits
from firetrain.data.folders import folders
from firetrain.data.images import Files
from firetrain.data.loader import Loader
from firetrain.data.order import global_batches, micro_batches, share

AUGMENTATIONS = ("none", "flip", "shift-flip", "random-resized-crop")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Forty small image files of noise and gradients."""
    root = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True)
            for number in range(20):
                height, width = draw.integers(20, 60, 2)
                soft = draw.integers(0, 255, (5, 5, 3), dtype=np.uint8)
                Image.fromarray(soft).resize((width, height)).save(root / split / name / f"{number}.jpg", quality=95)
    return folders(root).train  # type: ignore[return-value]


def collect(loader: Loader, pieces: list[np.ndarray], epoch: int = 0) -> dict[int, tuple[torch.Tensor, int]]:
    """The image and label of each sample, as the model gets them."""
    seen = {}
    for batch in loader.batches(pieces, epoch):
        images, labels = batch.on_device(torch.device("cpu"))
        for sample, image, label in zip(batch.samples.tolist(), images, labels.tolist(), strict=True):
            assert sample not in seen
            seen[sample] = (image.clone(), label)
    return seen


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_neither_threads_nor_ranks_nor_micro_batches_change_a_pixel(
    photos: Files, augmentation: str, threads: int
) -> None:
    batches = global_batches(len(photos.labels), 16, 1, 3)
    alone = collect(Loader(photos, 24, 16, augmentation=augmentation, seed=1), batches, 3)
    together: dict[int, tuple[torch.Tensor, int]] = {}
    for rank in range(3):
        loader = Loader(photos, 24, 4, augmentation=augmentation, seed=1, threads=threads)
        together |= collect(loader, [p for b in batches for p in micro_batches(share(b, rank, 3), 4)], 3)
    assert set(together) == set(alone) == set(range(len(photos.labels)))
    for sample, (image, label) in alone.items():
        assert torch.equal(together[sample][0], image) and together[sample][1] == label == photos.labels[sample]


@pytest.mark.parametrize("augmentation", AUGMENTATIONS[1:])
def test_augmentation_differs_between_epochs_and_seeds(photos: Files, augmentation: str) -> None:
    def pixels(seed: int, epoch: int) -> torch.Tensor:
        seen = collect(Loader(photos, 24, 40, augmentation=augmentation, seed=seed), [np.arange(40)], epoch)
        return torch.stack([seen[sample][0] for sample in range(40)])

    assert torch.equal(pixels(1, 0), pixels(1, 0))
    assert not torch.equal(pixels(1, 0), pixels(1, 1)) and not torch.equal(pixels(1, 0), pixels(2, 0))


def test_flipping_mirrors_about_half_of_the_images_and_nothing_else(photos: Files) -> None:
    plain, flipped = (collect(Loader(photos, 24, 40, augmentation=how), [np.arange(40)]) for how in ("none", "flip"))
    mirrored = [
        torch.equal(flipped[s][0], plain[s][0].flip(-1)) and not torch.equal(flipped[s][0], plain[s][0]) for s in plain
    ]
    assert all(m or torch.equal(flipped[s][0], plain[s][0]) for s, m in zip(plain, mirrored, strict=True))
    assert 10 <= sum(mirrored) <= 30


def test_images_are_normalised_on_the_device() -> None:
    data = digits().train
    batch = next(Loader(data, 8, 4).batches([np.arange(4)], 0))
    images = Normalised(torch.nn.Identity(), torch.device("cpu"))(batch.on_device(torch.device("cpu"))[0])
    expected = (
        torch.from_numpy(data.read(2)).permute(2, 0, 1) / 255 - torch.tensor(MEAN).view(3, 1, 1)
    ) / torch.tensor(DEVIATION).view(3, 1, 1)
    assert torch.allclose(images[2], expected, atol=1e-5)
    other = Normalised(torch.nn.Identity(), torch.device("cpu"), channels_last=False)(batch.images)
    assert (
        images.is_contiguous(memory_format=torch.channels_last) and other.is_contiguous() and torch.equal(images, other)
    )


def test_resizing_equals_pillow_s_to_a_fiftieth_of_a_grey_level(archive: Callable[[str], Path]) -> None:
    paths = sorted(archive("imagenet-sample").rglob("*.JPEG"))[:20]
    differences = []
    for path in paths:
        pixels = read_image(path)
        box = centre_box(pixels.shape[0], pixels.shape[1], 224)
        out = torch.empty((1, 3, 224, 224), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)[0]
        resize(pixels, box, out)
        cut = Image.fromarray(pixels).crop((box.left, box.top, box.left + box.width, box.top + box.height))
        expected = np.asarray(cut.resize((224, 224), Image.Resampling.BILINEAR)).astype(int)
        differences.append(np.abs(out.permute(1, 2, 0).numpy().astype(int) - expected).mean())
    assert np.mean(differences) < 0.02


def test_random_crops_stay_inside_and_cover_the_promised_areas() -> None:
    draw = np.random.default_rng(0)
    for _ in range(2000):
        height, width = (int(side) for side in draw.integers(1, 500, 2))
        draws = draw.random(4).tolist()
        top, left, box_height, box_width = random_box(height, width, draws)
        assert 0 <= top <= top + box_height <= height and 0 <= left <= left + box_width <= width
        if min(height, width) > 50:
            area = box_height * box_width / (height * width)
            assert area == pytest.approx(0.08 + 0.92 * draws[0], rel=0.15)


def test_small_images_are_evaluated_whole_and_large_ones_in_the_centre() -> None:
    assert centre_box(28, 28, 28) == Box(0, 0, 28, 28)
    assert centre_box(256, 320, 224) == Box(16, 48, 224, 224)
    assert centre_box(8, 8, 16) == Box(0, 0, 8, 8)


def test_an_image_that_cannot_be_read_ends_the_run_or_is_left_out_and_counted(photos: Files, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(photos.paths[0].read_bytes()[:200])
    files = Files([*photos.paths[:5], broken, *photos.paths[5:8]], np.arange(9), photos.classes)
    with pytest.raises(BadImage, match=str(broken)):
        collect(Loader(files, 24, 4), [np.arange(4), np.arange(4, 8)])
    loader = Loader(files, 24, 4, threads=2, skip_bad=True)
    seen = collect(loader, [np.arange(4), np.arange(4, 8), np.arange(8, 9)])
    assert sorted(seen) == [0, 1, 2, 3, 4, 6, 7, 8]
    assert all(label == sample for sample, (_, label) in seen.items())
    assert list(loader.bad) == [5] and loader.bad[5].startswith(f"{broken}: ")


def test_an_empty_piece_gives_an_empty_batch_in_its_place(photos: Files) -> None:
    pieces = [np.arange(2), np.arange(0), np.arange(2, 4)]
    assert [len(batch) for batch in Loader(photos, 24, 2).batches(pieces, 0)] == [2, 0, 2]


def test_a_loader_is_used_for_many_epochs(photos: Files) -> None:
    loader = Loader(photos, 24, 8)
    for epoch in range(10):
        batches = loader.batches([np.arange(8), np.arange(8, 16)], epoch)
        # like the training loop, which does not exhaust the iterator
        assert [next(batches).samples.tolist() for _ in range(2)] == [list(range(8)), list(range(8, 16))]


class Copy:
    """A GPU's copy of a batch; notes when somebody waits for its end."""

    def __init__(self) -> None:
        self.waited = False

    def synchronize(self) -> None:
        self.waited = True


@pytest.mark.parametrize("taken", [1, 3, 7])
def test_memory_is_reused_only_after_it_was_copied_also_after_an_abandoned_epoch(photos: Files, taken: int) -> None:
    loader = Loader(photos, 24, 4, threads=2)
    assert all(buffer.images.is_contiguous(memory_format=torch.channels_last) for buffer in loader._buffers)
    copies = []
    wanted = [np.arange(start, start + 4) for start in range(0, 40, 4)]
    epoch = loader.batches(wanted, 0)
    for _ in range(taken):
        batch = next(epoch)
        copies.append(Copy())
        batch.copied.append(copies[-1])
    epoch.close()
    assert not copies[-1].waited, "its memory is not needed yet"
    again = loader.batches(wanted, 1)
    for _ in range(3):
        next(again)
    assert all(copy.waited for copy in copies)


def test_an_abandoned_epoch_writes_nothing_into_the_next_one(photos: Files) -> None:
    """Two threads still decode images of an abandoned epoch when the next one begins."""
    loader = Loader(photos, 24, 4, threads=2)
    first, second = ([np.arange(start, start + 4) for start in range(begin, begin + 20, 4)] for begin in (0, 20))
    expected = [batch.images.clone() for batch in loader.batches(second, 1)]
    for _ in range(20):
        abandoned = loader.batches(first, 0)
        next(abandoned)
        for batch, whole in zip(loader.batches(second, 1), expected, strict=True):
            assert torch.equal(batch.images, whole)
    loader.close()


def test_without_a_gpu_batches_are_not_moved(photos: Files) -> None:
    loader = Loader(photos, 24, 4)
    cpu = torch.device("cpu")
    for batch in prefetched(loader.batches([np.arange(4), np.arange(4, 8)], 0), cpu, None):
        images, labels = batch.on_device(cpu)
        assert images.data_ptr() == batch.images.data_ptr() and labels is batch.labels and batch.copied == []


def test_pinned_memory_is_given_back_after_its_last_copy(photos: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(loader_module, "pin", lambda memory: pinned.append(memory.data_ptr()) or memory)
    monkeypatch.setattr(loader_module, "unpin", lambda memory: pinned.remove(memory.data_ptr()))
    loader = Loader(photos, 24, 4, pin_memory=True)
    batch, copy = next(loader.batches([np.arange(4)], 0)), Copy()
    batch.copied.append(copy)
    assert len(pinned) == 3, "three buffers in turn"
    loader.close()
    assert pinned == [] and copy.waited
    loader.close()
