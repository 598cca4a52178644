"""The algorithms and protocols that NCCL has chosen, read from its own log."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from firetrain.config.spec import Spec

_CHOICE = re.compile(r"AllReduce: (\d+) Bytes -> Algo (\w+) proto (\w+)", re.IGNORECASE)


def is_needed(reductions: Iterable[str]) -> bool:
    """Whether one of these reductions selects an algorithm, which NCCL may replace by another."""
    specs = map(Spec.parse, reductions)
    return any(spec.name == "native" and "algorithm" in dict(spec.parameters) for spec in specs)


def keep() -> None:
    """Make NCCL write its choices to a file. Must be called before the first communicator is made.

    If the user has set NCCL_DEBUG, it is not changed, and no choices can be read.
    """
    if "NCCL_DEBUG" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="firetrain-nccl-"))
    os.environ |= {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "TUNING",
        "NCCL_DEBUG_FILE": str(folder / "log"),
    }


def used(sizes: Collection[int]) -> list[str]:
    """`ALGORITHM/PROTOCOL` of all all-reduces of these sizes in bytes so far; empty if NCCL writes no log."""
    path = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    if not path.name or not path.is_file():
        return []
    return choices(path.read_text(errors="replace"), sizes)


def choices(text: str, sizes: Collection[int]) -> list[str]:
    """`ALGORITHM/PROTOCOL` of the all-reduces of these sizes in a log of NCCL, without repetitions.

    Other all-reduces are the small sums of the training loop, which use another communicator.
    """
    return sorted({f"{found[2]}/{found[3]}" for found in _CHOICE.finditer(text) if int(found[1]) in sizes})
