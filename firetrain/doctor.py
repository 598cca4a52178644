"""Find the components that firetrain can use on this machine."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from firetrain.config.names import HOROVOD_HINT


@dataclass(frozen=True)
class Finding:
    """A component: whether it is here, what was found, its purpose, how to install it, and whether it is required."""

    name: str
    here: bool
    found: str
    purpose: str
    remedy: str = ""
    needed: bool = False


def examine() -> Iterator[Finding]:
    """Check each component. torch and Horovod are imported in subprocesses, because importing them may crash."""
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
    yield Finding("torch", bool(torch), number, "training", "install torch for this machine (see pytorch.org)", True)
    yield Finding(
        "gpu", gpu not in ("", "False"), gpu if gpu != "False" else "", "NCCL", "torch sees no GPU: ranks use Gloo"
    )
    yield _horovod()
    slurm = _say_by("sinfo", "--version")
    absent = (
        "sinfo is installed but fails: is there a slurm.conf?"
        if shutil.which("sinfo")
        else "sinfo not found: this is not a Slurm node"
    )
    yield Finding("slurm", bool(slurm), slurm, "launch --on slurm", absent)
    mpi = _say_by("mpirun", "--version").partition("\n")[0]
    yield Finding("mpi", bool(mpi), mpi, "launcher mpirun, Horovod over MPI", "mpirun not found (Debian: openmpi-bin)")
    for tool, purpose, package in (
        ("git", "version of the code in a run's record", "git"),
        ("g++", "torch.compile, building Horovod", "g++"),
        ("ip", "test networks and the test cluster", "iproute2"),
    ):
        path = shutil.which(tool) or ""
        yield Finding(tool, bool(path), path, purpose, f"{tool} not found (Debian: {package})")


def _horovod() -> Finding:
    built = _say(
        "import horovod.torch as hvd\n"
        "print(', '.join(part for part in ('gloo', 'mpi', 'nccl') if getattr(hvd, part + '_built')()))"
    )
    try:
        found = f"{version('horovod')} with {built}" if built else f"{version('horovod')}, which cannot be imported"
    except PackageNotFoundError:
        found = ""
    remedy = f"it was built against another torch or MPI; {HOROVOD_HINT}" if found else f"not installed; {HOROVOD_HINT}"
    return Finding("horovod", bool(built), found, "reduction horovod", remedy)


def _say(program: str) -> str:
    """The output of a Python program; empty if it fails."""
    return _say_by(sys.executable, "-c", program)


def _say_by(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
