"""A placement file is what a strategy made, or what a user wrote; its mistakes are told with file, line and column."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import Command

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.strategy import find_strategy
from firetrain.strategy.file import text

MIXED = """
ranks: 4
default: {images: 4}
layers:
  conv2: {images: 2, outputs: 2, ranks: [3, 1, 0, 2]}
  fc1: {outputs: 2, inputs: 2}
  fc2: {inputs: 3, ranks: [2, 0, 1]}
"""
LAYERS = trace(model_by_name("lenet", classes=10).train(), 28).layers


@pytest.mark.parametrize(
    "name",
    [
        "one-weird-trick",
        "tensor-parallel:split=alternate",
        "pipeline:stages=2,micro_batches=3,schedule=1f1b",
        "pipeline:replicas=4,micro_batches=3,schedule=1f1b",
    ],
)
def test_a_saved_placement_comes_back(name: str, tmp_path: Path) -> None:
    placement, path = find_strategy(name)(LAYERS, World.even(1, 4)), tmp_path / "mine.yaml"
    path.write_text(text(placement))
    assert find_strategy(str(path))(LAYERS, World.even(1, 4)) == replace(placement, strategy=str(path))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            "ranks: 4\nlayers:\n  conv3: {images: 4}\n",
            ["mine.yaml:3:3: layers.conv3: unknown layer 'conv3', did you mean conv"],
        ),
        ("ranks: 4\nlayers:\n  conv1: {images: 4}\n", ["mine.yaml:2:1: layers: conv2, fc1, fc2, loss: not placed"]),
        (
            "ranks: 4\ndefault: {images: 3}\n",
            ["mine.yaml:2:1: default: 3 x 1 x 1 shares (images, outputs, inputs) need"],
        ),
        ("ranks: 4\ndefault: {images: 4}\nlayers: {loss: {outputs: 4}}\n", ["loss needs all channels of an image"]),
        ("ranks: 4\ndefault: {images: 4, ranks: [0, 1, 2, 7]}\n", ["conv1 is on ranks [7], but there are 4"]),
        (
            "ranks: 4\nschedule: 1f1b\ndefault: {images: 4}\n",
            [
                "mine.yaml",
                "schedule 1f1b orders micro-batches, and a batch is one: set micro_batches, or remove schedule",
            ],
        ),
        ("ranks: 3\ndefault: {images: 3}\n", ["mine.yaml places a model on 3 ranks, but there are 4"]),
        ("ranks: 0\nlayrs: {}\n", ["mine.yaml:1:1: ranks: must be greater", "mine.yaml:2:1: layrs: unknown key"]),
    ],
)
def test_mistakes_are_told_with_their_place(content: str, told: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        find_strategy(str(path))(LAYERS, World.even(1, 4))
    assert all(text in str(error.value) for text in told), error.value


def test_a_file_that_has_changed_since_a_run_began_is_told(firetrain: Command, tmp_path: Path) -> None:
    mine = tmp_path / "config.yaml"  # as the run's own config is called
    mine.write_text("ranks: 2\ndefault: {images: 2}\nlayers: {fc1: {outputs: 2}}\n")
    options = ("--ranks-per-node", "2", "--set", "model.name=lenet", "--set", "target.max_steps=2", "--set", "target.top1=null",
               "--set", "strategy.name=./config.yaml", "--set", "checkpoint.every_epochs=1")  # fmt: skip
    done = firetrain("launch", "squeezenet-digits", *options)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results").iterdir()
    (run / "summary.json").unlink()
    assert "has changed" not in firetrain("launch", "--resume", str(run), "--dry-run").stdout
    kept = mine.read_text()
    mine.write_text(kept.replace("outputs", "inputs"))
    done = firetrain("launch", "--resume", str(run), "--dry-run")
    assert done.returncode == 0 and "config.yaml has changed since the run began; what it was then is in" in done.stdout
    assert (run / "strategy.yaml").read_text() == kept


def test_a_run_trains_by_a_file_and_a_pipeline_as_data_parallel_does(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MIXED)
    options = ("--ranks-per-node", "4", "--set", "model.name=lenet", "--set", "target.max_steps=4", "--set", "target.top1=null",
               "--set", "log.every_steps=1")  # fmt: skip
    losses = []
    for number, strategy in enumerate(("./mine.yaml", "pipeline:stages=2,replicas=2", "data-parallel")):
        results = tmp_path / f"results-{number}"
        done = firetrain(
            "launch", "squeezenet-digits", *options, "--set", f"strategy.name={strategy}", "--results", str(results)
        )
        assert done.returncode == 0, done.stderr
        (metrics,) = results.glob("*/metrics.jsonl")
        rows = map(json.loads, metrics.read_text().splitlines())
        losses.append([row["loss"] for row in rows if row["kind"] == "step"])
    for found in losses[:2]:
        assert len(found) == 4 and found == pytest.approx(losses[2], rel=1e-4)
    for number, part in enumerate(("exchange of activations", "pipeline bubble")):
        (run,) = (tmp_path / f"results-{number}").glob("*/")
        status, report = firetrain("status", str(run)), firetrain("report", str(run), cwd=run)
        screen = firetrain("watch", str(run))
        assert screen.returncode == 0 and part in " ".join(screen.stdout.split()), screen.stdout
        assert status.returncode == 0 and "completed" in status.stdout
        assert report.returncode == 0 and part in report.stdout


def test_a_file_that_is_not_there_is_a_mistake_of_the_config(firetrain: Command) -> None:
    done = firetrain("launch", "squeezenet-digits", "--set", "strategy.name=./other.yaml")
    assert done.returncode == 2 and "strategy: no file ./other.yaml" in done.stderr


def test_the_command_saves_a_file(firetrain: Command, tmp_path: Path) -> None:
    options = ("--model", "lenet", "--image-size", "28", "--ranks", "2")
    done = firetrain("strategy", "show", "one-weird-trick", *options, "--out", "mine.yaml")
    assert done.returncode == 0 and "written to mine.yaml" in done.stdout
    assert "fc1: {outputs: 2}" in (tmp_path / "mine.yaml").read_text()
    drawn = firetrain("strategy", "show", "./mine.yaml", *options)
    assert drawn.returncode == 0 and "o 2/2" in drawn.stdout
