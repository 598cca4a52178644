"""How long an all-reduce takes, for several reductions side by side, in the terms of nccl-tests."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firetrain.bench.busy import Busy
from firetrain.config.spec import Spec
from firetrain.errors import FiretrainError
from firetrain.records.profile import Table, Timing
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.checksum import checksum
from firetrain.reduction.interface import Bucket, Reduction
from firetrain.reduction.wiring import Wiring
from firetrain.topology import Plan

LOSSY = ("powersgd", "top-k")
# whole numbers up to this are exact in the wire dtype, and so are all partial sums below it
_EXACT = {"float32": 1 << 24, "bfloat16": 1 << 8, "float16": 1 << 11}
_ROW_BYTES = 1 << 20
_LONGEST_ROW = 20
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Row:
    """A reduction at one size. Bandwidths as nccl-tests defines them, from the median; GB are 1e9 bytes.

    `wrong`: elements, over all ranks, that differ from the exact sum, or bits that differ between ranks; None if the reduction
    is lossy by design. `error`: of sums of random numbers against float64, relative, in the L2 norm. Wire bytes are those
    of all ranks together; None if the library does not tell. `busy`: the share of the processors of the busiest machine that
    were busy; where it is near 1, they and not the links decide.
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
    wiring: Wiring, names: Sequence[str], sizes_bytes: Sequence[int], repeats: int
) -> Iterator[list[Row]]:
    """Time reductions in place at each size, in shuffled order, `repeats` times; every result is verified first.

    Times are those of the slowest rank. All ranks call it together and get the same rows, size by size. FiretrainError if
    a reduction that is not lossy gives a wrong sum.
    """
    reductions = {name: find_reduction(name, wiring) for name in names}
    for size_bytes in sizes_bytes:
        yield _Contest(wiring, reductions, size_bytes // _FLOAT32_BYTES).rows(repeats)
    for reduction in reductions.values():
        reduction.close()


def table_of(rows: Sequence[Row], wiring: Wiring) -> Table:
    """The rows as a profile keeps them for `auto`: without what is lossy, and without auto itself."""
    kept = [row for row in rows if row.wrong == 0 and Spec.parse(row.reduction).name != "auto"]
    return Table(
        transport=wiring.transport.name,
        node_of=wiring.transport.world.node_of,
        wire_dtype=wiring.wire_dtype,
        rows=tuple(Timing(reduction=row.reduction, bytes=row.bytes, median_s=row.median_s) for row in kept),
    )


class _Contest:
    """All reductions at one size."""

    def __init__(self, wiring: Wiring, reductions: Mapping[str, Reduction], length: int) -> None:
        self._wiring, self._transport, self._reductions = wiring, wiring.transport, reductions
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

    def rows(self, repeats: int) -> list[Row]:
        """Verify, warm up, time."""
        verified = {name: self._verify(name) for name in self._reductions}
        times: dict[str, list[float]] = {name: [] for name in self._reductions}
        row = max(1, min(_LONGEST_ROW, _ROW_BYTES // (self._length * _FLOAT32_BYTES)))
        for name in self._reductions:
            self._time(name, row)
        names = list(self._reductions)
        busy = {name: Busy() for name in names}
        for repeat in range(repeats):
            random.Random(repeat).shuffle(names)
            for name in names:
                with busy[name]:
                    times[name].append(self._time(name, row))
        return [
            self._row(name, times[name], *verified[name], busy[name].of_busiest(self._transport))
            for name in self._reductions
        ]

    def _limit(self) -> int:
        return max(1, min(1000, _EXACT[self._wiring.wire_dtype] // self._transport.size))

    def _verify(self, name: str) -> tuple[int | None, float]:
        """(wrong elements, relative error of real sums)."""
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
                f"{name} gives wrong sums of {self._length} whole numbers over {self._transport.world}: {total} elements "
                "differ, or ranks differ in their bits; nothing was timed"
            )
        return total, error

    def _error(self, name: str) -> float:
        got = self._reduce(name, self._real)
        return float((got.double() - self._exact).norm() / self._exact.norm())

    def _reduce(self, name: str, values: Tensor) -> Tensor:
        self._bucket.buffer.copy_(values)
        self._reductions[name].start(self._bucket).wait()
        return self._bucket.buffer

    def _time(self, name: str, row: int) -> float:
        """Seconds of the slowest rank, for one of `row` in a row."""
        self._bucket.buffer.copy_(self._real).mul_(1e-6)  # sums of sums: far from overflow
        reduction = self._reductions[name]
        self._transport.barrier()
        started_s = time.perf_counter()
        for _ in range(row):
            reduction.start(self._bucket).wait()
        if self._transport.device.type == "cuda":
            torch.cuda.synchronize()
        spent = torch.tensor([(time.perf_counter() - started_s) / row], dtype=torch.float64)
        return max(float(value) for value in self._transport.gather(spent.to(self._transport.device)))

    def _row(self, name: str, times: Sequence[float], wrong: int | None, error: float, busy: float | None) -> Row:
        size_bytes, ranks = self._length * _FLOAT32_BYTES, self._transport.size
        p10, median, p90 = (float(value) for value in np.percentile(times, [10, 50, 90]))
        algbw = size_bytes / median / 1e9
        chosen = self._reductions[name].facts().get("chosen", {}).get(str(size_bytes))
        inside, between = self._wire_bytes(self._reductions[name].plan(self._length))
        return Row(
            name, size_bytes, "float32", median, p10, p90, algbw, algbw * 2 * (ranks - 1) / ranks, wrong,
            len(self._transport.world.nodes), ranks, self._wiring.wire_dtype, error, len(times), inside, between, chosen, busy,
        )  # fmt: skip

    def _wire_bytes(self, plan: Plan | None) -> tuple[int | None, int | None]:
        if plan is None:
            return None, None
        return wire_bytes(plan, self._transport.world.node_of, self._length, self._wiring.dtype.itemsize)


def wire_bytes(plan: Plan, node_of: Sequence[int], length: int, element_bytes: int) -> tuple[int, int]:
    """Bytes that travel inside nodes, and between nodes, for a buffer of `length` elements."""
    totals = [0, 0]
    for source, target, chunk, _ in plan.transfers:
        start, end = plan.bounds(chunk, length)
        totals[node_of[source] != node_of[target]] += (end - start) * element_bytes
    return totals[0], totals[1]


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as dictionaries."""
    return [asdict(row) for row in rows]


def _whole_numbers(rank: int, length: int, limit: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Whole numbers from -limit to limit that differ by rank and place."""
    places = np.arange(length, dtype=np.int64)
    return ((places * 7 + rank * 13 + places // 31) % (2 * limit + 1) - limit).astype(np.float32)


def _nearly_square(length: int) -> torch.Size:
    """A matrix shape for what compresses matrices."""
    rows = next(side for side in range(int(length**0.5), 0, -1) if length % side == 0)
    return torch.Size([rows, length // rows])
