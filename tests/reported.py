"""Reports on recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recorded import record

from firetrain.report.history import find, read_all
from firetrain.report.report import Report


def report_of(folder: Path, clock: str = "mlperf", baseline: str | None = None, *, olympic: bool = False) -> Report:
    histories, left_out = read_all(find([], folder))
    return Report.of(histories, left_out, clock, baseline, olympic=olympic)


def seeds(folder: Path, *overrides: str, times_s: tuple[float, ...] = (9.0, 10.0, 11.0), **facts: Any) -> None:
    for seed, epoch_s in enumerate(times_s, 1):
        record(folder, "quickstart", *overrides, seed=seed, epoch_s=epoch_s, **facts)
