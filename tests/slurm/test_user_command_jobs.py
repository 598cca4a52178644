"""A command of the user's own as a job: it finds its ranks, is stopped, requeued, and goes on from what it saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import QUICK, firetrain, gone, site_with, slurm, until

from firetrain.records import Run

SCRIPT = """\
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, saved = dist.get_rank(), Path(os.environ["FIRETRAIN_RUN"]) / "checkpoints" / "step.txt"
mine = torch.tensor([float(rank)])
dist.all_reduce(mine)
step = int(saved.read_text()) if saved.exists() else 0
local = os.environ["LOCAL_RANK"]
print(f"rank {rank} of {dist.get_world_size()}, local {local}: sum {mine.item()}, begins at {step}", flush=True)
stop = torch.zeros(1)
while step < int(sys.argv[1]) and not stop.item():
    step += 1
    time.sleep(0.02)
    stop[0] = float(os.path.exists(os.environ["FIRETRAIN_STOP"]))
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
if rank == 0 and "unsaved" not in sys.argv:
    saved.write_text(str(step))
dist.destroy_process_group()
"""


ON_TWO_NODES = ("--on", "slurm", "--nodes", "2", "--time", "00:10:00")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "own script.py"
    path.write_text(SCRIPT)
    return path


def submitted(results: Path, *words: str) -> Run:
    site = () if "--site" in words else ("--site", os.environ[QUICK])
    options = (*ON_TWO_NODES, *site, "--ranks-per-node", "2", "--json", "--results", str(results))
    done = firetrain("launch", *options, *words)
    assert done.returncode == 0, done.stderr
    return Run.open(Path(json.loads(done.stdout)["run"]))


@pytest.mark.parametrize("launcher", ["srun", "torchrun", "mpirun"])
def test_its_ranks_find_each_other_under_every_launcher(launcher: str, results: Path, script: Path) -> None:
    as_root = ("--env", "OMPI_ALLOW_RUN_AS_ROOT=1", "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
    run = submitted(results, *as_root, "--launcher", launcher, "--name", "own", "--", sys.executable, str(script), "3")
    until(lambda: gone(run))
    assert run.summary().get("state") == "completed", firetrain("status", str(run.path)).stdout
    assert firetrain("status", str(run.path)).stdout.strip() == f"{run.name}: completed"
    logs = "".join(path.read_text() for path in sorted((run.attempt / "logs").glob("rank-*.log")))
    assert all(f"rank {rank} of 4, local {rank % 2}: sum 6.0, begins at 0" in logs for rank in range(4)), logs


def test_whoever_waits_for_a_job_gets_its_exit_code(results: Path, tmp_path: Path) -> None:
    words = (*ON_TWO_NODES, "--ranks-per-node", "1", "--wait", "--results", str(results))
    fails = "import os, sys; sys.exit(7 * (os.environ['RANK'] == '1'))"
    done = firetrain("launch", *words, "--site", os.environ[QUICK], "--", sys.executable, "-c", fails)
    assert done.returncode == 7 and "first failure: rank 1 on " in done.stderr and "exit code 7" in done.stderr, (
        done.stderr
    )
    done = firetrain("launch", "squeezenet-digits", *words, *site_with(tmp_path, interface="fast0"))
    assert done.returncode == 69 and "no network interface fast0" in done.stderr, done.stderr
    done = firetrain("launch", "squeezenet-digits", *words, *site_with(tmp_path, setup='["exit 5"]'))
    assert done.returncode == 5 and "ended before its ranks were started, without a word in " in done.stderr, (
        done.stderr
    )


def test_whoever_waits_for_a_job_that_is_cancelled_gets_1(results: Path) -> None:
    site = ("--site", os.environ[QUICK])
    command = [sys.executable, "-m", "firetrain", "launch", *ON_TWO_NODES, *site, "--ranks-per-node", "1"]
    for way in ("scancel", "firetrain cancel"):
        waiting = subprocess.Popen(
            [*command, "--wait", "--results", str(results / way), "--", "sleep", "600"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            until(lambda way=way: list((results / way).glob("*/attempt-0/logs/rank-0001.log")))  # type: ignore[misc]
            run = Run.open(next((results / way).glob("*/run.json")).parent)
            job = (run.attempt / "job").read_text().strip()
            slurm("scancel", job) if way == "scancel" else firetrain("cancel", str(run.path), "--now")
            _, told = waiting.communicate(timeout=120)
        finally:
            waiting.kill()
        assert waiting.returncode == 1 and "cancelled" in told.lower(), told
        assert "exit code -1" not in told and "exit code 255" not in told, told


def test_a_job_that_is_stopped_is_requeued_and_goes_on(results: Path, script: Path) -> None:
    run = submitted(results, "--", sys.executable, str(script), "1500")
    log = run.path / "attempt-0" / "logs" / "rank-0000.log"
    until(lambda: log.exists() and "begins at 0" in log.read_text())
    slurm("scancel", "--batch", "--signal=USR1", str(run.facts()["jobs"][0]))
    until(lambda: run.attempts == 2, 200)
    assert (run.path / "attempt-0" / "verdict.txt").read_text() == "saved; requeued\n"
    until(lambda: gone(run), 120)
    assert run.summary()["attempts"] == 2
    step = run.log(0).read_text().partition("begins at ")[2].split()[0]
    assert 0 < int(step) < 1500


def test_a_script_that_knows_nothing_of_being_stopped_is_ended_before_the_walltime_and_requeued(
    results: Path, tmp_path: Path
) -> None:
    script = tmp_path / "knows nothing.py"
    script.write_text(
        "import os, time\nfrom pathlib import Path\n"
        "saved = Path(os.environ['FIRETRAIN_RUN']) / 'checkpoints' / f'rank-{os.environ[\"RANK\"]}.txt'\n"
        "begun = saved.exists()\nprint('begun before' if begun else 'the first time', flush=True)\n"
        "while not begun:\n    saved.write_text('x')\n    time.sleep(0.1)\n"
    )
    site = site_with(tmp_path, signal_lead_s="8")  # it is ended 4 seconds after the signal
    run = submitted(results, *site, "--", sys.executable, str(script))
    until(lambda: (run.path / "checkpoints" / "rank-3.txt").exists())
    slurm("scancel", "--batch", "--signal=USR1", str(run.facts()["jobs"][0]))
    until(lambda: run.attempts == 2, 200)
    assert (run.path / "attempt-0" / "verdict.txt").read_text() == "ended before the walltime; requeued\n"
    until(lambda: gone(run), 120)
    assert run.summary()["attempts"] == 2 and run.log(0).read_text() == "begun before\n"


def test_a_job_without_anything_newer_is_not_requeued_and_a_failing_rank_is_named(results: Path, script: Path) -> None:
    for options, more, told in (
        (("--requeue", "never"), (), "stopped; --requeue never; not requeued"),
        ((), ("unsaved",), "stopped; nothing newer in checkpoints/; not requeued"),
    ):
        run = submitted(results, *options, "--", sys.executable, str(script), "1500", *more)
        log = run.path / "attempt-0" / "logs" / "rank-0000.log"
        until(lambda log=log: log.exists() and "begins at 0" in log.read_text())
        slurm("scancel", "--batch", "--signal=USR1", str(run.facts()["jobs"][0]))
        until(lambda run=run: gone(run))
        assert told in firetrain("status", str(run.path)).stdout
    failed = submitted(results, "--", sys.executable, str(script), "no number")
    until(lambda: gone(failed))
    assert "first failure: rank" in firetrain("status", str(failed.path)).stdout
