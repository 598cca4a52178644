"""How close together a rank's messages can be: what each costs its sender and its receiver, whatever its size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch

from firetrain.cluster import World
from firetrain.records.profile import Quantity
from firetrain.reduction.dataflow import Dataflow
from firetrain.reduction.interface import Bucket, Reduction
from firetrain.reduction.rounds import Rounds
from firetrain.reduction.transport import Transport
from firetrain.reduction.wiring import Wiring
from firetrain.topology import Plan, Transfer

# of one message: far below what a link needs the gap for
_ELEMENTS = 64
# messages that a rank sends, and receives, in the shorter and in the longer burst
_FEW, _MANY = 32, 128
_TURNS = 3
# a rank has that many peers at most: more connections would cost files, and show nothing more
_MOST_PEERS = 16


def bench_gap(transport: Transport, repeats: int) -> Quantity:
    """Seconds between two messages of one rank while all ranks send many small ones to up to 16 others, as plans are executed.

    The slope between two bursts, so that neither latency nor the start counts: o and g of the LogGP model (Alexandrov et al.
    1995), whichever is larger. The median, with the smallest and the largest of a few turns as its interval. All ranks of two
    or more call it together and get the same.
    """
    peers = min(_MOST_PEERS, transport.size - 1)
    counts = [max(1, count // peers) for count in (_FEW, _MANY)]
    if counts[0] == counts[1]:
        counts[1] += 1
    plans = [_burst(transport.world, count) for count in counts]
    wiring = Wiring(transport)
    runs: list[Reduction] = [
        Rounds(plan, wiring) if transport.name == "nccl" else Dataflow(plan, wiring) for plan in plans
    ]
    buckets = [Bucket(torch.zeros(plan.chunks * _ELEMENTS, device=transport.device)) for plan in plans]
    for run, bucket in zip(runs, buckets, strict=True):
        run.prepare([bucket])
        _burst_s(transport, run, bucket)  # connections are open, memory is there
    slopes = []
    for _ in range(_TURNS):
        times = [
            [_burst_s(transport, run, bucket) for _ in range(repeats)]
            for run, bucket in zip(runs, buckets, strict=True)
        ]
        slopes.append(_slope([median(row) for row in times], [count * peers for count in counts]))
    for run in runs:
        run.close()
    return Quantity(value=median(slopes), low=min(slopes), high=max(slopes), count=_TURNS * repeats)


def _slope(times_s: Sequence[float], messages: Sequence[int]) -> float:
    return max(0.0, (times_s[1] - times_s[0]) / (messages[1] - messages[0]))


def _burst(world: World, count: int) -> Plan:
    """Every rank sends `count` messages to each of its peers, those before it; chunks that lie side by side have different
    receivers, so that none travel together."""
    size = world.size
    transfers = [
        Transfer((chunk + distance) % size, chunk % size, chunk, True)
        for chunk in range(count * size)
        for distance in range(1, min(_MOST_PEERS, size - 1) + 1)
    ]
    return Plan("burst", size, count * size, tuple(transfers))


def _burst_s(transport: Transport, run: Reduction, bucket: Bucket) -> float:
    """Seconds of the slowest rank."""
    transport.barrier()
    started_s = time.perf_counter()
    run.start(bucket).wait()
    if transport.device.type == "cuda":
        torch.cuda.synchronize()
    spent = torch.tensor([time.perf_counter() - started_s], dtype=torch.float64, device=transport.device)
    return max(float(value) for value in transport.gather(spent))
