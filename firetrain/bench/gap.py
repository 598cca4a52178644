"""Measure the per-message overhead of a rank, which is independent of the message's size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median

import torch

from firetrain.cluster import World
from firetrain.records.profile import Quantity
from firetrain.reduction.context import Context
from firetrain.reduction.executor import execute
from firetrain.reduction.interface import Bucket, Reduction
from firetrain.topology import Plan, Transfer
from firetrain.transport.timing import slowest_s
from firetrain.transport.transport import Transport

# length of a message, so small that its time on the link is far below the gap
_ELEMENTS = 64
# messages that a rank sends and receives in the short and the long burst
_FEW, _MANY = 32, 128
_TURNS = 3
# maximum number of peers; more would only use more file descriptors
_MOST_PEERS = 16


def bench_gap(transport: Transport, repeats: int) -> Quantity:
    """Seconds between two messages of one rank while all ranks send many small messages to up to 16 others.

    Messages are sent like those of plans. The result is the slope between a short and a long burst, which removes latency and
    start-up: the larger one of o and g of the LogGP model (Alexandrov et al. 1995). Value: median of several repetitions;
    interval: minimum to maximum. Collective call of two or more ranks; all get the same result.
    """
    peers = min(_MOST_PEERS, transport.size - 1)
    counts = [max(1, count // peers) for count in (_FEW, _MANY)]
    if counts[0] == counts[1]:
        counts[1] += 1
    runs = [execute(partial(_burst, count=count), Context(transport)) for count in counts]
    lengths = [count * transport.size * _ELEMENTS for count in counts]
    buckets = [Bucket(torch.zeros(length, device=transport.device)) for length in lengths]
    bursts = [partial(_send_burst, run, bucket) for run, bucket in zip(runs, buckets, strict=True)]
    for run, bucket, burst in zip(runs, buckets, bursts, strict=True):
        run.prepare([bucket])
        slowest_s(transport, burst)  # opens connections and allocates memory
    slopes = []
    for _ in range(_TURNS):
        times = [[slowest_s(transport, burst) for _ in range(repeats)] for burst in bursts]
        slopes.append(_slope([median(row) for row in times], [count * peers for count in counts]))
    for run in runs:
        run.close()
    return Quantity(value=median(slopes), low=min(slopes), high=max(slopes), count=_TURNS * repeats)


def _send_burst(run: Reduction, bucket: Bucket) -> None:
    run.start(bucket).wait()


def _slope(times_s: Sequence[float], messages: Sequence[int]) -> float:
    return max(0.0, (times_s[1] - times_s[0]) / (messages[1] - messages[0]))


def _burst(world: World, count: int) -> Plan:
    """Every rank sends `count` messages to each of the preceding ranks.

    Adjacent chunks have different receivers, so that no two of them are merged into one message.
    """
    size = world.size
    transfers = [
        Transfer((chunk + distance) % size, chunk % size, chunk, True)
        for chunk in range(count * size)
        for distance in range(1, min(_MOST_PEERS, size - 1) + 1)
    ]
    return Plan("burst", size, count * size, tuple(transfers))
