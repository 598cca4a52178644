"""A Slurm job under a strategy, which goes on as another job under another strategy."""

from __future__ import annotations

from pathlib import Path

import pytest
from testbed import firetrain, gone, launch, until

from firetrain.records import Run


def test_a_job_goes_on_as_another_job_under_another_strategy(results: Path, tmp_path: Path) -> None:
    options = (
        "--set",
        "model.name=lenet",
        "--set",
        "batch.global_size=144",
        "--set",
        "target.max_epochs=8",
        "--set",
        "log.every_steps=1",
    )
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "2", *options, "--set", "strategy.name=one-weird-trick:inside=true",
        "--set", "checkpoint.every_epochs=1",
    )  # fmt: skip
    until(lambda: len(run.metrics("step")) > 3)
    assert firetrain("cancel", str(run.path)).returncode == 0
    until(lambda: gone(run))
    assert "strategy one-weird-trick:inside=true" in run.log(0).read_text() and not run.summary()
    strategy = "pipeline:stages=2,micro_batches=3,schedule=1f1b"
    resumed = firetrain("launch", "--resume", str(run.path), "--set", f"strategy.name={strategy}")
    assert resumed.returncode == 0, resumed.stderr
    until(lambda: run.summary() and gone(run), 300)
    assert f"strategy {strategy}" in run.log(0).read_text() and run.summary()["attempts"] == 2
    alone = firetrain(
        "launch", "squeezenet-digits", "--ranks-per-node", "1", *options, "--set", "target.top1=null", "--results",
        str(tmp_path), "--json", limit_s=200,
    )  # fmt: skip
    assert alone.returncode == 0, alone.stderr
    one = Run.open(next(tmp_path.glob("squeezenet-digits-*")))
    found, expected = ([row["loss"] for row in of.metrics("step")] for of in (run, one))
    # later, differences of rounding have grown
    assert found[:40] == pytest.approx(expected[:40], rel=1e-3) and len(found) == len(expected) == 80
