"""Somebody who has installed the wheel brings a model, a data set and a script, and uses everything on a cluster with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from installed import stranger
from testbed import QUICK, gone, slurm, until

from firetrain.records import Run

FILES = Path(__file__).parents[1] / "stranger"
CONFIG = """\
name: squares
model: {name: "./nets.py:ResNet", arguments: {width: 8}}
data: {name: "./images.py:squares", arguments: {count: 720}, image_size: 24}
batch: {global_size: 48}
learning_rate: {base: 0.02}
reduction: {name: ring}
target: {top1: 0.95, max_epochs: 12}
"""
CHECKED = ("--on", "slurm", "--site", "testbed")


class Stranger:
    """A user with an installed firetrain and a folder of files."""

    def __init__(self, python: Path, home: Path) -> None:
        self.home = home
        self._program = python.with_name("firetrain")
        self.python = str(python)
        for path in FILES.glob("*.py"):
            shutil.copy(path, home)
        (home / "squares.yaml").write_text(CONFIG)

    def __call__(self, *words: str, code: int = 0) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        done = subprocess.run(
            [self._program, *words], cwd=self.home, capture_output=True, text=True, timeout=300, env=environment
        )
        assert done.returncode == code and "Traceback" not in done.stderr, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def started(self, *words: str) -> Run:
        return Run.open(Path(json.loads(self("launch", *unchecked(), "--json", *words))["run"]))


def unchecked() -> tuple[str, ...]:
    """The options for a job on the cluster whose nodes are not looked at first, as those of `CHECKED` are."""
    return "--on", "slurm", "--site", os.environ[QUICK]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stranger(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def firetrain(python: Path, tmp_path: Path) -> Stranger:
    return Stranger(python, tmp_path)


def stop(run: Run, is_under_way: str) -> None:
    """Ask a job to stop as Slurm does before its time is up, as soon as its log tells that it is under way."""
    log = run.path / "attempt-0" / "logs" / "rank-0000.log"
    until(lambda: log.exists() and is_under_way in log.read_text())
    slurm("scancel", "--batch", "--signal=USR1", str(run.facts()["jobs"][0]))


def test_they_use_nothing_of_firetrain_but_the_hook() -> None:
    lines = [line for path in FILES.glob("*.py") for line in path.read_text().splitlines() if "import" in line]
    assert [line for line in lines if "firetrain" in line] == ["from firetrain.ddp import Reducer, hook"]


def test_their_model_and_data_train_on_four_nodes_are_stopped_requeued_and_made_longer(firetrain: Stranger) -> None:
    run = firetrain.started("squares.yaml", "--nodes", "4", "--set", "target.top1=null")
    stop(run, "epoch 1: ")
    until(lambda: run.attempts == 2, 200)
    until(lambda: gone(run), 200)
    assert run.summary()["attempts"] == 2 and run.summary()["top1"] > 0.9
    firetrain("resume", str(run.path), "--set", "target.max_epochs=13", "--wait")
    assert run.summary()["epochs"] == 13
    assert "squares" in firetrain("report", "results")


def test_their_model_is_compared_under_several_reductions(firetrain: Stranger) -> None:
    words = ("--nodes", "2", "--steps", "4", "--warmup-steps", "2", "--repeats", "1", "--json")
    found = json.loads(firetrain("compare", "squares.yaml", *CHECKED, "--reductions", "native,ring", *words))
    assert {row["reduction"] for row in found["rows"]} == {"native", "ring"}
    assert max(row["loss_difference"] for row in found["rows"]) < 1e-4


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_their_script_is_compared_under_several_reductions(firetrain: Stranger, launcher: str) -> None:
    options = ("--launcher", launcher, "--reductions", "native,ring", "--nodes", "2", "--steps", "6", "--repeats", "1")
    as_root = ("--env", "OMPI_ALLOW_RUN_AS_ROOT=1", "--env", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "--json")
    command = ("--", firetrain.python, "train.py", "--epochs", "100")
    found = json.loads(firetrain("compare", *unchecked(), *options, *as_root, *command))
    assert {(row["reduction"], row["nodes"], row["ranks"]) for row in found["rows"]} == {
        ("native", 2, 2),
        ("ring", 2, 2),
    }
    assert all(0 < row["exposed_communication_s"] < row["value_s"] for row in found["rows"])
    trials = sorted(firetrain.home.glob("results/comparisons/train/2x1/trials/*/metrics.jsonl"))
    assert [len(path.read_text().splitlines()) for path in trials] == [11, 11]


def test_a_script_that_measures_nothing_is_told_on_the_cluster_too(firetrain: Stranger) -> None:
    (firetrain.home / "silent.py").write_text("print('nothing')\n")
    options = ("--reductions", "native,ring", "--nodes", "2", "--repeats", "1")
    told = firetrain("compare", *unchecked(), *options, "--", firetrain.python, "silent.py", code=1)
    assert "1 of 1 failed: the script has used no Reducer" in told and "register_comm_hook(Reducer(), hook)" in told


def test_their_script_is_stopped_requeued_and_resumed(firetrain: Stranger) -> None:
    run = firetrain.started("--nodes", "4", "--", firetrain.python, "train.py", "--epochs", "20")
    stop(run, "begins with epoch 0")
    until(lambda: run.attempts == 2, 200)
    until(lambda: gone(run), 200)
    assert run.summary()["attempts"] == 2
    assert "20 epochs: " in run.log(0).read_text() and "begins with epoch 0" not in run.log(0).read_text()
    cancelled = firetrain.started("--nodes", "2", "--", firetrain.python, "train.py", "--epochs", "40")
    log = cancelled.log(0)
    until(lambda: log.exists() and "begins with epoch 0" in log.read_text())
    until(lambda: (cancelled.path / "checkpoints" / "newest.pt").exists())
    assert json.loads(firetrain("cancel", str(cancelled.path), "--json"))["state"] == "running"
    until(lambda: gone(cancelled))
    assert "stopped after epoch" in log.read_text() and not cancelled.summary()
    firetrain("resume", str(cancelled.path), "--wait")
    newest = cancelled.log(0).read_text()
    assert "begins with epoch 0" not in newest and "40 epochs: " in newest and cancelled.summary()["attempts"] == 2
