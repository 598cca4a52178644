"""What a prediction is made from: a step's parts without communication, links, adding, and what the model leaves unexplained."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from statistics import median, pstdev
from typing import Any

import numpy as np
import torch

from firetrain.bench.allreduce import bench_allreduce
from firetrain.bench.gap import bench_gap
from firetrain.bench.link import bench_link
from firetrain.bench.step import make_batch, ours, time_steps
from firetrain.config import Config
from firetrain.data.catalogue import open_dataset
from firetrain.data.images import Dataset
from firetrain.data.order import part
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.predict.calibration import CROWDED, Crowd, Measurements
from firetrain.predict.label import model_label
from firetrain.records.profile import MeasuredLink, MeasuredStep, Quantity
from firetrain.reduction.transport import Transport
from firetrain.reduction.wiring import Wiring
from firetrain.training.loop import largest_piece, make_loader, prepare_model
from firetrain.training.step import ForwardBackward

_RATE = 1e-4
_ADDED_BYTES = 4 << 20
_LEAST_CROWD_BYTES, _MOST_CROWD_BYTES = 64 << 10, 16 << 20
_POINTS = 16


def bench_profile(
    config: Config, transport: Transport, batches: Sequence[int], steps: int, repeats: int
) -> Measurements:
    """All ranks together; the same on all."""
    dataset = open_dataset(config.data)
    model = prepare_model(config, dataset, transport)
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
    """Forward, backward and update of `count` images, on all ranks at once, without communication."""
    batch = make_batch(np.arange(count), config.data.image_size, classes)
    forward_backward = ForwardBackward(model, config, transport.device)
    optimizer = make_optimizer(model, config)
    set_rate(optimizer, _RATE)
    passes: list[tuple[float, float]] = []
    for _ in range(steps + 2):  # the first ones warm up
        optimizer.zero_grad(set_to_none=False)
        transport.barrier()
        _settle(transport)
        started_s = time.perf_counter()
        forward_backward(batch, epoch=0)
        _settle(transport)
        computed_s = time.perf_counter()
        optimizer.step()
        _settle(transport)
        passes.append((computed_s - started_s, time.perf_counter() - computed_s))
    forward, ready = _arrivals(model, forward_backward, batch, transport)
    rows = [(forward * both_s, (1 - forward) * both_s, update_s) for both_s, update_s in passes[2:]]
    own = torch.tensor(rows, dtype=torch.float64, device=transport.device)
    everyone = torch.stack(transport.gather(own)).cpu().numpy()
    totals = everyone.sum(axis=2)
    return MeasuredStep(
        model=model_label(config), image_size=config.data.image_size, batch_per_rank=count, device=_device(transport),
        forward_s=_quantity(everyone[:, :, 0]), backward_s=_quantity(everyone[:, :, 1]), update_s=_quantity(everyone[:, :, 2]),
        ready=_thin(ready), jitter=Quantity(value=pstdev(totals.ravel()) / median(totals.ravel()), count=totals.size),
    )  # fmt: skip


def _arrivals(
    model: torch.nn.Module, forward_backward: ForwardBackward, batch: Any, transport: Transport
) -> tuple[float, list[tuple[int, float]]]:
    """(the forward pass's share of both, (bytes, share of the backward pass) of each gradient as it comes).

    In a pass of its own: on a GPU looking costs time. The first gradient is the last layer's: backward has just begun.
    """
    arrivals: list[tuple[int, float]] = []

    def arrived(parameter: torch.Tensor) -> None:
        _settle(transport)
        arrivals.append((parameter.numel() * 4, time.perf_counter()))

    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in model.parameters() if p.requires_grad]
    started_s = time.perf_counter()
    forward_backward(batch, epoch=0)
    _settle(transport)
    ends_s = time.perf_counter()
    for hook in hooks:
        hook.remove()
    first_s = arrivals[0][1]
    backward_s = max(ends_s - first_s, 1e-9)
    return (first_s - started_s) / (ends_s - started_s), [
        (size, (at_s - first_s) / backward_s) for size, at_s in arrivals
    ]


def _whole(config: Config, model: torch.nn.Module, transport: Transport, steps: int, classes: int) -> Quantity:
    """Seconds of a step as training has it, reduction and all; of the slowest rank."""
    mine = part(np.arange(config.batch.global_size), transport.rank, transport.size)
    batch = make_batch(mine, config.data.image_size, classes)
    step = ours(config, model, batch, transport, str(config.reduction.spec)).step
    times = [time_steps(step, 1, transport) for _ in range(steps + 2)][2:]
    return _quantity(np.array(times))


def _crowds(transport: Transport, links: Sequence[MeasuredLink], repeats: int) -> Iterator[Crowd]:
    """All-reduces in which several nodes send to one, of what a link carries in a tenth of a second."""
    if len(transport.world.nodes) < 3:
        return
    size_bytes = int(min(_MOST_CROWD_BYTES, max(_LEAST_CROWD_BYTES, 0.1 * links[-1].bytes_per_s))) // 4 * 4
    (rows,) = bench_allreduce(Wiring(transport), list(CROWDED), [size_bytes], repeats)
    for row in rows:
        # of the median, from the spread of the middle 80 %, as for normal numbers
        half_s = 1.96 * 1.25 * (row.p90_s - row.p10_s) / 2.56 / math.sqrt(repeats)
        seconds = Quantity(
            value=row.median_s, low=max(0.0, row.median_s - half_s), high=row.median_s + half_s, count=repeats
        )
        yield Crowd(row.reduction, size_bytes, seconds)


def _read(config: Config, dataset: Dataset, transport: Transport, steps: int, repeats: int) -> Quantity:
    """Images per second that a node makes ready for training, while all its ranks do."""
    loader = make_loader(config, dataset, transport, train=True)
    count, images = largest_piece(config, transport), len(dataset.train.labels)
    rates = []
    for repeat in range(repeats):
        # what another rank reads would come from this node's memory
        turn = repeat * transport.size + transport.rank
        pieces = [np.arange(count) + count * (turn * (steps + 1) + number) for number in range(steps + 1)]
        transport.barrier()
        batches = loader.batches([piece % images for piece in pieces], epoch=0)
        next(batches)  # the threads have begun
        started_s = time.perf_counter()
        read = sum(len(batch) for batch in batches)
        rates.append(read / (time.perf_counter() - started_s))
    loader.close()
    everyone = torch.stack(transport.gather(torch.tensor(rates, dtype=torch.float64, device=transport.device))).cpu()
    return _quantity([everyone[list(ranks)].sum(0).numpy() for ranks in transport.world.nodes])


def _added(transport: Transport, repeats: int) -> Quantity:
    """Seconds per byte of adding one buffer to another, where sums are made."""
    own, other = (torch.ones(_ADDED_BYTES // 4, device=transport.device) for _ in range(2))
    times = []
    for _ in range(repeats + 1):
        started_s = time.perf_counter()
        own.add_(other)
        _settle(transport)
        times.append((time.perf_counter() - started_s) / _ADDED_BYTES)
    return _quantity(np.array(times[1:]))


def _quantity(values: Any) -> Quantity:
    """The median, with the 95 % interval of the median by the bootstrap."""
    flat = np.ravel(values)
    draws = np.median(np.random.default_rng(1).choice(flat, (500, len(flat))), axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return Quantity(value=float(np.median(flat)), low=float(low), high=float(high), count=len(flat))


def _thin(ready: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The same bytes in at most so many portions, each ready with its last gradient."""
    whole, found, held = sum(size for size, _ in ready), [], 0
    for size, share in ready:
        held += size
        if held >= whole / _POINTS:
            found.append((held, min(1.0, max(0.0, share))))
            held = 0
    return (*found, (held, 1.0)) if held else tuple(found)


def _settle(transport: Transport) -> None:
    if transport.device.type == "cuda":
        torch.cuda.synchronize()


def _device(transport: Transport) -> str:
    return torch.cuda.get_device_name() if transport.device.type == "cuda" else "cpu"
