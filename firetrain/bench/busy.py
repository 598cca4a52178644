"""How busy a machine's processors were: whether they, and not the link, were the limit."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import TracebackType

import torch

from firetrain.reduction.transport import Transport

_STAT = Path("/proc/stat")
# the kernel counts hundredths of a second, of each processor
_LEAST_TICKS = 10 * (os.cpu_count() or 1)


class Busy:
    """Counts while entered: `with busy: ...`, as often as one likes. All processors of this machine, whoever uses them."""

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
        """The busy share, 0 to 1, of the busiest machine, asked by all ranks together.

        None if it was too short to tell, or the system does not.
        """
        own = 1 - self._idle / self._all if self._all >= _LEAST_TICKS else math.nan
        shares = [float(share) for share in transport.gather(torch.tensor([own], device=transport.device))]
        return None if any(map(math.isnan, shares)) else max(shares)


def _ticks() -> tuple[int, int]:
    """(idle, all) since the system started."""
    try:
        counts = [int(count) for count in _STAT.read_text().partition("\n")[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return counts[3] + counts[4], sum(counts)
