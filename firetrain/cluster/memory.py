"""The free memory of this machine, and how many ranks fit into it."""

from __future__ import annotations

from pathlib import Path

from firetrain.errors import UserError

# what a process that has imported torch takes, without a model: measured 160 MB on Linux
RANK_BYTES = 160_000_000
_OF_THE_MACHINE = Path("/proc/meminfo")
# of a control group, by version
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int | None:
    """The memory that new processes may use together: what is available, within the container's limit; None if unknown."""
    try:
        words = _OF_THE_MACHINE.read_text().split()
        found = [1024 * int(words[words.index("MemAvailable:") + 1])]
    except (OSError, ValueError):
        return None
    for path in _LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # no such group, or no limit
            continue
    return min(found)


def refuse_too_many_ranks(ranks: int, bytes_of_each: int = 0, advice: str = "") -> None:
    """UserError if so many ranks on this machine would need more memory than is available.

    `bytes_of_each`: what each of them holds besides itself. `advice`: what to do then; default: how many ranks fit.
    """
    whole, each = memory_bytes(), RANK_BYTES + bytes_of_each
    if whole is not None and ranks * each > whole:
        advice = advice or f"use at most {max(1, whole // each)} ranks, or --on slurm on a cluster"
        raise UserError(
            f"{ranks} ranks on this machine need at least {ranks * each / 1e9:,.0f} GB of memory, and {whole / 1e9:,.0f} GB are "
            f"available: {advice}"
        )
