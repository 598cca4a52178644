"""What NCCL says it did: the algorithm and protocol that it chose for each size, from its own log."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

_CHOICE = re.compile(r"AllReduce: (\d+) Bytes -> Algo (\w+) proto (\w+)", re.IGNORECASE)


def keep() -> None:
    """Have NCCL write its choices to a file; to be called before the first communicator is made.

    A user's own NCCL_DEBUG stays as it is, and then nothing can be read back.
    """
    if "NCCL_DEBUG" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="firetrain-nccl-"))
    os.environ |= {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "TUNING",
        "NCCL_DEBUG_FILE": str(folder / "log"),
    }


def used() -> list[str]:
    """`ALGORITHM/PROTOCOL` of all all-reduces so far; empty if NCCL was not asked to tell."""
    path = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    if not path.name or not path.is_file():
        return []
    return choices(path.read_text(errors="replace"))


def choices(text: str) -> list[str]:
    """`ALGORITHM/PROTOCOL` of the all-reduces in NCCL's log, each once."""
    return sorted({f"{found[2]}/{found[3]}" for found in _CHOICE.finditer(text)})
