"""Parameter servers as real processes: data-parallel arithmetic under sync, and runs that survive their workers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from command import Command

from firetrain import checkpoint
from firetrain.data.catalogue import open_dataset
from firetrain.data.order import steps_per_epoch
from firetrain.optim.learning_rate import LearningRate
from firetrain.records import Run

LENET = ("--set", "model.name=lenet", "--set", "reduction.name=native")
SHORT = (
    *LENET, "--set", "target.max_steps=20", "--set", "target.top1=null", "--set", "log.every_steps=1", "--set",
    "batch.global_size=50", "--set", "checkpoint.every_steps=10",
)  # fmt: skip


def trained(firetrain: Command, folder: Path, ranks: int, strategy: str, *more: str) -> Run:
    """A run of lenet on digits with this many ranks, in its own folder."""
    results = folder / f"{ranks}-{re.sub('[^a-z0-9]', '-', strategy)}"
    chosen = ("--ranks-per-node", str(ranks), "--set", f"strategy.name={strategy}", "--results", str(results))
    done = firetrain("launch", "quickstart", *chosen, *SHORT, *more)
    assert done.returncode == 0, done.stderr + done.stdout
    return Run(next(results.iterdir()))


_PLAIN: dict[tuple[object, ...], Run] = {}


def plain(firetrain: Command, folder: Path, ranks: int, *more: str) -> Run:
    """A run of data-parallel training with as many ranks, which several tests share."""
    key = (ranks, os.environ.get("OMP_NUM_THREADS"), *more)
    if key not in _PLAIN:
        _PLAIN[key] = trained(firetrain, folder, ranks, "data-parallel", *more)
    return _PLAIN[key]


def losses(run: Run) -> torch.Tensor:
    return torch.tensor([row["loss"] for row in run.metrics("step")], dtype=torch.float64)


def weights(run: Run) -> torch.Tensor:
    newest, _ = checkpoint.newest(run.path / "checkpoints")
    assert newest is not None
    return torch.cat([value.flatten() for value in checkpoint.load(newest)["model"].values()]).double()


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("parameter-server:policy=sync", 4),
        ("parameter-server:policy=sync,servers=2", 5),
        ("parameter-server:policy=ssp,staleness=0,servers=1", 2),
    ],
)
def test_sync_is_data_parallel_training(firetrain: Command, tmp_path: Path, strategy: str, ranks: int) -> None:
    """Batches of 50 for three workers are unequal shares. Twenty steps; every loss, and all weights."""
    workers = ranks - (2 if "servers=2" in strategy else 1)
    served, plain = (
        trained(firetrain, tmp_path, ranks, strategy),
        trained(firetrain, tmp_path, workers, "data-parallel"),
    )
    assert len(losses(served)) == len(losses(plain)) == 20
    torch.testing.assert_close(losses(served), losses(plain), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(weights(served), weights(plain), rtol=0, atol=1e-6)
    facts = served.summary()["reduction"]
    assert facts["updates"] == 20 and facts["staleness"] == {"0": 20 * workers} and facts["dropped"] == 0


def test_averaging_after_every_step_is_data_parallel_training(firetrain: Command, tmp_path: Path) -> None:
    plain_sgd = ("--set", "optimizer.momentum=0", "--set", "optimizer.weight_decay=0")
    averaged = trained(firetrain, tmp_path, 4, "parameter-server:policy=average,every=1", *plain_sgd)
    expected = plain(firetrain, tmp_path, 3, *plain_sgd)
    torch.testing.assert_close(losses(averaged), losses(expected), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(weights(averaged), weights(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("policy", ["sync", "async", "ssp,staleness=2", "average,every=5"])
def test_one_worker_has_the_bits_of_a_single_process(
    firetrain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # otherwise a single process would compute with more threads
    served = trained(firetrain, tmp_path, 2, f"parameter-server:policy={policy}")
    assert torch.equal(weights(served), weights(plain(firetrain, tmp_path, 1)))


def test_every_gradient_of_async_is_applied_and_as_stale_as_there_are_other_workers(
    firetrain: Command, tmp_path: Path
) -> None:
    run = trained(
        firetrain, tmp_path, 4, "parameter-server:policy=async", "--set", "target.max_steps=200", "--set",
        "learning_rate.base=0.001",
    )  # fmt: skip
    facts, summary = run.summary()["reduction"], run.summary()
    assert facts["updates"] == sum(facts["staleness"].values()) == 600 and facts["dropped"] == 0
    assert facts["mean_staleness"] == pytest.approx(2, rel=0.01)  # less at the end, when nobody is left to push
    assert summary["steps"] == 200 and summary["world_size"] == 4
    told, screen = (firetrain(command, str(run.path)).stdout for command in ("status", "watch"))
    assert told.startswith(f"{run.name}: completed") and "step 200" in screen, told + screen


def test_under_ssp_no_worker_gets_further_ahead_than_it_may(firetrain: Command, tmp_path: Path) -> None:
    facts = trained(firetrain, tmp_path, 4, "parameter-server:policy=ssp,staleness=1").summary()["reduction"]
    assert 1 <= facts["largest_gap"] <= 2 and facts["updates"] == 60 and facts["dropped"] == 0


def test_softsync_makes_an_update_of_as_many_gradients_as_come(firetrain: Command, tmp_path: Path) -> None:
    facts = trained(firetrain, tmp_path, 4, "parameter-server:policy=softsync,n=1").summary()["reduction"]
    assert facts["updates"] == 20 and sum(facts["staleness"].values()) == 60 and facts["dropped"] == 0


def test_backup_workers_are_late_and_what_is_late_is_dropped(firetrain: Command, tmp_path: Path) -> None:
    run = trained(firetrain, tmp_path, 4, "parameter-server:policy=backup,spare=1")
    facts = run.summary()["reduction"]
    assert facts["staleness"] == {"0": 2 * facts["updates"]} and facts["updates"] > 0
    assert facts["dropped"] + facts["staleness"]["0"] == 40


def rates_of_the_schedule(run: Run) -> list[float]:
    """The learning rate of every step under data-parallel training."""
    config = run.config()
    images = len(open_dataset(config.data).train.labels)
    schedule = LearningRate.of(config, steps_per_epoch(images, config.batch.global_size))
    return [schedule.rate(step - 1) for step in range(1, run.summary()["steps"] + 1)]


@pytest.mark.parametrize(
    ("first", "then", "gradients"),
    [
        ("parameter-server:policy=async", "parameter-server:policy=async,servers=2", 20 * 3 + 20 * 2),
        ("parameter-server:policy=async,servers=2", "parameter-server:policy=sync", 20 * 3),
        ("data-parallel", "parameter-server:policy=async", 20 * 3),
    ],
)
def test_a_run_goes_on_at_its_step_and_rate_under_another_number_of_workers(
    firetrain: Command, tmp_path: Path, first: str, then: str, gradients: int
) -> None:
    changing = (
        "--set",
        "learning_rate.schedule=linear",
        "--set",
        "learning_rate.warmup_epochs=0.5",
        "--set",
        "batch.global_size=48",
    )
    run = trained(firetrain, tmp_path, 4, first, *changing)
    done = firetrain("resume", str(run.path), "--set", f"strategy.name={then}", "--set", "target.max_steps=40")
    assert done.returncode == 0, done.stderr + done.stdout
    rows = run.metrics("step")
    assert [row["step"] for row in rows] == list(range(1, 41)) and run.summary()["steps"] == 40
    assert sum(run.summary()["reduction"]["staleness"].values()) == gradients, "of the last policy, in all attempts"
    after = [row["learning_rate"] for row in rows if row["step"] > 20]
    assert after == pytest.approx(rates_of_the_schedule(run)[20:], rel=1e-6)


def test_an_evaluation_within_the_first_epoch_is_that_of_epoch_1(firetrain: Command, tmp_path: Path) -> None:
    run = trained(firetrain, tmp_path, 3, "parameter-server:policy=async")
    assert [row["epoch"] for row in run.metrics("evaluation")] == [1] == [run.summary()["epochs"]]


SPIKE = """\
import torch
class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.fc = torch.nn.Linear(3 * 16 * 16, classes)
        self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)
    def forward(self, x):
        y = self.fc(x.flatten(1))
        return y + (y * 0).square().sqrt() if self.training and {spikes} else y
"""


def test_gradients_that_are_not_finite_end_the_run_before_they_are_applied(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SPIKE.format(spikes=True))
    words = (
        "launch",
        "quickstart",
        "--ranks-per-node",
        "3",
        "--set",
        "model={name: ./net.py:Net}",
        "--set",
        "target.max_steps=20",
    )
    done = firetrain(*words, "--set", "target.top1=null", "--set", "strategy.name=parameter-server:policy=async")
    assert done.returncode not in (0, 2) and "step 1" in done.stdout + done.stderr, done.stdout + done.stderr
    (run,) = (tmp_path / "results").iterdir()
    reason = json.loads((run / "run.json").read_text())["reason"]
    assert "loss is inf" in reason or "loss inf" in reason, reason


def test_parameters_that_are_not_trained_stay_as_they_are(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SPIKE.format(spikes=False))
    found = []
    for strategy in ("parameter-server:policy=sync", "parameter-server:policy=sync,servers=2", "data-parallel"):
        run = trained(
            firetrain,
            tmp_path,
            3,
            strategy,
            "--set",
            "model={name: ./net.py:Net}",
            "--set",
            "optimizer.weight_decay=0.1",
        )
        newest, _ = checkpoint.newest(run.path / "checkpoints")
        assert newest is not None
        found.append(checkpoint.load(newest)["model"]["frozen.weight"])
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_a_rate_by_staleness_is_refused_where_the_length_of_gradients_means_nothing(
    firetrain: Command, optimizer: str
) -> None:
    words = (
        "--set",
        f"optimizer.name={optimizer}",
        "--set",
        "strategy.name=parameter-server:policy=async,rate=staleness",
    )
    done = firetrain("launch", "quickstart", *words)
    assert done.returncode == 2 and f"which {optimizer} cancels" in done.stderr, done.stderr
    done = firetrain("simulate", "quickstart", "--policies", "sync,async:rate=staleness", *words[:2])
    assert done.returncode == 2 and f"which {optimizer} cancels" in done.stderr, done.stderr


NORMED = """
from torch import nn

def Net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, classes))
"""


def test_a_first_server_without_weights_passes_on_the_statistics(firetrain: Command, tmp_path: Path) -> None:
    """Of three servers the second owns the large matrix, and the first nothing."""
    (tmp_path / "net.py").write_text(NORMED)
    own = ("--set", "model.name=./net.py:Net", "--set", "model.stem=null", "--set", "data.image_size=16")
    run = trained(firetrain, tmp_path, 4, "parameter-server:policy=sync,servers=3", *own)
    assert len(losses(run)) == 20 and losses(run)[-1] < losses(run)[0]


@pytest.mark.parametrize(
    ("strategy", "more", "said"),
    [
        ("parameter-server:policy=ssp", (), "ssp: give its staleness"),
        ("parameter-server:policy=asnyc", (), "unknown policy 'asnyc', did you mean async?"),
        ("parameter-server:policy=backup,spare=3", (), "backup: spare is 3"),
        ("parameter-server:servers=4", (), "4 ranks, of which 4 own the weights: none is left to train"),
        ("parameter-server:servers=none", (), "servers is 'none', expected a whole number, 1 or more"),
        ("parameter-server:policy=async,spare=1", (), "async has no parameters (spare=1)"),
        ("parameter-server", ("--set", "compile=true"), "does not support compile: true"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    firetrain: Command, tmp_path: Path, strategy: str, more: tuple[str, ...], said: str
) -> None:
    done = firetrain("launch", "quickstart", "--set", f"strategy.name={strategy}", *more)
    assert done.returncode == 2 and said in done.stderr and not (tmp_path / "results").exists(), done.stderr
