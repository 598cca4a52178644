"""Horovod on several nodes for each launcher: srun without MPI or ssh, mpirun, horovodrun."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import HOROVOD, need
from testbed import firetrain, gone, launch, until

from firetrain.records import Run

# Open MPI requires two confirmations to run as root
ROOT = ("--env", "OMPI_ALLOW_RUN_AS_ROOT=1", "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")


def losses(run: Run) -> list[float]:
    return [row["loss"] for row in run.metrics("step")]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the library's own all-reduce, on this machine."""
    folder = tmp_path_factory.mktemp("native")
    sets = [
        f"--set={text}"
        for text in ("reduction.name=native", "target.max_steps=5", "log.every_steps=1", "target.top1=null")
    ]
    command = [
        sys.executable,
        "-m",
        "firetrain",
        "launch",
        "squeezenet-digits",
        "--on",
        "local",
        "--results",
        str(folder),
    ]
    subprocess.run([*command, "--ranks-per-node", "2", *sets], check=True, capture_output=True, timeout=120)
    return losses(Run.open(next(folder.iterdir())))


@pytest.mark.parametrize(
    ("launcher", "controller", "options"),
    [("srun", "gloo", ()), ("horovodrun", "gloo", ()), ("mpirun", "mpi", ROOT)],
)
def test_its_losses_are_those_of_native(
    launcher: str, controller: str, options: tuple[str, ...], results: Path, truth: list[float]
) -> None:
    need(None if HOROVOD else "Horovod is not installed (make horovod)")
    need(None if shutil.which(launcher) or launcher != "mpirun" else "no mpirun here (Debian: openmpi-bin)")
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "reduction.name=horovod", "--set", "target.max_steps=5",
        "--launcher", launcher, *options,
    )  # fmt: skip
    until(lambda: gone(run))
    told = firetrain("status", str(run.path)).stdout + firetrain("logs", str(run.path)).stdout
    assert run.summary(), told
    assert losses(run) == pytest.approx(truth, rel=1e-5)
    facts = run.summary()["reduction"]
    assert facts["name"] == "horovod" and facts["controller"] == controller and run.summary()["nodes"] == 2


def test_a_killed_rank_ends_the_job_and_is_named(results: Path, tmp_path: Path) -> None:
    need(None if HOROVOD else "Horovod is not installed (make horovod)")
    run = launch(
        results, "--nodes", "2", "--ranks-per-node", "1", "--set", "reduction.name=horovod", "--set", "target.max_epochs=200",
        "--env", "FAULT=1:kill", "--env", f"PYTHONPATH={tmp_path / 'sabotage'}",
    )  # fmt: skip
    until(lambda: gone(run))
    assert "rank 1 on fire2: killed by signal 9 (SIGKILL)" in firetrain("status", str(run.path)).stdout
