"""Processor load of a machine, to decide whether processors or links were the bottleneck."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import TracebackType

import torch

from firetrain.transport.transport import Transport

_STAT = Path("/proc/stat")
# the kernel counts in hundredths of a second per processor
_LEAST_TICKS = 10 * (os.cpu_count() or 1)


class Busy:
    """Measures the load of all processors of this machine inside `with busy: ...`, summed over several uses."""

    def __init__(self) -> None:
        self._idle = self._all = 0

    def __enter__(self) -> None:
        self._before = _ticks()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        idle, all_ticks = _ticks()
        self._idle += idle - self._before[0]
        self._all += all_ticks - self._before[1]

    def of_busiest(self, transport: Transport) -> float | None:
        """Processor utilisation (0 to 1) of the busiest machine. Collective call.

        None if the interval was too short or the system has no such counter.
        """
        own = 1 - self._idle / self._all if self._all >= _LEAST_TICKS else math.nan
        shares = [float(share) for share in transport.gather(torch.tensor([own], device=transport.device))]
        return None if any(map(math.isnan, shares)) else max(shares)


def _ticks() -> tuple[int, int]:
    """(idle, all) clock ticks of the processors since the system started; zeros if unknown."""
    try:
        counts = [int(count) for count in _STAT.read_text().partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return counts[3] + counts[4], sum(counts)
