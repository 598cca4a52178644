"""The memory of this machine, and how many ranks fit into it."""

from __future__ import annotations

import os
from pathlib import Path

from firetrain.errors import UserError

# what a process that has imported torch takes, without a model: measured 160 MB on Linux
RANK_BYTES = 160_000_000
# of a control group, by version
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int | None:
    """The memory that the processes of this machine or container may use together; None where that is unknown."""
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (ValueError, OSError, AttributeError):
        return None
    for path in _LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # no such group, or no limit
            continue
    return min(found)


def refuse_too_many_ranks(ranks: int, bytes_of_each: int = 0, advice: str = "") -> None:
    """UserError if so many ranks on this machine would need more memory than it has.

    `bytes_of_each`: what each of them holds besides itself. `advice`: what to do then; default: how many ranks fit.
    """
    whole, each = memory_bytes(), RANK_BYTES + bytes_of_each
    if whole is not None and ranks * each > whole:
        raise UserError(
            f"{ranks} ranks on this machine need at least {ranks * each / 1e9:,.0f} GB of memory, and it has "
            f"{whole / 1e9:,.0f} GB: {advice or f'use at most {max(1, whole // each)} ranks, or --on slurm on a cluster'}"
        )
