"""Which of a job's nodes are lost, by Slurm's own verdict: asked from within the job, when ranks have gone silent."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from firetrain.errors import FiretrainError
from firetrain.launch import slurm

# a node that lives starts a process in a second or two
_SIGN_OF_LIFE_S = 20.0
_ASK_EVERY_S = 2.0
_SLACK_S = 30.0
_SLURMD_TIMEOUT_S = 300.0
_LOST = re.compile(r"\*|DOWN|FAIL|NO_RESPOND|NOT_RESPONDING")


def lost_nodes(hosts: Sequence[str]) -> list[str]:
    """Those of `hosts` that Slurm gives up; empty if all of them answer.

    Slurm notices a dead node only after its SlurmdTimeout. Nodes that still start a process are not waited for.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        silent = [host for host, lives in zip(hosts, pool.map(_lives, hosts), strict=True) if not lives]
    deadline = time.monotonic() + _slurmd_timeout_s() + _SLACK_S
    while silent and time.monotonic() < deadline:
        with suppress(FiretrainError):  # the controller, too, may be away for a while
            states = {row.get("NodeName"): row.get("State", "") for row in slurm.records("node")}
            if lost := [host for host in silent if _LOST.search(states.get(host, ""))]:
                return lost
        time.sleep(_ASK_EVERY_S)
    return []


def _lives(host: str) -> bool:
    """Whether the node starts a process for this job."""
    command = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--gres=none", "true"]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SIGN_OF_LIFE_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _slurmd_timeout_s() -> float:
    with suppress(FiretrainError):
        if found := re.search(r"^SlurmdTimeout\s*=\s*(\d+)", slurm.ask("scontrol", "show", "config"), re.MULTILINE):
            return float(found[1])
    return _SLURMD_TIMEOUT_S
