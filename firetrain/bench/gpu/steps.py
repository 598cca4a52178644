"""Steps, evaluations and epochs of one rank: host synchronisations, and whether repeated and resumed steps give the same bits."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from firetrain.bench.gpu.one_rank import batch_of, models, one_rank, take_step
from firetrain.cluster import Identity, SystemClock, World
from firetrain.config import load_config
from firetrain.data.batch import Batch
from firetrain.data.images import Arrays, Dataset
from firetrain.errors import FiretrainError
from firetrain.parallel.worker import Worker
from firetrain.records import Run
from firetrain.training.setup import set_up
from firetrain.transport.checksum import checksum
from firetrain.transport.device import backend_of, is_gpu
from firetrain.transport.transport import Transport

_STEPS = 4
_SIZE = 28
# AlexNet's last pooling must have a window for each of its outputs: a GPU adds the gradients of windows that overlap in any order
_SIZES = {"alexnet": 56}
# the optimiser with which each of the models is trained
_OPTIMIZERS = ("lars", "sgd", "lamb")
# a GPU keeps the images of the first, and copies those of the second from pinned memory
_AUGMENTATIONS = ("shift-flip", "random-resized-crop")


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model: the synchronisations of a step with their lines; whether repeated and resumed steps have the same bits."""
    wrong = False
    for model, optimizer in zip(models(device), _OPTIMIZERS, strict=True):
        size = _SIZES.get(model, _SIZE)
        batch = batch_of(8, size, device, resident=False)
        batch.flips[::2] = True
        options = (
            "deterministic=true", f"model.name={model}", f"optimizer.name={optimizer}", f"data.image_size={size}",
        )  # fmt: skip
        whole, again, resumed = (one_rank(device, *options) for _ in range(3))
        take_step(whole, batch)  # makes constants
        lines = _synchronisations(partial(take_step, whole, batch), device, _STEPS - 1)
        _evaluate(whole, batch)
        for step in range(_STEPS):
            if step == _STEPS // 2:
                resumed.load(deepcopy(again.state()))
            take_step(again, batch)
            if step >= _STEPS // 2:
                take_step(resumed, batch)
        found = {
            "synchronisations": sorted({*lines, *_synchronisations(partial(_evaluate, whole, batch), device)}),
            "same_bits": _bits(again) == _bits(whole),
            "same_bits_resumed": _bits(resumed) == _bits(whole),
        }
        yield f"{model} {optimizer}", found
        wrong |= bool(found["synchronisations"]) or not (found["same_bits"] and found["same_bits_resumed"])
    for augmentation in _AUGMENTATIONS:
        few, many = (_waits_of_a_run(device, augmentation, steps) for steps in (_STEPS, 3 * _STEPS))
        yield f"epoch with {augmentation}", {"synchronisations_of_more_steps": sorted(many - few)}
        wrong |= bool(many - few)
    if wrong:
        raise FiretrainError("a step made the host wait, or repeated or resumed steps gave other bits")


def _waits_of_a_run(device: torch.device, augmentation: str, steps: int) -> Counter[str]:
    """How often each line makes the host wait in a whole run of so many steps, which logs and evaluates once, at its end."""
    images = 8 * steps
    pixels = np.random.default_rng(1).integers(0, 256, (images, _SIZE, _SIZE, 3), np.uint8)
    arrays = Arrays(pixels, np.arange(images) % 10, tuple(map(str, range(10))))
    test = Arrays(pixels[:16], arrays.labels[:16], arrays.classes)
    loaded = load_config(
        "squeezenet-digits",
        ["model.name=lenet", f"data.augmentation={augmentation}", "data.on_bad_image=skip", "batch.global_size=8",
         "target.max_epochs=1", "target.top1=null", "learning_rate.warmup_epochs=0", "log.every_steps=1000",
         f"data.image_size={_SIZE}", "cluster.ranks_per_node=1"],
    )  # fmt: skip
    transport = Transport(backend_of(device), Identity(), World.even(1, 1), device, 60.0)
    with TemporaryDirectory(prefix="firetrain-gpu-") as folder:
        record = Run.create(Path(folder), loaded, SystemClock().date(), {})
        training = set_up(loaded.config, transport, record, dataset=Dataset("noise", arrays, test))
        lines = _synchronisations(training.run, device)
        training.close()
    return Counter(lines)


def _bits(worker: Worker) -> int:
    return int(checksum(x for x in worker.state()["model"].values() if x.dtype == torch.float32).item())


def _evaluate(worker: Worker, batch: Batch) -> None:
    with worker.evaluating(), torch.no_grad():
        (samples,) = worker.evaluation_batches(len(batch))
        worker.predict(batch, samples)


def _synchronisations(action: Callable[[], object], device: torch.device, times: int = 1) -> list[str]:
    """The lines at which calls of an action make the host wait, by torch's debug mode."""
    if is_gpu(device):
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(times):
            action()
    if is_gpu(device):
        torch.cuda.set_sync_debug_mode("default")
    return [f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
