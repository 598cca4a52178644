"""Runs as Slurm jobs on four nodes: successful and failing runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from paced import AT_ONCE, PACED
from testbed import firetrain, gone, job_exit, launch, processes, slurm, until

from firetrain.checkpoint import load, newest
from firetrain.records import RUNNING, Run, lock


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics("step")]


def test_a_job_s_losses_are_those_of_the_same_ranks_on_one_machine(results: Path, tmp_path: Path) -> None:
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "2", "--set", "target.max_steps=10", "--set", "reduction.name=hierarchical",
        "--env", "ODD=a b,$HOME `x` \"q\" 'r' \\ é", "--set", "checkpoint.every_epochs=1",
    )  # fmt: skip
    assert firetrain("status", str(run.path)).returncode == 0
    until(lambda: run.summary() and gone(run))
    assert job_exit(run) == "0:0" and run.facts()["state"] == "completed"
    assert "completed" in firetrain("status", str(run.path)).stdout
    assert (run.attempt / "verdict.txt").read_text() == "done\n" and run.summary()["nodes"] == 2
    logs = firetrain("logs", str(run.path)).stdout
    assert "4 ranks on 2 nodes, 2 each" in logs
    assert "was already completed" in firetrain("cancel", str(run.path)).stdout
    local = firetrain("launch", str(run.config_path), "--results", str(tmp_path), "--json", limit_s=200)
    assert local.returncode == 0, local.stderr
    here = next(tmp_path.glob("squeezenet-digits-*"))
    assert losses(Run.open(here)) == losses(run)
    weights = [load(newest(path / "checkpoints")[0])["model"] for path in (here, run.path)]  # type: ignore[arg-type]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


@pytest.mark.parametrize(
    ("fault", "strategy", "exit_code", "words"),
    [("1:7", "data-parallel", "7:0", "rank 1 on fire2: exit code 7"),
     ("1:kill", "branch-parallel", "137:0", "rank 1 on fire2: killed by signal 9 (SIGKILL)"),
     ("1:0", "pipeline:micro_batches=2", "70:0", "rank 1 on fire2: exit code 0 before the run was complete")],
)  # fmt: skip
def test_a_rank_that_fails_ends_the_job_and_is_named(
    results: Path, tmp_path: Path, fault: str, strategy: str, exit_code: str, words: str
) -> None:
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "target.max_epochs=200", "--set", f"strategy.name={strategy}",
        "--env", f"FAULT={fault}", "--env", f"PYTHONPATH={tmp_path / 'sabotage'}",
    )  # fmt: skip
    until(lambda: gone(run))
    assert job_exit(run) == exit_code
    told = firetrain("status", str(run.path)).stdout
    assert words in told, told
    if exit_code != "70:0":
        assert f"last lines of {run.log(1)}" in told
        assert "--- attempt-0, rank 1 ---" in firetrain("logs", str(run.path)).stdout
    assert not processes()


def test_a_run_that_is_preempted_goes_on_and_ends_with_the_bits_of_one_that_was_not(
    results: Path, tmp_path: Path
) -> None:
    """Under a strategy that divides the layers. That time is up is tested under data-parallel training."""
    options = (
        "--nodes", "2", "--ranks-per-node", "1", "--partition", "low", *PACED, "--set", "target.max_epochs=5",
        "--set", "checkpoint.every_epochs=1", "--set", "batch.global_size=32",
        "--set", "strategy.name=tensor-parallel:split=alternate",
    )  # fmt: skip
    run = launch(results, *options)
    until(lambda: len(run.metrics("step")) > 10)
    other = slurm(
        "sbatch", "--parsable", "-p", "high", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600"
    ).strip()
    until(lambda: "PENDING" in slurm("squeue", "-h", "-o", "%T", f"--name={run.name}"), 60)
    stopped_after = max(row["step"] for row in run.metrics("step"))
    assert run.facts()["state"] == "stopped" and not run.summary()
    assert "waiting in the queue to continue with attempt 1" in firetrain("status", str(run.path)).stdout
    slurm("scancel", other)
    until(lambda: run.metrics("step")[-1]["step"] > stopped_after)
    until(lambda: run.summary() and gone(run))
    summary = run.summary()
    assert summary["attempts"] == 2 and summary["queue_s"] > 0 and summary["restart_s"] > 0 and summary["lost_s"] == 0
    assert "resuming after step" in run.log(0).read_text() and stopped_after < summary["steps"]
    whole = firetrain("launch", str(run.config_path), *AT_ONCE, "--results", str(tmp_path), "--json", limit_s=200)
    assert whole.returncode == 0, whole.stderr
    here = Run.open(next(tmp_path.glob("squeezenet-digits-*")))
    weights = [load(newest(one.path / "checkpoints")[0])["model"] for one in (here, run)]  # type: ignore[arg-type]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert losses(here) == losses(run)


def test_a_second_job_of_a_run_ends_before_it_writes_anything(results: Path) -> None:
    """As when `sbatch job.sh` is typed twice, or while a job is in the queue."""
    run = launch(results, "--nodes", "1", "--ranks-per-node", "1", *PACED)
    until(lambda: run.metrics("step"))
    first, script = run.facts()["jobs"][0], run.path / "job.sh"
    second = int(slurm("sbatch", "--parsable", "--job-name=other", str(script)))
    until(lambda: "FAILED" in slurm("squeue", "-h", "-t", "all", "-j", str(second), "-o", "%T"))
    log = (run.path / f"job-{second}.log").read_text()
    assert f"job {first} is training the run already: cancel it first (scancel {first})" in log, log
    assert not list(run.path.glob("attempt-1*")) and not list(run.path.glob(".attempt*"))
    steps = len(run.metrics("step"))
    until(lambda: len(run.metrics("step")) > steps, 60)
    held = int(slurm("sbatch", "--parsable", "--hold", str(script)))
    assert firetrain("cancel", str(run.path)).returncode == 0
    until(lambda: "RUNNING" not in slurm("squeue", "-h", f"--name={run.name}", "-o", "%T"))
    refused = firetrain("launch", "--resume", str(run.path))
    assert refused.returncode == 2 and f"still has Slurm job {held}: cancel it first" in refused.stderr
    slurm("scancel", str(held))
    until(lambda: gone(run))
    third = int(slurm("sbatch", "--parsable", "--job-name=other", str(script)))
    until(lambda: run.attempts == 2 and len(run.metrics("step")) > steps)
    assert "running: attempt 1" in firetrain("status", str(run.path)).stdout, "also a job that was submitted by hand"
    assert firetrain("cancel", str(run.path)).returncode == 0
    until(lambda: "RUNNING" not in slurm("squeue", "-h", "-t", "all", "-j", str(third), "-o", "%T"))


def test_a_job_does_not_begin_while_the_run_trains_without_one(results: Path) -> None:
    run = launch(results, "--nodes", "1", "--ranks-per-node", "1", "--set", "target.max_steps=4")
    until(lambda: run.summary() and gone(run))
    (run.path / "summary.json").unlink()
    script = run.path / "job.sh"
    script.write_text(script.read_text().replace("--wait 600", "--wait 1"))
    with lock.held(run):
        job = int(slurm("sbatch", "--parsable", str(script)))
        until(lambda: "FAILED" in slurm("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T"))
    assert "the run is training already, without a job" in (run.path / f"job-{job}.log").read_text()
    assert not (run.path / "attempt-1").exists()


def test_a_job_that_is_cancelled_while_it_waits_for_the_run_s_lock_trains_nothing(results: Path) -> None:
    run = launch(results, "--nodes", "1", "--ranks-per-node", "1", *PACED)
    until(lambda: run.metrics("step"))
    firetrain("cancel", str(run.path))
    until(lambda: gone(run))
    steps = len(run.metrics("step"))
    with lock.held(run):
        run.update(state=RUNNING)  # as by a launch without a job
        job = slurm("sbatch", "--parsable", f"--job-name={run.name}", str(run.path / "job.sh")).strip()
        until(lambda: list(run.path.glob(".attempt-*/job")))
        assert "will save a checkpoint and exit" in firetrain("cancel", str(run.path)).stdout
    until(lambda: gone(run))
    assert "the run was cancelled while this job waited" in (run.path / f"job-{job}.log").read_text()
    assert len(run.metrics("step")) == steps and run.attempts == 1
    assert firetrain("status", str(run.path)).stdout.startswith(f"{run.name}: cancelled")


def test_status_asks_slurm_no_more_often_than_the_site_allows(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = (Path(__file__).parents[2] / "slurm" / "sites" / "testbed.yaml").read_text()
    (tmp_path / "patient.yaml").write_text(site.replace("poll_every_s: 1", "poll_every_s: 600"))
    run = launch(results, "--site", str(tmp_path / "patient.yaml"), "--nodes", "1", *PACED)
    until(lambda: run.metrics("step"))
    assert "(as of " not in firetrain("status", str(run.path)).stdout
    with monkeypatch.context() as context:
        context.setenv("PATH", "/nowhere")  # a query would fail
        until(lambda: "(as of " in firetrain("status", str(run.path)).stdout, 10)
    assert "will save a checkpoint and exit" in firetrain("cancel", str(run.path)).stdout, (
        "what is to be done is asked anew"
    )
    until(lambda: gone(run))


def test_a_cancelled_job_goes_on_as_another_job_and_as_no_job(results: Path, tmp_path: Path) -> None:
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", *PACED, "--set", "target.max_epochs=4", "--set",
        "batch.global_size=32", "--set", "checkpoint.every_epochs=1",
    )  # fmt: skip
    again = firetrain("launch", "--resume", str(run.path), "--site", "testbed")
    assert again.returncode == 2 and "still has Slurm job" in again.stderr, again.stdout + again.stderr
    until(lambda: len(run.metrics("step")) > 5)
    firetrain("cancel", str(run.path))
    until(lambda: gone(run))
    saved = newest(run.path / "checkpoints")[0]
    assert saved and not run.summary()
    copied = tmp_path / "copied"
    shutil.copytree(run.path, copied)
    (first,) = run.facts()["jobs"]
    done = firetrain("launch", "--resume", str(run.path), "--wait")  # by the site through which it was submitted
    assert done.returncode == 0 and "submitted: 2 ranks on 2 nodes" in done.stdout, done.stdout + done.stderr
    assert run.facts()["jobs"][0] == first and len(run.facts()["jobs"]) == 2 and run.summary()["attempts"] == 2
    here = firetrain("launch", "--resume", str(copied), "--on", "local")
    assert here.returncode == 0, here.stdout + here.stderr
    assert losses(Run.open(copied)) == losses(run)
    weights = [load(newest(path / "checkpoints")[0])["model"] for path in (copied, run.path)]  # type: ignore[arg-type]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_cancel_saves_first_and_takes_a_waiting_job_out_of_the_queue(results: Path) -> None:
    run = launch(results, "--nodes", "1", "--ranks-per-node", "2", *PACED)
    until(lambda: len(run.metrics("step")) > 3)
    assert "will save a checkpoint and exit" in firetrain("cancel", str(run.path)).stdout
    until(lambda: gone(run))
    assert job_exit(run) == "0:0" and newest(run.path / "checkpoints")[0]
    until(lambda: firetrain("status", str(run.path)).stdout.splitlines()[0] == f"{run.name}: cancelled", 10)
    # a job that cannot start while another one has all nodes
    other = slurm(
        "sbatch", "--parsable", "-p", "high", "-N4", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600"
    ).strip()
    until(lambda: "RUNNING" in slurm("squeue", "-h", "-o", "%T", "-j", other))
    waiting = launch(results, "--nodes", "1", "--ranks-per-node", "1")
    told = firetrain("status", str(waiting.path)).stdout
    assert "waiting in the queue" in told and ("busy" in told or "priority" in told), told
    slurm("scontrol", "update", "PartitionName=debug", "MaxTime=00:10:00")
    try:
        never = "will never start: 30:00 > limit 00:10:00 of partition debug"
        until(lambda: never in firetrain("status", str(waiting.path)).stdout)
    finally:
        slurm("scontrol", "update", "PartitionName=debug", "MaxTime=01:00:00")
    assert "cancelled" in firetrain("cancel", str(waiting.path)).stdout
    slurm("scancel", other)
    until(lambda: gone(waiting))
    assert not (waiting.path / "attempt-0").exists()
