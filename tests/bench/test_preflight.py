"""The check of a job's nodes, as its tasks run it: fit nodes pass; unfit ones are reported at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from firetrain import __version__
from firetrain.launch.port import free_port

LIMIT_S = 100
Done = subprocess.CompletedProcess[str]


def preflight(ranks: int, options: Mapping[int, Sequence[str]]) -> list[Done]:
    """What each task of a step of `ranks` nodes says; a rank has these options besides those of all."""
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port(20_000, 29_999)), "GLOO_SOCKET_IFNAME": "lo"}
    tasks = []
    for rank in range(ranks):
        slurm = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(ranks), "SLURM_LOCALID": "0",
                 "SLURM_STEP_TASKS_PER_NODE": f"1(x{ranks})", "SLURM_NODEID": str(rank)}  # fmt: skip
        command = [sys.executable, "-m", "firetrain", "preflight", "--seconds", str(LIMIT_S), *options.get(rank, ())]
        pipe = subprocess.PIPE
        environment = {**os.environ, **here, **slurm}
        tasks.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment))
    said = [task.communicate(timeout=LIMIT_S + 60) for task in tasks]
    return [Done(task.args, task.returncode, *both) for task, both in zip(tasks, said, strict=True)]


def test_fit_nodes_pass_and_rank_0_says_so_once() -> None:
    first, *others = preflight(3, dict.fromkeys(range(3), ("--expect-version", __version__, "--interface", "lo")))
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith("firetrain: preflight passed: 3 ranks reach each other (first node: ")
    assert all(other.returncode == 0 and not other.stdout for other in others)


@pytest.mark.parametrize("unfit", [(0,), (2,), (0, 1)])
def test_unfit_nodes_are_reported_at_once_and_fit_ones_do_not_wait(unfit: Sequence[int], tmp_path: Path) -> None:
    missing = ("--dataset", "folders", str(tmp_path / "nowhere"), "--expect-version", "0.0.1")
    began_s = time.monotonic()
    for rank, done in enumerate(preflight(3, dict.fromkeys(unfit, missing))):
        assert done.returncode == 69 and not done.stdout
        if rank in unfit:
            assert f"(rank {rank}): data.root: there is nothing at {tmp_path / 'nowhere'}" in done.stderr
            assert f"(rank {rank}): firetrain {__version__} is installed on this node" in done.stderr
        else:
            assert not done.stderr, "the unfit ranks report the reason"
    assert time.monotonic() - began_s < LIMIT_S


def test_one_node_alone_meets_nobody(tmp_path: Path) -> None:
    (fit,), (unfit,) = preflight(1, {}), preflight(1, {0: ("--data", str(tmp_path / "nowhere"))})
    assert fit.returncode == 0 and fit.stdout.startswith("firetrain: preflight passed: 1 rank (")
    assert unfit.returncode == 69 and "(rank 0): data.root: there is nothing at" in unfit.stderr
