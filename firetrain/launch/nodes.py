"""Find the nodes that Slurm considers down; used inside a job when ranks stop responding."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from firetrain.errors import FiretrainError
from firetrain.launch import slurm

# a responding node starts a process within a second or two
_SIGN_OF_LIFE_S = 20.0
_ASK_EVERY_S = 2.0
_SLACK_S = 30.0
_SLURMD_TIMEOUT_S = 300.0
_LOST = re.compile(r"\*|DOWN|FAIL|NO_RESPOND|NOT_RESPONDING")


def lost_nodes(hosts: Sequence[str]) -> list[str]:
    """Those of `hosts` that Slurm reports as down; empty if all respond.

    Slurm reports a dead node only after its SlurmdTimeout. This function waits for that only if a process cannot be started on
    a node.
    """
    with ThreadPoolExecutor(max_workers=16) as pool:
        silent = [host for host, lives in zip(hosts, pool.map(_lives, hosts), strict=True) if not lives]
    deadline = time.monotonic() + _slurmd_timeout_s() + _SLACK_S
    while silent and time.monotonic() < deadline:
        with suppress(FiretrainError):  # the controller may be unreachable for a while, too
            states = {row.get("NodeName"): row.get("State", "") for row in slurm.records("node")}
            if lost := [host for host in silent if _LOST.search(states.get(host, ""))]:
                return lost
        time.sleep(_ASK_EVERY_S)
    return []


def _lives(host: str) -> bool:
    """Whether a process can be started on the node."""
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
