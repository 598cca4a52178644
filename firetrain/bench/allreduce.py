"""Time all-reduces by several reductions, with the metrics of nccl-tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firetrain.bench.busy import Busy
from firetrain.config.spec import Spec
from firetrain.errors import FiretrainError
from firetrain.records.profile import Timing, TimingTable
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Reduction
from firetrain.topology import Plan
from firetrain.transport.checksum import checksum
from firetrain.transport.timing import slowest_s

LOSSY = ("powersgd", "top-k")
# integers up to this limit are exact in the wire dtype, and so are partial sums up to it
_EXACT = {"float32": 1 << 24, "bfloat16": 1 << 8, "float16": 1 << 11}
_CONSECUTIVE_BYTES = 1 << 20
_MOST_CONSECUTIVE = 20
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Measurement:
    """A reduction at one size. Bandwidths are those of nccl-tests, computed from the median; 1 GB is 1e9 bytes.

    `wrong`: elements, over all ranks, that differ from the exact sum or between ranks; None if the reduction is lossy by design.
    `error`: relative error of sums of random numbers compared with float64, in the L2 norm.
    `wire_bytes_*`: over all ranks; None if unknown.
    `busy`: processor utilisation of the busiest machine, 0 to 1; near 1 the processors, not the links, are the bottleneck.
    """

    reduction: str
    bytes: int
    dtype: str
    median_s: float
    p10_s: float
    p90_s: float
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int | None
    nodes: int
    ranks: int
    wire_dtype: str
    error: float
    repeats: int
    wire_bytes_inside_nodes: int | None
    wire_bytes_between_nodes: int | None
    chosen: str | None = None
    busy: float | None = None


def bench_allreduce(
    context: Context, names: Sequence[str], sizes_bytes: Sequence[int], repeats: int
) -> Iterator[list[Measurement]]:
    """Time reductions in place at each size, in shuffled order, `repeats` times; every result is verified first.

    Times are those of the slowest rank. Collective call; all ranks get the same rows, size by size. FiretrainError if a
    reduction that is not lossy gives a wrong sum.
    """
    reductions = {name: find_reduction(name, context) for name in names}
    for size_bytes in sizes_bytes:
        yield _Contest(context, reductions, size_bytes // _FLOAT32_BYTES).rows(repeats)
    for reduction in reductions.values():
        reduction.close()


def table_of(rows: Sequence[Measurement], context: Context) -> TimingTable:
    """The table of a profile for `auto`: the rows without lossy reductions and without auto itself."""
    kept = [row for row in rows if row.wrong == 0 and Spec.parse(row.reduction).name != "auto"]
    return TimingTable(
        transport=context.transport.name,
        node_of=context.transport.world.node_of,
        wire_dtype=context.wire_dtype,
        rows=tuple(Timing(reduction=row.reduction, bytes=row.bytes, median_s=row.median_s) for row in kept),
    )


class _Contest:
    """Times all reductions at one size, alternating between them."""

    def __init__(self, context: Context, reductions: Mapping[str, Reduction], length: int) -> None:
        self._context, self._transport, self._reductions = context, context.transport, reductions
        self._length = length
        device = self._transport.device
        self._bucket = Bucket(torch.zeros(length, device=device), shapes=(_nearly_square(length),))
        self._whole = torch.from_numpy(_whole_numbers(self._transport.rank, length, self._limit())).to(device)
        draws = torch.Generator().manual_seed(1 + self._transport.rank)
        self._real = torch.randn(length, generator=draws).to(device)
        self._exact = self._transport.sum(self._real.double())
        limit, ranks = self._limit(), range(self._transport.size)
        self._whole_sum = torch.from_numpy(sum(_whole_numbers(rank, length, limit) for rank in ranks))
        for reduction in reductions.values():
            reduction.prepare([self._bucket])

    def rows(self, repeats: int) -> list[Measurement]:
        """Verify, warm up and time all reductions."""
        verified = {name: self._verify(name) for name in self._reductions}
        times: dict[str, list[float]] = {name: [] for name in self._reductions}
        consecutive = max(1, min(_MOST_CONSECUTIVE, _CONSECUTIVE_BYTES // (self._length * _FLOAT32_BYTES)))
        for name in self._reductions:
            self._time_s(name, consecutive)
        names = list(self._reductions)
        busy = {name: Busy() for name in names}
        for repeat in range(repeats):
            random.Random(repeat).shuffle(names)
            for name in names:
                with busy[name]:
                    times[name].append(self._time_s(name, consecutive))
        return [
            self._row(name, times[name], *verified[name], busy[name].of_busiest(self._transport))
            for name in self._reductions
        ]

    def _limit(self) -> int:
        return max(1, min(1000, _EXACT[self._context.wire_dtype] // self._transport.size))

    def _verify(self, name: str) -> tuple[int | None, float]:
        """(wrong elements of integer sums, None for lossy reductions; relative error of sums of random numbers)."""
        spec = Spec.parse(name)
        lossy = spec.name in LOSSY or ("op", "adasum") in spec.parameters
        error = self._error(name)
        if lossy:
            return None, error
        got = self._reduce(name, self._whole)
        wrong = (got.cpu() != self._whole_sum).sum()
        same = {int(value) for value in self._transport.gather(checksum([got]))}
        total = int(self._transport.sum(wrong.to(self._transport.device))) + (len(same) - 1)
        if total:
            raise FiretrainError(
                f"{name}: wrong result for {self._length} integers on {self._transport.world}: {total} elements are wrong or "
                "differ between ranks; not timed"
            )
        return total, error

    def _error(self, name: str) -> float:
        got = self._reduce(name, self._real)
        return float((got.double() - self._exact).norm() / self._exact.norm())

    def _reduce(self, name: str, values: Tensor) -> Tensor:
        self._bucket.buffer.copy_(values)
        self._reductions[name].start(self._bucket).wait()
        return self._bucket.buffer

    def _time_s(self, name: str, consecutive: int) -> float:
        """Mean seconds per reduction over `consecutive` reductions."""
        self._bucket.buffer.copy_(self._real).mul_(1e-6)  # repeated sums must not overflow
        reduction = self._reductions[name]
        return slowest_s(self._transport, lambda: reduction.start(self._bucket).wait(), consecutive)

    def _row(
        self, name: str, times: Sequence[float], wrong: int | None, error: float, busy: float | None
    ) -> Measurement:
        size_bytes, ranks = self._length * _FLOAT32_BYTES, self._transport.size
        p10, median, p90 = (float(value) for value in np.percentile(times, [10, 50, 90]))
        algbw = size_bytes / median / 1e9
        chosen = self._reductions[name].facts().get("chosen", {}).get(str(size_bytes))
        inside, between = self._wire_bytes(self._reductions[name].plan(self._length))
        return Measurement(
            name, size_bytes, "float32", median, p10, p90, algbw, algbw * 2 * (ranks - 1) / ranks, wrong,
            len(self._transport.world.nodes), ranks, self._context.wire_dtype, error, len(times), inside, between, chosen, busy,
        )  # fmt: skip

    def _wire_bytes(self, plan: Plan | None) -> tuple[int | None, int | None]:
        if plan is None:
            return None, None
        return wire_bytes(plan, self._transport.world.node_of, self._length, self._context.dtype.itemsize)


def wire_bytes(plan: Plan, node_of: Sequence[int], length: int, element_bytes: int) -> tuple[int, int]:
    """(bytes sent inside nodes, bytes sent between nodes) for a buffer of `length` elements."""
    totals = [0, 0]
    for source, target, chunk, _ in plan.transfers:
        start, end = plan.bounds(chunk, length)
        totals[node_of[source] != node_of[target]] += (end - start) * element_bytes
    return totals[0], totals[1]


def as_json(rows: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The rows as dictionaries."""
    return [asdict(row) for row in rows]


def _whole_numbers(rank: int, length: int, limit: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Integers from -limit to limit that depend on rank and element."""
    indices = np.arange(length, dtype=np.int64)
    return ((indices * 7 + rank * 13 + indices // 31) % (2 * limit + 1) - limit).astype(np.float32)


def _nearly_square(length: int) -> torch.Size:
    """A matrix shape of this length, for reductions that compress matrices."""
    rows = next(side for side in range(int(length**0.5), 0, -1) if length % side == 0)
    return torch.Size([rows, length // rows])
