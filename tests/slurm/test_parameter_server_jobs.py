"""A Slurm job with a parameter server goes on without a worker that dies, and takes it back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from paced import PACED
from testbed import firetrain, gone, launch, until

from firetrain.records import Run


def workers_of(run: Run) -> dict[int, int]:
    """The process ID of each rank of a job, by its Slurm task."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"\0firetrain\0train\0" in command and str(run.path).encode() in command:
            values = dict(word.partition(b"=")[::2] for word in variables.split(b"\0"))
            if b"SLURM_PROCID" in values and not command.startswith((b"bash", b"/bin/bash", b"srun")):
                found[int(values[b"SLURM_PROCID"])] = int(entry.name)
    return found


def training(results: Path) -> Run:
    """A job on four nodes that trains endlessly."""
    run = launch(
        results, "--nodes", "4", "--ranks-per-node", "1", *PACED, "--set", "log.every_steps=1", "--set",
        "learning_rate.base=0.001", "--set", "strategy.name=parameter-server", "--set", "strategy.parameters.policy=async",
    )  # fmt: skip
    until(lambda: len(run.metrics("step")) > 3)
    return run


def test_a_killed_worker_of_a_job_comes_back(results: Path) -> None:
    run = training(results)
    os.kill(workers_of(run)[2], signal.SIGKILL)
    until(lambda: "worker 1 takes part again" in run.log(0).read_text())
    assert "rank 2 has died with exit code 137; it is started again" in run.log(2).read_text()
    assert firetrain("cancel", str(run.path)).returncode == 0
    until(lambda: gone(run))
    assert "stopped after step" in run.log(0).read_text() and run.facts()["state"] == "stopped"
    assert (run.attempt / "verdict.txt").read_text() == "cancelled; saved\n"


def test_a_job_ends_soon_after_its_server_although_workers_are_started_again(results: Path) -> None:
    run = training(results)
    os.kill(workers_of(run)[0], signal.SIGKILL)
    until(lambda: gone(run))
    verdict = (run.attempt / "verdict.txt").read_text()
    assert verdict.startswith("first failure: rank 0 on fire1: killed by signal 9 (SIGKILL)"), verdict
    assert "started again" not in run.log(1).read_text()


def test_a_worker_that_hangs_does_not_keep_a_job(results: Path) -> None:
    run = training(results)
    os.kill(workers_of(run)[3], signal.SIGSTOP)
    assert firetrain("cancel", str(run.path)).returncode == 0
    until(lambda: gone(run))
    assert (run.attempt / "verdict.txt").read_text() == "cancelled; saved\n"
