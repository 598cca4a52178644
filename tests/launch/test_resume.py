"""An interrupted run resumes and ends bitwise equal to an uninterrupted one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command
from launched import LONG, Launch, stop, wait_for

from firetrain.checkpoint import load, newest
from firetrain.records import Run
from firetrain.records.lock import is_held

# checkpoints are also saved within epochs
SMALL = (
    "--ranks-per-node", "2", "--set", "target.top1=null", "--set", "target.max_epochs=2", "--set", "checkpoint.every_steps=5",
    "--set", "log.every_steps=1", "--set", "checkpoint.every_epochs=1", "--set", "reduction.bucket_mib=1",
)  # fmt: skip


def weights(run: Path) -> dict[str, object]:
    path, _ = newest(run / "checkpoints")
    assert path is not None
    return load(path)["model"]


def losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in Run(run).metrics("step")]


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run, with which the others are compared."""
    one = Launch(tmp_path_factory.mktemp("whole"), *SMALL)
    try:
        code, out, _ = one.end(180)
    finally:
        one.kill()
    assert code == 0, out
    return one.run


@pytest.mark.parametrize("ending", ["Ctrl-C", "kill -9"])
def test_it_ends_with_the_bits_of_a_run_that_was_left_alone(
    launch: Callable[..., Launch], left_alone: Path, ending: str
) -> None:
    first = launch(*SMALL)
    wait_for(lambda: list(first.folder.glob("results/*/checkpoints/step-*.pt")), "a checkpoint")
    first.process.send_signal(signal.SIGINT if ending == "Ctrl-C" else signal.SIGKILL)
    first.process.wait(30)
    wait_for(lambda: not first.ranks(), "all ranks gone")
    told = status(first.run)
    assert f"to resume: firetrain launch --resume {os.path.relpath(first.run, first.folder)}" in told, told
    assert told.split(": ")[1].startswith("stopped" if ending == "Ctrl-C" else "interrupted")
    second = launch("--resume", str(first.run))
    code, out, _ = second.end(180)
    assert code == 0, out
    run = Run.open(first.run)
    summary = run.summary()
    assert summary["attempts"] == 2 and summary["restart_s"] > 0 and "resuming after step" in run.log(0).read_text()
    assert ending == "kill -9" or summary["lost_s"] == 0
    assert losses(first.run) == losses(left_alone)
    before, after = weights(left_alone), weights(first.run)
    assert all((before[name] == after[name]).all() for name in before)


def status(run: Path) -> str:
    command = ["firetrain", "status", os.path.relpath(run, run.parents[1])]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=run.parents[1], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_launches_of_one_run_at_once_are_refused_until_the_last_rank_is_gone(launch: Callable[..., Launch]) -> None:
    first = launch("--ranks-per-node", "2", *LONG)
    first.wait_until_training()
    code, out, _ = launch("--resume", str(first.run)).end(60)
    assert code == 2 and "is running already" in out and first.process.poll() is None
    for pid in first.ranks().values():
        stop(pid)  # stopped ranks do not notice that their launcher has died
    first.process.kill()
    first.process.wait()
    code, out, _ = launch("--resume", str(first.run)).end(60)
    assert code == 2 and "is running already" in out
    assert sorted(path.name for path in first.run.glob("attempt-*")) == ["attempt-0"]
    for pid in first.ranks().values():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_held(Run(first.run)), "the lock is free")


def test_a_complete_run_is_told_as_such(firetrain: Command, left_alone: Path) -> None:
    done = firetrain("launch", "--resume", str(left_alone))
    assert done.returncode == 0 and "is complete: nothing to resume" in done.stdout
    assert json.loads(firetrain("launch", "--resume", str(left_alone), "--json").stdout)["state"] == "completed"


def test_a_complete_run_that_is_made_longer_ends_like_one_that_was_so_long_from_the_start(
    launch: Callable[..., Launch], left_alone: Path, firetrain: Command
) -> None:
    short = launch(*SMALL, "--set", "target.max_epochs=1")
    assert short.end(180)[0] == 0
    run = str(short.run)
    for told, options in (
        ("target.max_epochs is 1, and", ("--set", "target.max_epochs=1")),
        ("a resumed run can change only its strategy, its reduction, target.max_epochs", ("--set", "target.top1=0.5")),
    ):
        refused = firetrain("resume", run, *options)
        assert refused.returncode == 2 and told in refused.stderr, refused.stderr
    assert "is complete: nothing to resume" in firetrain("resume", run).stdout
    done = firetrain("resume", run, "--set", "target.max_epochs=2", "--json", limit_s=180)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 2
    assert json.loads((short.run / "attempt-0" / "summary.json").read_text())["epochs"] == 1
    assert losses(short.run) == losses(left_alone)
    before, after = weights(left_alone), weights(short.run)
    assert all((before[name] == after[name]).all() for name in before)
    assert Run(short.run).facts()["arm"] == "resumed with target.max_epochs=2"


def test_a_run_that_has_reached_its_target_is_not_made_longer(
    launch: Callable[..., Launch], firetrain: Command
) -> None:
    reached = launch(*SMALL, "--set", "target.top1=0.01", "--set", "target.max_epochs=1")
    assert reached.end(180)[0] == 0
    refused = firetrain("resume", str(reached.run), "--set", "target.max_epochs=3")
    assert refused.returncode == 2 and "has reached its target, a top-1 accuracy of 0.01" in refused.stderr
    assert reached.run.joinpath("summary.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give a CONFIG"),
        (("quickstart", "--resume", "{run}"), "a resumed run keeps its own config"),
        (("--resume", "{run}", "--nodes", "2"), "--nodes: not with --resume"),
        (("--resume", "{run}", "--nodes", "2", "--results", "x"), "--nodes, --results: not with --resume"),
        (
            ("--resume", "{run}", "--set", "seed=2"),
            "--set seed=2: a resumed run can change only its strategy, its reduction",
        ),
        (("--resume", "{run}", "--set", "strategy.name=one-weird-tric"), "did you mean one-weird-trick?"),
        (("--resume", "nowhere"), "nowhere is not a run's directory"),
    ],
)
def test_what_cannot_be_gone_on_with_is_told(
    firetrain: Command, left_alone: Path, arguments: tuple[str, ...], told: str
) -> None:
    done = firetrain("launch", *(word.format(run=left_alone) for word in arguments))
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_cancel_lets_a_run_on_this_machine_save(launch: Callable[..., Launch], firetrain: Command) -> None:
    run = launch("--ranks-per-node", "2", *LONG)
    run.wait_until_training()
    assert "save a checkpoint and exit" in firetrain("cancel", str(run.run)).stdout
    code, out, _ = run.end(30)
    assert code == 0 and "stopped: stopped after step" in out and "firetrain launch --resume" in out
    assert "was already stopped" in firetrain("cancel", str(run.run)).stdout


def test_images_that_are_not_there_are_told_before_anything_is_started(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "upper" / "mnist").mkdir(parents=True)
    commands = (("launch",), ("launch", "--dry-run"), ("compare",), ("train",))
    for root, told in (
        ("nowhere", "there is nothing at"), ("file", f"{tmp_path}/file is not a folder"),
        ("upper", "idx needs train-images, train-labels, t10k-images, t10k-labels in "),
    ):  # fmt: skip
        for command in commands:
            done = firetrain(*command, "lenet-mnist", "--set", f"data.root={root}")
            assert done.returncode == 2 and f"data.root: {told}" in done.stderr, done.stderr
            assert "--set data.root=FOLDER" in done.stderr and not (tmp_path / "results").exists()


def test_damaged_checkpoints_are_named_before_a_run_goes_on(
    firetrain: Command, left_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "copy"
    shutil.copytree(left_alone, run)
    (run / "summary.json").unlink()
    first, second = sorted((run / "checkpoints").glob("*.pt"))
    second.write_bytes(b"damaged")
    for _ in range(2):  # looking changes nothing
        done = firetrain("launch", "--resume", str(run), "--dry-run")
        assert done.returncode == 0 and f"skipped checkpoint: {second}: damaged" in done.stdout, done.stderr
        assert f"resumes after step {int(first.name.split('-')[1])}" in done.stdout
    first.write_bytes(b"damaged")
    done = firetrain("launch", "--resume", str(run), "--dry-run")
    assert "starts again at step 0: there is no readable checkpoint" in done.stdout, done.stdout
    shutil.rmtree(run / "checkpoints")
    os.mkfifo(run / "checkpoints")
    done = firetrain("launch", "--resume", str(run), limit_s=20)
    assert done.returncode == 2 and "checkpoints is not a folder" in done.stderr, done.stderr
