"""Images that another process decodes are those that threads decode; the process lives as long as who it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from launched import wait_for
from PIL import Image

from firetrain.config import load_config
from firetrain.data.decode import BadImage
from firetrain.data.folders import folders
from firetrain.data.images import Images
from firetrain.data.loader import Loader
from firetrain.data.order import global_batches
from firetrain.errors import FiretrainError, UserError

COUNT, BAD = 20, 7


@pytest.fixture
def photos(tmp_path: Path) -> Images:
    for split in ("train", "test"):
        for number in range(COUNT):
            path = tmp_path / split / "ab"[number % 2] / f"{number:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
            Image.fromarray(noise).resize((30 + number, 50 - number)).save(path)
    return folders(tmp_path).train


@pytest.fixture
def spoilt(photos: Images) -> Images:
    """The same with one file that is no image."""
    Path(photos.paths[BAD]).write_bytes(b"no image")  # type: ignore[attr-defined]
    return photos


def loader(images: Images, *, apart: bool, skip_bad: bool = False) -> Loader:
    return Loader(images, 24, 6, augmentation="random-resized-crop", seed=1, threads=2, skip_bad=skip_bad, apart=apart)


def pixels(images: Images, *, apart: bool, epochs: int = 2) -> Iterator[torch.Tensor]:
    loads = loader(images, apart=apart)
    for epoch in range(epochs):
        for batch in loads.batches([*global_batches(COUNT, 6, 1, epoch), np.arange(0)], epoch):
            yield batch.images.clone()
    loads.close()


def test_pixels_have_the_same_bits(photos: Images) -> None:
    compared = list(zip(pixels(photos, apart=False), pixels(photos, apart=True), strict=True))
    assert len(compared) == 2 * 5 and all(torch.equal(theirs, ours) for theirs, ours in compared)
    assert compared[0][0].float().std() > 10
    assert compared[0][1].is_contiguous(memory_format=torch.channels_last)


def test_unreadable_images_are_left_out_or_end_the_run_as_with_threads(spoilt: Images) -> None:
    skipping = loader(spoilt, apart=True, skip_bad=True)
    (batch,) = skipping.batches([np.arange(4, 10)], 0)
    assert batch.samples.tolist() == [4, 5, 6, 8, 9] and list(skipping.bad) == [BAD]
    assert str(spoilt.paths[BAD]) in skipping.bad[BAD]  # type: ignore[attr-defined]
    skipping.close()
    strict = loader(spoilt, apart=True)
    with pytest.raises(BadImage, match=str(spoilt.paths[BAD])):  # type: ignore[attr-defined]
        list(strict.batches([np.arange(4, 10)], 0))
    strict.close()


def test_if_the_process_is_killed_the_run_ends_with_advice(photos: Images) -> None:
    loads = loader(photos, apart=True)
    batches = loads.batches([np.arange(6)] * 1000, 0)
    next(batches)
    (pid,) = loads._decoder._pool._processes  # type: ignore[union-attr]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(FiretrainError, match="process that decodes images has ended.*data.decode_in: threads"):
        for _ in batches:
            pass
    loads.close()


SERVED = """
import sys, time
import numpy as np
from pathlib import Path
from firetrain.data.folders import folders
from firetrain.data.loader import Loader

if __name__ == "__main__":
    loader = Loader(folders(Path(sys.argv[1])).train, 24, 6, apart=True)
    next(loader.batches([np.arange(6)], 0))
    print(*loader._decoder._pool._processes, flush=True)
    time.sleep(100)
"""


def test_the_process_ends_with_the_one_that_it_serves_even_if_that_is_killed(photos: Images, tmp_path: Path) -> None:
    script = tmp_path / "served.py"
    script.write_text(SERVED)
    served = subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert served.stdout is not None
    pid = int(served.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    served.kill()
    served.wait()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the decoding process has ended")


def test_only_image_files_are_decoded_elsewhere() -> None:
    with pytest.raises(UserError, match="data: decode_in has no effect here .only with image files"):
        load_config("squeezenet-digits", ["data.decode_in=process"])
    use = ["data.name=folders", "data.root=/path/to/images", "data.decode_in=process"]
    assert load_config("squeezenet-digits", use).config.data.decode_in == "process"
