"""The free memory of this machine, and how many ranks fit into it."""

from __future__ import annotations

import os
from pathlib import Path

from firetrain.errors import UserError
from firetrain.words import counted

# what a process that has imported torch takes, without a model: measured 160 MB on Linux
RANK_BYTES = 160_000_000
_MACHINE = Path("/proc/meminfo")
# of a control group, by version: the file of its limit, and beside it that of what is used, of which files may be dropped
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_bytes() -> int | None:
    """The memory that new processes of this machine or container may use together; None where that is unknown."""
    try:
        found = [1024 * _number(_MACHINE, "MemAvailable:")]
    except (OSError, ValueError):  # no Linux
        try:
            found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
        except (ValueError, OSError, AttributeError):
            return None
    for limit, used, files in _GROUPS:
        try:
            left = int(limit.read_text()) - int(limit.with_name(used).read_text())
            found.append(max(0, left + _number(limit.with_name("memory.stat"), files)))
        except (OSError, ValueError):  # no such group, or no limit
            continue
    return min(found)


def _number(path: Path, key: str) -> int:
    """The number after a word of a file; ValueError if it is not there."""
    words = path.read_text().split()
    return int(words[words.index(key) + 1])


def refuse_too_many_ranks(ranks: int, bytes_of_each: int = 0, advice: str = "") -> None:
    """UserError if so many ranks on this machine would need more memory than is available.

    `bytes_of_each`: what each of them holds besides itself. `advice`: what to do then; default: how many ranks fit.
    """
    whole, each = memory_bytes(), RANK_BYTES + bytes_of_each
    if whole is not None and ranks * each > whole:
        fitting = f"use at most {counted(whole // each, 'rank')}" if whole >= each else "end other processes"
        raise UserError(
            f"{counted(ranks, 'rank')} on this machine would use at least {ranks * each / 1e9:,.1f} GB of memory, and "
            f"{whole / 1e9:,.1f} GB are available: {advice or f'{fitting}, or --on slurm on a cluster'}"
        )
