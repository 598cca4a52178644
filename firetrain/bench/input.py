"""Images per second and core from JPEG files to a training batch, compared with a Pillow pipeline."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from firetrain.bench.spread import ratios, spread
from firetrain.data.crop import random_box, resize
from firetrain.data.decode import Scratch, decode
from firetrain.data.draws import uniform
from firetrain.data.folders import SUFFIXES
from firetrain.errors import FiretrainError, UserError

# the largest mean difference, in grey levels, between two correct bilinear resizes of one crop
TOLERANCE = 0.5
_SCRATCH = Scratch()

InputPipeline = Callable[[bytes, Sequence[float], Tensor], None]


def bench_input(folder: Path, size: int, count: int, repeats: int) -> dict[str, Any]:
    """Time both pipelines on `count` images below `folder`, alternating, `repeats` times, on one thread.

    They decode, crop at random, resize to `size` and flip. Files are in memory, both pipelines use the same crops, and processor
    time is measured. UserError if there are no images, FiretrainError if the pipelines' pixels differ by more than rounding.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)[:count]
    if not paths:
        raise UserError(f"{folder}: no images in it or below it (searched for {', '.join(sorted(SUFFIXES))})")
    files = [path.read_bytes() for path in paths]
    samples = np.arange(len(files))
    draws = np.stack([uniform(0, 0, samples, stream) for stream in range(5)], axis=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pipelines: dict[str, InputPipeline] = {"firetrain": _ours, "Pillow": _pillow}
        batches = {name: _run(pipeline, files, draws, size)[0] for name, pipeline in pipelines.items()}
        difference = float((batches["firetrain"].float() - batches["Pillow"].float()).abs().mean())
        if difference > TOLERANCE:
            raise FiretrainError(
                f"pixels differ by {difference:.3f} grey levels on average, more than {TOLERANCE:g}: not timed"
            )
        speeds: dict[str, list[float]] = {name: [] for name in pipelines}
        for repeat in range(repeats):
            for name in list(pipelines)[:: 1 if repeat % 2 else -1]:
                speeds[name].append(len(files) / _run(pipelines[name], files, draws, size)[1])
    finally:
        torch.set_num_threads(threads)
    return {
        "images": len(files), "size": size, "mean_difference_grey_levels": difference,
        "images_per_s": {name: spread(values) for name, values in speeds.items()},
        "ratio": ratios(speeds["firetrain"], speeds["Pillow"]),
    }  # fmt: skip


def _run(pipeline: InputPipeline, files: Sequence[bytes], draws: NDArray[Any], size: int) -> tuple[Tensor, float]:
    """The batch that a pipeline makes, and the processor seconds it took."""
    batch = torch.empty((len(files), 3, size, size), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    started_s = time.process_time()
    for data, draw, out in zip(files, draws.tolist(), batch, strict=True):
        pipeline(data, draw, out)
    return batch, time.process_time() - started_s


def _ours(data: bytes, draw: Sequence[float], out: Tensor) -> None:
    pixels = decode(data, _SCRATCH)
    resize(pixels, random_box(pixels.shape[0], pixels.shape[1], draw[:4]), out)
    if draw[4] < 0.5:
        out.copy_(out.flip(-1))


def _pillow(data: bytes, draw: Sequence[float], out: Tensor) -> None:
    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = random_box(image.height, image.width, draw[:4])
    image = image.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    image = image.resize((out.shape[2], out.shape[1]), Image.Resampling.BILINEAR)
    if draw[4] < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out.copy_(torch.from_numpy(np.array(image)).permute(2, 0, 1))
