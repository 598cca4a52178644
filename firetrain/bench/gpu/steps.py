"""Steps and evaluations of one rank: host synchronisations, and whether repeated and resumed steps give the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import torch

from firetrain.bench.gpu.one_rank import batch_of, models, one_rank, take_step
from firetrain.data.batch import Batch
from firetrain.errors import FiretrainError
from firetrain.parallel.worker import Worker
from firetrain.transport.checksum import checksum
from firetrain.transport.device import is_gpu

_STEPS = 4
_SIZE = 28
# the optimiser with which each of the models is trained
_OPTIMIZERS = ("lars", "sgd", "lamb")


def verify(device: torch.device) -> Iterator[tuple[str, Any]]:
    """For each model: the synchronisations of a step with their lines; whether repeated and resumed steps have the same bits."""
    batch, wrong = batch_of(8, _SIZE, device, resident=False), False
    batch.flips[::2] = True
    for model, optimizer in zip(models(device), _OPTIMIZERS, strict=True):
        options = (
            "deterministic=true", f"model.name={model}", f"optimizer.name={optimizer}", f"data.image_size={_SIZE}",
        )  # fmt: skip
        whole, again, resumed = (one_rank(device, *options) for _ in range(3))
        lines = _synchronisations(partial(take_step, whole, batch), device, _STEPS)
        for step in range(_STEPS):
            if step == _STEPS // 2:
                resumed.load(deepcopy(again.state()))
            take_step(again, batch)
            if step >= _STEPS // 2:
                take_step(resumed, batch)
        found = {
            "synchronisations": sorted({*lines, *_synchronisations(partial(_evaluate, whole, batch), device, 2)}),
            "same_bits": _bits(again) == _bits(whole),
            "same_bits_resumed": _bits(resumed) == _bits(whole),
        }
        yield f"{model} {optimizer}", found
        wrong |= bool(found["synchronisations"]) or not (found["same_bits"] and found["same_bits_resumed"])
    if wrong:
        raise FiretrainError("a step made the host wait, or repeated or resumed steps gave other bits")


def _bits(worker: Worker) -> int:
    return int(checksum(x for x in worker.state()["model"].values() if x.dtype == torch.float32).item())


def _evaluate(worker: Worker, batch: Batch) -> None:
    with worker.evaluating(), torch.no_grad():
        (samples,) = worker.evaluation_batches(len(batch))
        worker.predict(batch, samples)


def _synchronisations(action: Callable[[], None], device: torch.device, times: int) -> list[str]:
    """The lines at which an action makes the host wait, by torch's debug mode; the first call, which makes constants, is free."""
    action()
    if is_gpu(device):
        torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(1, times):
            action()
    if is_gpu(device):
        torch.cuda.set_sync_debug_mode("default")
    return [f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
