"""The GPUs of this machine, counted without loading torch, and whether they suffice for its ranks."""

from __future__ import annotations

import os
from pathlib import Path

from firetrain.errors import UserError
from firetrain.words import counted

_DRIVER = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")


def count_gpus() -> int | None:
    """The number of NVIDIA GPUs that a process started from here may use; None on a machine with AMD's driver.

    CUDA_VISIBLE_DEVICES limits them: it lists numbers, or names that begin with GPU- or MIG-. CUDA ignores everything after
    the first number that no GPU has.
    """
    there = _installed()
    if there == 0 and (_DEVICES / "kfd").exists():
        return None
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or there == 0:
        return there
    count = 0
    for name in filter(None, (part.strip() for part in listed.split(","))):
        if name.lstrip("-").isdecimal() and not 0 <= int(name) < there:
            break
        count += 1
    return count


def too_few_gpus(gpus: int, ranks: int, transport: str) -> str:
    """The consequence if `ranks` ranks of one machine have `gpus` GPUs between them; empty if each rank has its own.

    UserError if `transport` is nccl. With auto the ranks compute on the CPU, and the text says so.
    """
    if transport == "gloo" or gpus >= ranks or (gpus == 0 and transport == "auto"):
        return ""
    have = f"{counted(ranks, 'rank')} on a machine with {counted(gpus, 'GPU') if gpus else 'no GPUs'}"
    if transport == "nccl":
        raise UserError(
            f"cluster.transport is nccl, which needs a GPU for each rank: {have}; start fewer ranks, or use gloo"
        )
    return f"{have}: each rank needs its own, so all ranks compute on the CPU and communicate over Gloo"


def _installed() -> int:
    """The GPUs that the driver lists, or else those with a device file."""
    if _DRIVER.is_dir():
        return sum(1 for _ in _DRIVER.iterdir())
    return sum(1 for path in _DEVICES.glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal())
