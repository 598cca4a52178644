"""What happens to a job from outside: time runs out, a rank hangs, a node is lost, the controller is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import (
    TESTBED,
    alive,
    all_idle,
    firetrain,
    gone,
    job_exit,
    launch,
    processes,
    slurm,
    until,
)

from firetrain.records import Run

FOLDER = Path("/run/firetrain-testbed")


def test_a_rank_that_hangs_ends_the_job_within_the_limit(results: Path, tmp_path: Path) -> None:
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "target.max_epochs=200", "--set", "cluster.timeout_s=5",
        "--env", "FAULT=1:hang", "--env", f"PYTHONPATH={tmp_path / 'sabotage'}",
    )  # fmt: skip
    until(lambda: gone(run))
    assert job_exit(run) == "69:0"
    told = firetrain("status", str(run.path)).stdout
    assert "rank 1 hung, or its node is lost" in told and "rank 0 lost rank 1 in step" in told, told
    assert not processes()


def test_a_run_whose_time_is_nearly_up_saves_and_goes_on(results: Path) -> None:
    """The signal that `--signal=B:USR1@lead` has Slurm send, sent by hand: Slurm's own may come up to a minute early."""
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "target.max_steps=150", "--set", "target.max_epochs=50",
    )  # fmt: skip
    until(lambda: len(run.metrics("step")) > 3)
    slurm("scancel", "--batch", "--signal=USR1", str(run.facts()["jobs"][0]))
    until(lambda: run.facts()["state"] == "stopped")
    assert run.log(0).read_text().count("stopped after step") == 1
    until(lambda: run.summary() and gone(run))
    summary = run.summary()
    assert (summary["steps"], summary["attempts"], summary["lost_s"]) == (150, 2, 0)
    assert (run.path / "attempt-0" / "verdict.txt").read_text() == "saved; requeued\n"
    assert [row["step"] for row in run.metrics("step")] == list(range(1, 151))


def test_a_job_whose_node_is_lost_starts_again_and_goes_on(results: Path) -> None:
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "target.max_epochs=6", "--set", "checkpoint.every_epochs=1",
        "--set", "cluster.timeout_s=10",
    )  # fmt: skip
    until(lambda: list((run.path / "checkpoints").glob("step-*.pt")))
    nodes = slurm("squeue", "-h", f"--name={run.name}", "-o", "%N").strip()
    second = slurm("scontrol", "show", "hostnames", nodes).split()[1]
    for pid in slurm("ip", "netns", "pids", second).split():
        os.kill(int(pid), signal.SIGKILL)
    try:
        until(lambda: run.attempts == 2 or gone(run))
        if run.attempts == 1:  # the job's own ranks were quicker than Slurm: it ended with a failure, and says why
            assert job_exit(run) != "0:0"
            assert "hung, or its node is lost" in firetrain("status", str(run.path)).stdout
            return
        until(lambda: run.summary() and gone(run), 180)
        assert run.summary()["attempts"] == 2
    finally:
        subprocess.run([TESTBED, "mend", second], check=True)
        until(all_idle)


def test_a_node_that_cannot_reach_the_others_is_named_before_anything_is_trained(results: Path) -> None:
    ports = (
        "ipproto",
        "tcp",
        "dport",
        "20000-29999",
        "blackhole",
    )  # where the site has rank 0 listen; Slurm's own pass
    slurm("ip", "-n", "fire2", "rule", "add", *ports)
    try:
        run = launch(results, "--nodes", "2", "--ranks-per-node", "1", "--exclude", "fire[3-4]")
        until(lambda: gone(run))
    finally:
        slurm("ip", "-n", "fire2", "rule", "del", *ports)
    assert job_exit(run) == "69:0"
    log = (run.path / f"job-{run.facts()['jobs'][0]}.log").read_text()
    assert "fire2 (rank 1): cannot reach rank 0 at fire1" in log and "--exclude fire2" in log, log
    assert "nothing was trained" in log and not run.log(0).exists()


@pytest.fixture
def controller_away() -> None:
    """Stops answering; the fixture's end brings it back."""
    pid = int((FOLDER / "slurmctld.pid").read_text())
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    yield
    subprocess.run(["slurmctld", "-f", str(FOLDER / "slurm.conf")], check=True)
    until(all_idle)


@pytest.mark.usefixtures("controller_away")
def test_a_controller_that_is_away_is_told_and_nothing_is_left(results: Path) -> None:
    command = [sys.executable, "-m", "firetrain", "launch", "quickstart", "--on", "slurm", "--site", "testbed"]
    done = subprocess.run([*command, "--results", str(results)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 69
    assert "controller does not answer" in done.stderr and "Traceback" not in done.stderr
    assert not results.exists()


def test_status_works_from_the_run_s_folder_when_slurm_does_not(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launch(results, "--nodes", "1", "--ranks-per-node", "1", "--set", "target.max_steps=2")
    until(lambda: run.summary() and gone(run))
    monkeypatch.setenv("PATH", "/nowhere")
    assert firetrain("status", str(run.path)).stdout.startswith(f"{run.name}: completed")
    assert "going" not in firetrain("logs", str(run.path)).stdout
    (run.path / "summary.json").unlink()
    told = firetrain("status", str(run.path))
    assert told.returncode == 0 and "when last seen" in told.stdout
    assert Run.open(run.path).facts()["state"] == "completed"
