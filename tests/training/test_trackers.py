"""Programs that track experiments get the curves of a run as it trains, over all attempts, and never stop it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command import Command
from needs import need

from firetrain.config import Config, load_config
from firetrain.records import Run
from firetrain.training import trackers
from firetrain.training.trackers import Trackers

SMALL = (
    "squeezenet-mini-digits", "--set", "cluster.ranks_per_node=2", "--set", "target.top1=null", "--set", "target.max_epochs=1",
    "--set", "checkpoint.every_epochs=1", "--set", "log.every_steps=5",
)  # fmt: skip


def trained_twice(firetrain: Command, tmp_path: Path, *names: str) -> Run:
    """A run of two attempts, tracked by these programs."""
    done = firetrain("launch", *SMALL, "--set", f"log.to=[{', '.join(names)}]", limit_s=180)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results").iterdir()
    done = firetrain("resume", str(path), "--set", "target.max_epochs=2", limit_s=180)
    assert done.returncode == 0, done.stderr
    run = Run.open(path)
    assert run.facts().get("warnings", []) == []
    return run


def losses(run: Run) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in run.metrics("step")]


def test_tensorboard_shows_all_attempts_as_one_curve(firetrain: Command, tmp_path: Path) -> None:
    run = trained_twice(firetrain, tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [(point.step, point.value) for point in shown.Scalars("train/loss")] == [
        (step, pytest.approx(loss, rel=1e-6)) for step, loss in losses(run)
    ]
    top1 = [row["top1"] for row in run.metrics("evaluation")]
    assert [point.value for point in shown.Scalars("test/top1")] == pytest.approx(top1) and len(top1) == 2


def test_tensorboard_shows_a_run_that_began_again_as_one_curve(tmp_path: Path) -> None:
    """The first attempt was lost before its first checkpoint."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps in (3, 5):
        tracked = Trackers(["tensorboard"], Run(tmp_path), load_config("quickstart").config, 0, pytest.fail)
        for step in range(1, steps + 1):
            tracked.record(row(step))
        tracked.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [point.step for point in shown.Scalars("train/loss")] == [1, 2, 3, 4, 5]


def test_weights_and_biases_gets_all_attempts_under_one_id(
    firetrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(None if find_spec("wandb") else "no wandb (pip install 'firetrain[wandb]')")
    monkeypatch.setenv("WANDB_MODE", "offline")  # no traffic leaves this machine
    run = trained_twice(firetrain, tmp_path, "wandb")
    kept = list(run.path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len(kept) == 2 and {path.name for path in kept} == {f"run-{run.name}.wandb"}, kept


def test_mlflow_gets_all_attempts_as_one_run(
    firetrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(None if find_spec("mlflow") else "no mlflow (pip install 'firetrain[mlflow]')")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server would need a port
    run = trained_twice(firetrain, tmp_path, "mlflow")
    from mlflow.tracking import MlflowClient

    client, number = MlflowClient(), (run.path / "mlflow.id").read_text().strip()
    points = sorted(client.get_metric_history(number, "train/loss"), key=lambda point: point.step)
    assert [(point.step, point.value) for point in points] == losses(run)
    found = client.get_run(number)
    assert found.info.run_name == run.name and found.info.status == "FINISHED"
    assert found.data.params["batch.global_size"] == str(run.config().batch.global_size)


def test_a_program_that_is_not_installed_is_told_and_the_run_completes(
    firetrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "wandb.py").write_text("raise ImportError('not here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "without"))
    done = firetrain("launch", *SMALL, "--set", "log.to=[wandb]", limit_s=180)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results").iterdir()
    (warning,) = Run.open(path).facts()["warnings"]
    assert "wandb cannot be imported (not here): pip install 'firetrain[wandb]'" in warning
    assert f"warning: {warning}" in Run.open(path).log(0).read_text()
    assert f"warning: {warning}" in done.stdout


class Failing:
    """Fails at the second line."""

    def __init__(self, run: Run, config: Config, step: int) -> None:
        self.lines: list[int] = []

    def record(self, step: int, values: Mapping[str, float]) -> None:
        self.lines.append(step)
        if len(self.lines) == 2:
            raise ConnectionError("the server\nis gone")

    def close(self) -> None:
        raise AssertionError("it gets nothing more")


class Hanging(Failing):
    """Never answers."""

    def record(self, step: int, values: Mapping[str, float]) -> None:
        threading.Event().wait()


def row(step: int) -> dict[str, Any]:
    return {"kind": "step", "step": step, "loss": 1.0}


@pytest.mark.parametrize(
    ("made", "told"),
    [(Failing, "wandb failed and gets nothing more: the server is gone"), (Hanging, "wandb has not answered")],
)
def test_a_failing_or_hanging_program_is_told_once_and_never_waited_for(
    made: type[Failing], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(trackers._MAKERS, "wandb", made)
    monkeypatch.setattr(trackers, "_LONGEST_WAIT_S", 0.5)
    warnings: list[str] = []
    began_s = time.monotonic()
    tracked = Trackers(["wandb"], Run(tmp_path), load_config("quickstart").config, 0, warnings.append)
    for step in range(1000):
        tracked.record(row(step))
    tracked.close()
    assert time.monotonic() - began_s < 5
    assert len(warnings) == 1 and told in warnings[0], warnings


def test_a_program_is_listed_once_and_known(firetrain: Command) -> None:
    for value, told in (("[wandb, wandb]", "a program is listed twice"), ("[wand]", "did you mean wandb?")):
        done = firetrain("config", "show", "quickstart", "--set", f"log.to={value}")
        assert done.returncode == 2 and "log.to" in done.stderr and told in done.stderr, done.stderr
    shown = firetrain("config", "show", "quickstart", "--set", "log.to=[mlflow]")
    assert "to: [mlflow]" in shown.stdout
    assert json.loads(firetrain("config", "schema").stdout)


def test_lines_without_curves_are_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers._MAKERS, "wandb", Failing)
    warnings: list[str] = []
    tracked = Trackers(["wandb"], Run(tmp_path), load_config("quickstart").config, 0, warnings.append)
    for kind in ("attempt", "noise") * 3:
        tracked.record({"kind": kind, "step": 1})
    tracked.record(row(1))
    tracked.close()
    assert warnings == ["wandb failed and gets nothing more: it gets nothing more"]
