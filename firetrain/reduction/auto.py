"""Auto: for each size of bucket the reduction that is fastest on these machines."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.records.profile import Table, Timing
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.reduction.wiring import Wiring
from firetrain.topology import Plan

_REPEATS = 5
# a candidate that is this much slower than the best in the first round is not tried again
_HOPELESS = 2.0
# short reductions are timed in a row, until the row has moved about this much
_ROW_BYTES = 1 << 18
_FLOAT32_BYTES = 4


class Auto(Reduction):
    """Chooses when told what buckets will come; all ranks choose alike, because they choose from the same numbers.

    The numbers are those of the profile's table for this world (rank 0 reads it for all), or else the medians of a few
    rounds in which the candidates take turns in shuffled order, each timed by its slowest rank.
    """

    def __init__(self, wiring: Wiring, candidates: str = "") -> None:
        self._wiring = wiring
        transport = wiring.transport
        table = wiring.profile and wiring.profile.table(transport.name, transport.world.node_of, wiring.wire_dtype)
        self._table: Table | None = transport.broadcast_object(table)
        if "auto" in (Spec.parse(name).name for name in candidates.split("+") if candidates):
            raise UserError(f"auto cannot be a candidate of its own (candidates: {candidates})")
        self._candidates = tuple(candidates.split("+")) if candidates else None
        if self._table and self._candidates and not {row.reduction for row in self._table.rows} & set(self._candidates):
            self._table = None  # it says nothing about these
        self._reductions: dict[str, Reduction] = {}
        self._choices: dict[int, str] = {}

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Choose for each length; close what was not chosen."""
        for length in sorted({len(bucket) for bucket in buckets}):
            table = self._table or self._measure(length)
            self._choices[length] = table.fastest(length * _FLOAT32_BYTES, self._candidates)
        for name in sorted(self._reductions.keys() - set(self._choices.values())):
            self._reductions.pop(name).close()
        for name in sorted(set(self._choices.values())):
            self._reduction(name).prepare([bucket for bucket in buckets if self._choices[len(bucket)] == name])

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Begin with the choice for the bucket's length."""
        if len(bucket) not in self._choices:
            self.prepare([bucket])
        return self._reduction(self._choices[len(bucket)]).start(bucket, step)

    def plan(self, length: int) -> Plan | None:
        """That of the choice."""
        return self._reduction(self._choices[length]).plan(length)

    def facts(self) -> dict[str, Any]:
        """The choice by bytes, and where the numbers came from."""
        return {
            "chosen": {str(length * _FLOAT32_BYTES): name for length, name in self._choices.items()},
            "from": "the profile's table" if self._table else "a measurement before the first step",
        }

    def close(self) -> None:
        """Close what is open."""
        for reduction in self._reductions.values():
            reduction.close()

    def _reduction(self, name: str) -> Reduction:
        if name not in self._reductions:
            self._reductions[name] = find_reduction(name, self._wiring)
        return self._reductions[name]

    def _measure(self, length: int) -> Table:
        transport = self._wiring.transport
        bucket = Bucket(torch.zeros(length, device=transport.device))
        names = list(self._candidates or ("native", *installed_names(TOPOLOGIES)))
        times: dict[str, list[float]] = {name: [] for name in names}
        row = max(1, min(20, _ROW_BYTES // (length * _FLOAT32_BYTES + 1)))
        for repeat in range(_REPEATS):
            random.Random(repeat).shuffle(names)
            for name in names:
                if repeat == 0:  # programs, scratch, sockets
                    self._time(name, bucket, 1)
                times[name].append(self._time(name, bucket, row))
            best = min(values[-1] for values in times.values())
            if repeat == 0:
                names = [name for name in names if times[name][0] <= _HOPELESS * best]
        rows = (Timing(reduction=name, bytes=length * 4, median_s=median(values)) for name, values in times.items())
        return Table(
            transport=transport.name,
            node_of=transport.world.node_of,
            wire_dtype=self._wiring.wire_dtype,
            rows=tuple(rows),
        )

    def _time(self, name: str, bucket: Bucket, row: int) -> float:
        """Seconds of the slowest rank."""
        reduction, transport = self._reduction(name), self._wiring.transport
        transport.barrier()
        started_s = time.perf_counter()
        for _ in range(row):
            reduction.start(bucket).wait()
        if transport.device.type == "cuda":
            torch.cuda.synchronize()
        spent = torch.tensor([(time.perf_counter() - started_s) / row], dtype=torch.float64, device=transport.device)
        return max(float(value) for value in transport.gather(spent))
