"""What this machine has of all that firetrain can use, and what to do about what it has not."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

HOROVOD_HINT = "build it with `make horovod`, or `python -m firetrain.horovod_wheel` where there is no checkout"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for: whether it is here, what was found, what it is for, and how to get it."""

    name: str
    here: bool
    found: str
    purpose: str
    remedy: str = ""
    needed: bool = False


def examine() -> Iterator[Finding]:
    """One thing after another; torch and Horovod are loaded in processes of their own, as they may fail to."""
    yield Finding(
        "python",
        sys.version_info >= (3, 10),
        platform.python_version(),
        "everything",
        "firetrain needs 3.10 or later",
        True,
    )
    torch = _say(
        "import torch; print(torch.__version__, '|', torch.cuda.is_available() and torch.cuda.get_device_name())"
    )
    number, _, gpu = torch.partition(" | ")
    yield Finding(
        "torch", bool(torch), number, "training", "pip install torch, as pytorch.org says for this machine", True
    )
    yield Finding(
        "gpu", gpu not in ("", "False"), gpu if gpu != "False" else "", "NCCL", "none seen by torch: ranks use Gloo"
    )
    yield _horovod()
    slurm = _say_by("sinfo", "--version")
    absent = (
        "sinfo is here, but finds no slurm.conf"
        if shutil.which("sinfo")
        else "no sinfo here: no node of a Slurm cluster"
    )
    yield Finding("slurm", bool(slurm), slurm, "launch --on slurm", absent)
    mpi = _say_by("mpirun", "--version").partition("\n")[0]
    yield Finding("mpi", bool(mpi), mpi, "launcher mpirun, Horovod over MPI", "no mpirun here (Debian: openmpi-bin)")
    for tool, purpose, package in (
        ("git", "the code's identity in a run's record", "git"),
        ("g++", "torch.compile, building Horovod", "g++"),
        ("ip", "test networks and the test cluster", "iproute2"),
    ):
        place = shutil.which(tool) or ""
        yield Finding(tool, bool(place), place, purpose, f"no {tool} here (Debian: {package})")


def _horovod() -> Finding:
    built = _say(
        "import horovod.torch as hvd\n"
        "print(', '.join(part for part in ('gloo', 'mpi', 'nccl') if getattr(hvd, part + '_built')()))"
    )
    try:
        found = f"{version('horovod')} with {built}" if built else f"{version('horovod')}, which does not load"
    except PackageNotFoundError:
        found = ""
    remedy = f"it was built against another torch or MPI; {HOROVOD_HINT}" if found else f"not installed; {HOROVOD_HINT}"
    return Finding("horovod", bool(built), found, "reduction horovod", remedy)


def _say(program: str) -> str:
    """What a Python program prints; empty if it fails."""
    return _say_by(sys.executable, "-c", program)


def _say_by(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
