"""Steps of one rank: host synchronisations, and whether steps give the same bits again."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from firetrain.bench.step import make_batch
from firetrain.cluster import Identity, World
from firetrain.config import load_config
from firetrain.parallel.catalogue import make_worker
from firetrain.parallel.worker import Worker
from firetrain.transport.checksum import checksum
from firetrain.transport.device import is_gpu
from firetrain.transport.transport import Transport

_STEPS = 3
CASES = {
    "squeezenet sgd": ("model.name=squeezenet1_1",),
    "googlenet lars": ("model.name=googlenet", "optimizer.name=lars"),
    "alexnet lamb": ("model.name=alexnet", "optimizer.name=lamb"),
}


def verify(device: torch.device) -> dict[str, Any]:
    """For each case: the synchronisations of a step with their lines, and whether two runs end with the same bits."""
    found: dict[str, Any] = {}
    for name, overrides in CASES.items():
        sums = []
        for _ in range(2):
            worker = one_rank(device, "deterministic=true", *overrides)
            seen = _synchronisations(worker, device)
            sums.append(int(checksum(x for x in worker.state()["model"].values() if x.dtype == torch.float32).item()))
        found[name] = {"synchronisations": seen, "same_bits": sums[0] == sums[1]}
    return found


def one_rank(device: torch.device, *overrides: str) -> Worker:
    """A worker that is alone on the device; the batch is of eight images."""
    config = load_config("squeezenet-digits", ["batch.global_size=8", "cluster.ranks_per_node=1", *overrides]).config
    name = "nccl" if is_gpu(device) else "gloo"
    return make_worker(config, 10, Transport(name, Identity(), World.even(1, 1), device, 60.0), {})


def _synchronisations(worker: Worker, device: torch.device) -> list[str]:
    """The lines at which a step made the host wait, by torch's debug mode; the first step, which makes constants, is left out."""
    batch = make_batch(np.arange(8), 16, 10)
    lines: list[str] = []
    for number in range(_STEPS):
        watched = is_gpu(device) and number > 0
        if watched:
            torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            worker.backward(iter([batch]), 1, epoch=0)
            worker.finish(8.0)
            worker.finite()
            worker.update(0.01)
        if watched:
            torch.cuda.set_sync_debug_mode("default")
            lines += [f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
    return sorted(set(lines))
