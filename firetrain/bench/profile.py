"""Measure what predictions need: parts of a step without communication, links, additions, and whole steps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, pstdev
from typing import Any

import numpy as np
import torch

from firetrain.bench.allreduce import bench_allreduce
from firetrain.bench.gap import bench_gap
from firetrain.bench.link import bench_link
from firetrain.bench.step import RATE, make_batch, ours
from firetrain.config import Config
from firetrain.config.label import model_label
from firetrain.data.batch import Batch
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.order import share
from firetrain.parallel.catalogue import replicate, worker_of
from firetrain.parallel.data_parallel import largest_batch
from firetrain.parallel.worker import Worker
from firetrain.predict.calibration import CROWDED, Crowd, Measurements, calibrated
from firetrain.provenance import provenance
from firetrain.records.bootstrap import interval, medians
from firetrain.records.profile import MeasuredLink, MeasuredStep, Profile, Quantity
from firetrain.reduction.context import Context
from firetrain.training.input import make_loader
from firetrain.transport.device import device_name, synchronize
from firetrain.transport.timing import elapsed_s, slowest_s
from firetrain.transport.transport import Transport

_ADDED_BYTES = 4 << 20
_LEAST_CROWD_BYTES, _MOST_CROWD_BYTES = 64 << 10, 16 << 20
_POINTS = 16


def measure_profile(
    path: Path, config: Config, transport: Transport, batches: Sequence[int], steps: int, repeats: int
) -> tuple[Measurements, Profile]:
    """Run all measurements of a profile; rank 0 adds them to the profile in `path`. Collective; the same result everywhere.

    `batches`: images per rank to time; if empty, half, one and two times the config's.
    """
    before = Profile.load_or_new(path)
    usual = -(-config.batch.global_size // transport.size)
    counts = batches or sorted({max(1, usual // 2), usual, 2 * usual})
    measured = _measure(config, transport, counts, steps, repeats)
    after = calibrated(before, config, measured, provenance())
    if transport.rank == 0:
        after.save(path)
    return measured, after


def _measure(config: Config, transport: Transport, batches: Sequence[int], steps: int, repeats: int) -> Measurements:
    dataset = open_dataset(config.data)
    model = replicate(config, len(dataset.classes), transport)
    measured = [_step(config, model, transport, batch, steps, len(dataset.classes)) for batch in sorted(batches)]
    links = bench_link(transport, repeats) if transport.size > 1 else []
    return Measurements(
        transport.world, measured, links, _added(transport, repeats * 3), _read(config, dataset, transport, steps, repeats),
        _whole(config, model, transport, steps, len(dataset.classes)), list(_crowds(transport, links, repeats)),
        bench_gap(transport, repeats) if transport.size > 1 else None,
    )  # fmt: skip


def _step(
    config: Config, model: torch.nn.Module, transport: Transport, count: int, steps: int, classes: int
) -> MeasuredStep:
    """Time forward, backward and update of `count` images on all ranks simultaneously, without communication."""
    batch = make_batch(np.arange(count), config.data.image_size, classes).moved(transport.device)
    worker = worker_of(config, model, transport)
    passes: list[tuple[float, float]] = []
    with worker.unreduced():
        for _ in range(steps + 2):  # the first ones warm up
            transport.barrier()
            started_s = time.perf_counter()
            worker.backward(iter([batch]), [batch.samples], epoch=0)
            worker.finish(count)
            synchronize(transport.device)
            computed_s = time.perf_counter()
            worker.update(RATE)
            synchronize(transport.device)
            passes.append((computed_s - started_s, time.perf_counter() - computed_s))
        forward, ready = _arrivals(model, worker, batch, transport)
    worker.close()
    rows = [(forward * both_s, (1 - forward) * both_s, update_s) for both_s, update_s in passes[2:]]
    own = torch.tensor(rows, dtype=torch.float64, device=transport.device)
    everyone = torch.stack(transport.gather(own)).cpu().numpy()
    totals = everyone.sum(axis=2)
    return MeasuredStep(
        model=model_label(config.model, config.data),
        image_size=config.data.image_size, batch_per_rank=count, device=device_name(transport.device),
        forward_s=_quantity(everyone[:, :, 0]), backward_s=_quantity(everyone[:, :, 1]), update_s=_quantity(everyone[:, :, 2]),
        ready=_thin(ready), jitter=Quantity(value=pstdev(totals.ravel()) / median(totals.ravel()), count=totals.size),
    )  # fmt: skip


def _arrivals(
    model: torch.nn.Module, worker: Worker, batch: Batch, transport: Transport
) -> tuple[float, list[tuple[int, float]]]:
    """(share of the forward pass in both passes, (bytes, share of the backward pass) of each gradient in order of completion).

    Measured in a pass of its own, because synchronising costs time on a GPU. The backward pass is assumed to start when the
    first gradient, that of the last layer, is complete.
    """
    arrivals: list[tuple[int, float]] = []

    def arrived(parameter: torch.Tensor) -> None:
        synchronize(transport.device)
        arrivals.append((parameter.numel() * 4, time.perf_counter()))

    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in model.parameters() if p.requires_grad]
    started_s = time.perf_counter()
    worker.backward(iter([batch]), [batch.samples], epoch=0)
    synchronize(transport.device)
    ends_s = time.perf_counter()
    for hook in hooks:
        hook.remove()
    first_s = arrivals[0][1]
    backward_s = max(ends_s - first_s, 1e-9)
    return (first_s - started_s) / (ends_s - started_s), [
        (size, (at_s - first_s) / backward_s) for size, at_s in arrivals
    ]


def _whole(config: Config, model: torch.nn.Module, transport: Transport, steps: int, classes: int) -> Quantity:
    """Seconds of a whole training step, with its reduction, on the slowest rank."""
    mine = share(np.arange(config.batch.global_size), transport.rank, transport.size)
    batch = make_batch(mine, config.data.image_size, classes).moved(transport.device)
    step = ours(config, model, batch, transport, str(config.reduction.spec)).step
    times = [slowest_s(transport, step) for _ in range(steps + 2)][2:]
    return _quantity(np.array(times))


def _crowds(transport: Transport, links: Sequence[MeasuredLink], repeats: int) -> Iterator[Crowd]:
    """Time all-reduces in which several nodes send to one node; their size takes a link about a tenth of a second."""
    if len(transport.world.nodes) < 3:
        return
    size_bytes = int(min(_MOST_CROWD_BYTES, max(_LEAST_CROWD_BYTES, 0.1 * links[-1].bytes_per_s))) // 4 * 4
    (rows,) = bench_allreduce(Context(transport), list(CROWDED), [size_bytes], repeats)
    for row in rows:
        # half width of the median's 95 % interval, from the middle 80 % of a normal distribution
        half_s = 1.96 * 1.25 * (row.p90_s - row.p10_s) / 2.56 / math.sqrt(repeats)
        seconds = Quantity(
            value=row.median_s, low=max(0.0, row.median_s - half_s), high=row.median_s + half_s, count=repeats
        )
        yield Crowd(row.reduction, size_bytes, seconds)


def _read(config: Config, dataset: Dataset, transport: Transport, steps: int, repeats: int) -> Quantity:
    """Images per second that a node loads and prepares, with all its ranks loading."""
    images = len(dataset.train.labels)
    count = min(largest_batch(config.batch, transport.size), images)
    loader = make_loader(config.data, config.seed, dataset, transport, count, train=True)
    rates = []
    for repeat in range(repeats):
        # every rank reads different images, which are not cached yet
        turn = repeat * transport.size + transport.rank
        wanted = [np.arange(count) + count * (turn * (steps + 1) + number) for number in range(steps + 1)]
        transport.barrier()
        batches = loader.batches([samples % images for samples in wanted], epoch=0)
        next(batches)  # wait until the threads have started
        synchronize(transport.device)
        started_s = time.perf_counter()
        read = sum(len(batch) for batch in batches)
        synchronize(transport.device)
        rates.append(read / (time.perf_counter() - started_s))
    loader.close()
    everyone = torch.stack(transport.gather(torch.tensor(rates, dtype=torch.float64, device=transport.device))).cpu()
    return _quantity([everyone[list(ranks)].sum(0).numpy() for ranks in transport.world.nodes])


def _added(transport: Transport, repeats: int) -> Quantity:
    """Seconds per byte to add one buffer to another on the device."""
    own, other = (torch.ones(_ADDED_BYTES // 4, device=transport.device) for _ in range(2))
    times_s = [elapsed_s(transport.device, lambda: own.add_(other)) for _ in range(repeats + 1)]
    return _quantity(np.array(times_s[1:]) / _ADDED_BYTES)


def _quantity(values: Any) -> Quantity:
    """The median, with its 95 % interval."""
    flat = np.ravel(values)
    low, high = interval(medians(flat))
    return Quantity(value=float(np.median(flat)), low=low, high=high, count=len(flat))


def _thin(ready: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Merge gradients into at most about `_POINTS` portions, each complete with its last gradient."""
    whole, found, held = sum(size for size, _ in ready), [], 0
    for size, at in ready:
        held += size
        if held >= whole / _POINTS:
            found.append((held, min(1.0, max(0.0, at))))
            held = 0
    return (*found, (held, 1.0)) if held else tuple(found)
