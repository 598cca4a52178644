"""Chooses the fastest reduction on these machines for each bucket size."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import Any

import torch

from firetrain.config.names import TOPOLOGIES, installed_names
from firetrain.config.spec import Spec
from firetrain.errors import UserError
from firetrain.records.profile import Timing, TimingTable
from firetrain.reduction.catalogue import find_reduction
from firetrain.reduction.context import Context
from firetrain.reduction.interface import Bucket, Pending, Reduction
from firetrain.topology import Plan
from firetrain.transport.timing import slowest_s

_REPEATS = 5
# a candidate that takes this many times as long as the best one in the first repeat is not tried again
_HOPELESS = 2.0
# short reductions are timed in series that move about this many bytes
_CONSECUTIVE_BYTES = 1 << 18
_FLOAT32_BYTES = 4
# at which a table is asked for what may be chosen: from 4 bytes to 4 GiB
_SIZES_BYTES = tuple(round(4 * 2 ** (half / 2)) for half in range(61))


class Auto(Reduction):
    """Chooses a reduction for each bucket length in `prepare`. All ranks make the same choice.

    The choice is based on the profile's table for this world, which rank 0 reads. Without a table it is based on medians of a
    few repeats, in each of which the candidates are timed in shuffled order, on the slowest rank. In a script of the user's own,
    whose buckets are not known before its first backward pass, all reductions that may be chosen are made at once.
    """

    def __init__(self, context: Context, candidates: str = "") -> None:
        self._context = context
        transport = context.transport
        table = context.profile and context.profile.table(transport.name, transport.world.node_of, context.wire_dtype)
        self._table: TimingTable | None = transport.broadcast_object(table)
        if "auto" in (Spec.parse(name).name for name in candidates.split("+") if candidates):
            raise UserError(f"auto cannot be its own candidate (candidates: {candidates})")
        self._candidates = tuple(candidates.split("+")) if candidates else None
        if self._table and self._candidates and not {row.reduction for row in self._table.rows} & set(self._candidates):
            self._table = None  # it has no timings of these candidates
        if self._table is None and not context.may_measure:
            raise UserError(
                f"auto would measure during a backward pass: give it a profile with a table for {transport.world} "
                f"({transport.name}, {context.wire_dtype}), by firetrain bench allreduce --save FILE on these nodes"
            )
        self._reductions: dict[str, Reduction] = {}
        self._choices: dict[int, str] = {}
        if self._table and not context.may_measure:  # ranks must not connect while a sum is under way
            for name in sorted({self._table.fastest(size, self._candidates) for size in _SIZES_BYTES}):
                with suppress(UserError):  # of a library that is not installed here
                    self._reduction(name)
            self._candidates = tuple(self._reductions)
            if not self._candidates:
                raise UserError("auto: none of the reductions that the profile names can be made here")

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Choose a reduction for each length; close the others, unless later buckets may need them."""
        for length in sorted({len(bucket) for bucket in buckets}):
            table = self._table or self._measure(length)
            self._choices[length] = table.fastest(length * _FLOAT32_BYTES, self._candidates)
        others = self._reductions.keys() - set(self._choices.values())
        for name in sorted(others) if self._context.may_measure else ():
            self._reductions.pop(name).close()
        for name in sorted(set(self._choices.values())):
            self._reduction(name).prepare([bucket for bucket in buckets if self._choices[len(bucket)] == name])

    def start(self, bucket: Bucket, step: int = 0) -> Pending:
        """Start the reduction that was chosen for the bucket's length."""
        if len(bucket) not in self._choices:
            self.prepare([bucket])
        return self._reduction(self._choices[len(bucket)]).start(bucket, step)

    def plan(self, length: int) -> Plan | None:
        """The plan of the reduction that was chosen for this length."""
        return self._reduction(self._choices[length]).plan(length)

    def facts(self) -> dict[str, Any]:
        """The chosen reductions by bytes, and the source of their timings."""
        return {
            "chosen": {str(length * _FLOAT32_BYTES): name for length, name in self._choices.items()},
            "from": "the profile's table" if self._table else "a measurement before the first step",
        }

    def close(self) -> None:
        """Close the chosen reductions."""
        for reduction in self._reductions.values():
            reduction.close()

    def _reduction(self, name: str) -> Reduction:
        if name not in self._reductions:
            self._reductions[name] = find_reduction(name, self._context)
        return self._reductions[name]

    def _measure(self, length: int) -> TimingTable:
        transport = self._context.transport
        bucket = Bucket(torch.zeros(length, device=transport.device))
        names = list(self._candidates or ("native", *installed_names(TOPOLOGIES)))
        times: dict[str, list[float]] = {name: [] for name in names}
        consecutive = max(1, min(20, _CONSECUTIVE_BYTES // (length * _FLOAT32_BYTES + 1)))
        for repeat in range(_REPEATS):
            random.Random(repeat).shuffle(names)
            for name in names:
                if repeat == 0:  # untimed: makes programs, scratch memory and connections
                    self._time_s(name, bucket, 1)
                times[name].append(self._time_s(name, bucket, consecutive))
            best = min(values[-1] for values in times.values())
            if repeat == 0:
                names = [name for name in names if times[name][0] <= _HOPELESS * best]
        rows = (Timing(reduction=name, bytes=length * 4, median_s=median(values)) for name, values in times.items())
        return TimingTable(
            transport=transport.name,
            node_of=transport.world.node_of,
            wire_dtype=self._context.wire_dtype,
            rows=tuple(rows),
        )

    def _time_s(self, name: str, bucket: Bucket, consecutive: int) -> float:
        """Seconds per reduction, over `consecutive` reductions."""
        reduction = self._reduction(name)
        return slowest_s(self._context.transport, lambda: reduction.start(bucket).wait(), consecutive)
