"""The trainings of a compression are Slurm jobs, one after another, which the command waits for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import QUICK, firetrain, launch, slurm, until

from firetrain.coding.file import read
from firetrain.records import Run

RECIPE = """\
name: small
layers: {fc1: {density: 0.1}, conv2: {density: 0.5}}
bits: 5
retrain: [target.max_epochs=1, target.top1=null, learning_rate.base=0.001]
finetune: [target.max_epochs=1, target.top1=null, learning_rate.base=0.0002]
"""


@pytest.fixture
def trained(results: Path) -> Run:
    """LeNet after one epoch on two nodes."""
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "model.name=lenet", "--set", "target.max_epochs=1", "--set",
        "target.top1=null", "--set", "checkpoint.every_epochs=1",
    )  # fmt: skip
    until(lambda: run.summary())
    return run


def test_a_compression_trains_in_jobs_and_goes_on_after_ctrl_c(trained: Run, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    out = tmp_path / "small.fire"
    words = ("compress", "run", str(trained.path), "--recipe", str(tmp_path / "small.yaml"), "--out", str(out))
    on_slurm = ("--on", "slurm", "--site", os.environ[QUICK], "--time", "00:10:00")
    trainings = out.with_name("small.fire.trainings")
    # the first command is interrupted while its first job waits for all nodes
    other = slurm(
        "sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 300"
    ).strip()
    until(lambda: slurm("squeue", "-h", "-j", other, "-o", "%T").strip() == "RUNNING")
    first = subprocess.Popen(
        [sys.executable, "-m", "firetrain", *words, *on_slurm], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell in the background ignores Ctrl-C
    )  # fmt: skip
    until(
        lambda: (
            first.poll() is not None
            or [run for run in trainings.glob("prune-1/*/run.json") if Run(run.parent).facts().get("jobs")]
        )
    )
    first.send_signal(signal.SIGINT)
    _, told = first.communicate(timeout=30)
    assert "interrupted" in told and first.returncode == 130, told
    slurm("scancel", other)
    done = firetrain(*words, *on_slurm)
    assert done.returncode == 0, done.stderr
    runs = {name: [Run(path.parent) for path in trainings.glob(f"{name}/*/run.json")] for name in ("prune-1", "share")}
    assert [len(own) for own in runs.values()] == [1, 1], "the job that waited was not submitted again"
    for (run,) in runs.values():
        assert len(run.facts()["jobs"]) == 1 and run.facts()["ranks"] == 2 and len(run.facts()["hosts"]) == 2
    assert re.findall(r"job (\d+) submitted", done.stdout) == [str(runs["share"][0].facts()["jobs"][0])]
    state = read(out).state()
    assert (state["fc1.weight"] != 0).mean() == pytest.approx(0.1, abs=0.01)
    assert f"evaluate {out}" in done.stdout


def test_a_job_that_slurm_cannot_take_ends_the_compression_in_words(trained: Run, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    out = tmp_path / "small.fire"
    done = firetrain(
        "compress", "run", str(trained.path), "--recipe", str(tmp_path / "small.yaml"), "--out", str(out), "--on", "slurm",
        "--site", "testbed", "--env", "FIRETRAIN_SABOTAGE=no", "--partition", "nowhere",
    )  # fmt: skip
    assert done.returncode == 2 and "nowhere" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not out.exists()
