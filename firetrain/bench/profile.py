"""What a prediction is made from: a step's parts without communication, links, adding, and what the model leaves unexplained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median, pstdev
from typing import Any

import numpy as np
import torch

from firetrain.bench.link import bench_link
from firetrain.bench.step import make_batch, ours, time_steps
from firetrain.config import Config
from firetrain.data.catalogue import open_dataset
from firetrain.data.order import part
from firetrain.optim.catalogue import make_optimizer, set_rate
from firetrain.predict.label import model_label
from firetrain.records.profile import MeasuredLink, MeasuredStep, Quantity
from firetrain.reduction.transport import Transport
from firetrain.training.loop import prepare_model
from firetrain.training.step import ForwardBackward

_RATE = 1e-4
_ADDED_BYTES = 4 << 20
_POINTS = 16


def bench_profile(
    config: Config, transport: Transport, batches: Sequence[int], steps: int, repeats: int
) -> tuple[list[MeasuredStep], list[MeasuredLink], Quantity, Quantity]:
    """All ranks together: (steps per batch, links, seconds per added byte, seconds of a whole step at the config's batch)."""
    dataset = open_dataset(config.data)
    model = prepare_model(config, dataset, transport)
    found = [_step(config, model, transport, batch, steps, len(dataset.classes)) for batch in sorted(batches)]
    links = bench_link(transport, repeats) if transport.size > 1 else []
    return found, links, _added(transport, repeats * 3), _whole(config, model, transport, steps, len(dataset.classes))


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
    step = ours(config, model, batch, transport).step
    times = [time_steps(step, 1, transport) for _ in range(steps + 2)][2:]
    return _quantity(np.array(times))


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
