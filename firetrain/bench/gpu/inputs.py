"""Training throughput with three input paths, compared with images that are already on the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from firetrain.bench.gpu.one_rank import batch_of, model_options, one_rank, take_step
from firetrain.data.batch import Batch, prefetched
from firetrain.data.folders import folders
from firetrain.data.images import Arrays
from firetrain.data.loader import Loader
from firetrain.data.order import global_batches
from firetrain.data.resident import ResidentLoader
from firetrain.errors import FiretrainError
from firetrain.parallel.worker import Worker
from firetrain.provenance import usable_cores
from firetrain.transport.device import is_gpu, new_stream, synchronize
from firetrain.transport.timing import elapsed_s

# batches at the begin and at the end of an epoch that are not timed: some are loaded ahead, before the first and after the last
_AHEAD = 4


def measure(device: torch.device) -> Iterator[tuple[str, Any]]:
    """Images/s without input, with images kept on the device, copied from pinned memory, and decoded from JPEG files.

    The model is compiled on a GPU, because an input may keep up with an eager one only.
    """
    gpu = is_gpu(device)
    count, images, photos = (1024, 24 * 1024, 12 * 1024) if gpu else (4, 40, 40)
    options, size = model_options(device, "squeezenet1_1" if gpu else "squeezenet_mini", count)
    worker = one_rank(device, *options, *(("compile=true",) if gpu else ()))
    worker.warm_up(size, {count}, set())
    batch, steps = batch_of(count, size, device), images // count
    _steps(worker, batch, 3)  # memory is allocated and kernels are chosen
    yield "without input", count * steps / elapsed_s(device, lambda: _steps(worker, batch, steps))
    arrays = Arrays(_noise(images, size), np.arange(images) % 10, tuple(map(str, range(10))))
    kept = ResidentLoader(arrays, size, device, "flip", seed=1)
    yield "kept on the device", images_per_s(worker, kept, images, count, device)
    pinned = Loader(arrays, size, count, augmentation="flip", seed=1, threads=usable_cores(), pin_memory=gpu)
    yield "copied from pinned memory", images_per_s(worker, pinned, images, count, device)
    _refuse_pageable(pinned, device)
    pinned.close()
    with TemporaryDirectory(prefix="firetrain-gpu-") as name:
        files = folders(_write_photos(Path(name), photos, 2 * size)).train
        for apart, path in ((False, "decoded from JPEG files"), (True, "decoded in another process")):
            decoding = Loader(
                files, size, count, augmentation="random-resized-crop", seed=1, threads=usable_cores(), apart=apart,
                pin_memory=gpu,
            )  # fmt: skip
            yield path, images_per_s(worker, decoding, photos, count, device)
            _refuse_pageable(decoding, device)
            decoding.close()


def _refuse_pageable(loader: Loader, device: torch.device) -> None:
    """FiretrainError if a GPU copies batches from memory that is not pinned, which only makes it slower."""
    if is_gpu(device) and not loader.is_pinned:
        raise FiretrainError("the loader's batches are not in pinned memory")


def _steps(worker: Worker, batch: Batch, count: int) -> None:
    for _ in range(count):
        take_step(worker, batch)


def images_per_s(
    worker: Worker, loader: Loader | ResidentLoader, images: int, count: int, device: torch.device
) -> float:
    """Images per second between the arrivals of two batches; equally many batches are loaded ahead at both."""
    stream, last = new_stream(device), images // count - _AHEAD
    batches = prefetched(loader.batches(global_batches(images, count, 1, epoch=0), 0), device, stream)
    began_s = ended_s = 0.0
    for number, batch in enumerate(batches):
        if number in (_AHEAD, last):
            synchronize(device)
            began_s, ended_s = (time.perf_counter(), 0.0) if number == _AHEAD else (began_s, time.perf_counter())
        take_step(worker, batch)
    synchronize(device)
    return count * (last - _AHEAD) / (ended_s - began_s)


def _noise(count: int, size: int) -> Any:
    """Random images; they repeat, because drawing gigabytes takes long."""
    drawn = np.random.default_rng(1).integers(0, 256, (min(count, 256), size, size, 3), np.uint8)
    return np.resize(drawn, (count, size, size, 3))


def _write_photos(root: Path, count: int, size: int) -> Path:
    """Write noise images as JPEG files in two classes. The test images are never read."""

    def write(number: int) -> None:
        path = root / ("train" if number < count else "test") / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = np.random.default_rng(number).integers(0, 256, (size // 8, size // 8, 3), np.uint8)
        Image.fromarray(small).resize((size, size)).save(path, quality=90)

    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(write, range(count + 2)))
    return root
