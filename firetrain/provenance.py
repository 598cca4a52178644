"""Provenance of results: the versions of the code, and the machine that ran it."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from firetrain import __version__

_MOST_CHANGES = 100_000
_PACKAGES = ("torch", "numpy", "simplejpeg", "pillow", "pydantic", "scikit-learn", "horovod")


def provenance() -> dict[str, Any]:
    """Facts about the code and the machine, ready for JSON."""
    return {
        "firetrain": __version__,
        "commit": _git("describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"),
        "changes": _changes(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": usable_cores(),
        "driver": _driver(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def usable_cores() -> int:
    """The number of processor cores that this process may use; a scheduler may have limited it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _changes() -> str | None:
    """`git diff` of the checkout that firetrain runs from, cut if it is very long; None if it is clean or if installed."""
    text = _git("diff", "HEAD")
    if text and len(text) > _MOST_CHANGES:
        return f"{text[:_MOST_CHANGES]}\n[{len(text) - _MOST_CHANGES} characters more]"
    return text


def _git(*arguments: str) -> str | None:
    """The output of git for the checkout that firetrain runs from; None if firetrain is installed, or without output."""
    checkout = Path(__file__).parents[1]
    if not (checkout / ".git").exists():  # installed, possibly inside another project's checkout
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _driver() -> str | None:
    """The version of the NVIDIA driver, if there is one."""
    path = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+(\.\d+)*", path.read_text()) if path.exists() else None
    return found[0] if found else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
