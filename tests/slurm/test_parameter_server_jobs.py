"""A Slurm job with a parameter server goes on without a worker that dies, and takes it back."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from testbed import TESTBED, all_idle, firetrain, gone, launch, slurm, until

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


def served(results: Path, nodes: int) -> Run:
    """An asynchronous run with one rank on each node, after its first steps."""
    run = launch(
        results, "--nodes", str(nodes), "--ranks-per-node", "1", "--set", "model.name=lenet", "--set", "target.max_epochs=500",
        "--set", "target.top1=null", "--set", "log.every_steps=1", "--set", "learning_rate.base=0.001", "--set",
        "strategy.name=parameter-server", "--set", "strategy.parameters.policy=async", "--set", "cluster.timeout_s=10",
    )  # fmt: skip
    until(lambda: len(run.metrics("step")) > 3)
    return run


def test_a_killed_worker_of_a_job_comes_back(results: Path) -> None:
    run = served(results, nodes=4)
    os.kill(workers_of(run)[2], signal.SIGKILL)
    until(lambda: "worker 1 takes part again" in run.log(0).read_text())
    assert "rank 2 has died with exit code 137; it is started again" in run.log(2).read_text()
    assert firetrain("cancel", str(run.path)).returncode == 0
    until(lambda: gone(run))
    assert "stopped after step" in run.log(0).read_text() and run.facts()["state"] == "stopped"
    assert (run.attempt / "verdict.txt").read_text() == "cancelled; saved\n"


def test_a_job_goes_on_without_a_node_of_its_workers(results: Path) -> None:
    run = served(results, nodes=3)
    nodes = slurm("squeue", "-h", f"--name={run.name}", "-o", "%N").strip()
    lost = slurm("scontrol", "show", "hostnames", nodes).split()[2]
    for pid in slurm("ip", "netns", "pids", lost).split():
        os.kill(int(pid), signal.SIGKILL)
    try:
        until(lambda: slurm("sinfo", "-h", "-n", lost, "-o", "%T").split()[0].startswith("down"))
        steps = len(run.metrics("step"))
        until(lambda: len(run.metrics("step")) > steps + 20)
        assert "training goes on with 1 worker\n" in run.log(0).read_text() and run.attempts == 1
        assert firetrain("cancel", str(run.path)).returncode == 0
        until(lambda: gone(run))
        assert (run.attempt / "verdict.txt").read_text() == "cancelled; saved\n"
    finally:
        subprocess.run([TESTBED, "restart-node", lost], check=True)
        until(all_idle)
