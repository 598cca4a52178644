"""Models of the user's own are trained the same on any number of ranks, or refused with the reason."""

from __future__ import annotations

import json
import random
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command import Command
from own_model import made, write_net
from torch import nn

from firetrain import checkpoint
from firetrain.errors import UserError
from firetrain.models.dropout import Dropout, dropouts_of, set_dropout_keys
from firetrain.models.own import refuse_untrainable_output

STRANGER = Path(__file__).parents[1] / "stranger"


@pytest.fixture
def net(tmp_path: Path) -> Path:
    return write_net(tmp_path)


@pytest.mark.parametrize(
    ("attribute", "told"),
    [("doubled", "parameters must be float32 (got torch.float64)"), ("frozen", "no parameters that are trained"),
     ("lazy", "has lazy layers"), ("broken", "failed when it was called: TypeError"),
     ("number", "returns int, not a torch.nn.Module"),
     ("computed", "is int, not a function or class")],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_with_the_reason(attribute: str, told: str, net: Path) -> None:
    with pytest.raises(UserError) as error:
        made(net, f"model.name=./nets.py:{attribute}", "model.arguments=null")
    assert told in str(error.value)


def test_dropout_that_a_model_uses_twice_is_replaced_twice(net: Path) -> None:
    model = made(net, "model.name=./nets.py:shared", "model.arguments=null")
    assert not [one for one in model.modules() if isinstance(one, nn.Dropout)] and len(list(dropouts_of(model))) == 2


def test_dropout_that_is_called_twice_in_a_pass_drops_other_elements_and_the_same_in_the_next_pass(net: Path) -> None:
    model = made(net, "model.name=./nets.py:Twice", "model.arguments=null").train()
    passes = []
    for _ in range(2):
        set_dropout_keys(model, torch.arange(3))
        model(torch.zeros(3, 3, 16, 16))
        passes.append(type(model).seen)  # type: ignore[attr-defined]
    (first, second), again = passes
    kept = (first > 0).float().mean().item(), ((first > 0) & (second > 0)).float().mean().item()
    assert kept[0] == pytest.approx(0.5, abs=0.05) and kept[1] == pytest.approx(0.25, abs=0.05)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])


def test_what_a_model_draws_by_other_libraries_when_it_is_made_is_the_same_in_every_process(net: Path) -> None:
    one = made(net, "model.name=./nets.py:Noise", "model.arguments=null").noise
    random.seed(5)
    np.random.seed(5)
    assert torch.equal(one, made(net, "model.name=./nets.py:Noise", "model.arguments=null").noise)  # type: ignore[arg-type]
    assert random.Random(5).random() == random.random(), "and changes nothing for others"


def test_a_model_that_draws_random_numbers_itself_is_told(net: Path, firetrain: Command) -> None:
    words = (
        "launch",
        "mine.yaml",
        "--ranks-per-node",
        "2",
        "--set",
        "target.max_steps=1",
        "--set",
        "model.arguments=null",
    )
    for name, is_told in (("Drawing", True), ("Flipping", True), ("Tokens", True), ("shared", False)):
        done = firetrain(*words, "--results", name, "--set", f"model.name=./nets.py:{name}", limit_s=60)
        assert done.returncode == 0, done.stderr
        (log,) = (net.parent / name).glob("*/attempt-0/logs/rank-0000.log")
        assert (f"{name} draws random numbers in training" in log.read_text()) == is_told
    done = firetrain(*words, "--set", "strategy.name=pipeline", "--set", "model.name=./nets.py:Flipping", limit_s=60)
    assert (
        done.returncode == 2
        and "Flipping draws random numbers in training, other ones on each rank: only" in done.stderr
    )


def test_what_a_model_draws_is_the_same_after_a_restart(net: Path, firetrain: Command) -> None:
    found = []
    for name, first in (("whole", 4), ("resumed", 2)):
        words = (
            "model.name=./nets.py:Drawing", "model.arguments=null", "checkpoint.every_steps=2", f"target.max_steps={first}",
        )  # fmt: skip
        options = [word for one in words for word in ("--set", one)]
        done = firetrain("launch", "mine.yaml", "--ranks-per-node", "1", "--results", name, *options, limit_s=60)
        assert done.returncode == 0, done.stderr
        (run,) = (net.parent / name).iterdir()
        if first < 4:
            done = firetrain("resume", str(run), "--set", "target.max_steps=4", limit_s=60)
            assert done.returncode == 0, done.stderr
        found.append(checkpoint.newest_model(run))
    whole, resumed = found
    assert whole and all(torch.equal(values, resumed[key]) for key, values in whole.items())


def test_a_model_is_tried_without_being_changed() -> None:
    """Neither buffers that are no state, nor state that is no tensor, are other ones afterwards."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.calls = nn.Linear(3 * 64, 4), 0
            self.register_buffer("seen", torch.zeros(1), persistent=False)
            self.register_buffer("moved", torch.ones(1), persistent=False)

        def get_extra_state(self) -> object:
            return {"calls": [self.calls]}

        def set_extra_state(self, state: Any) -> None:
            (self.calls,) = state["calls"]

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.seen += 1
            self.moved = self.moved * 2
            return self.out(images.flatten(1))

    model = Counting()
    refuse_untrainable_output(model, "Counting", classes=4, image_size=8)
    assert (model.calls, model.seen.item(), model.moved.item()) == (0, 0, 1)


def test_settings_that_are_known_to_fail_without_batch_norm_are_told_when_the_model_is_made(
    net: Path, firetrain: Command
) -> None:
    words = (
        "launch",
        "mine.yaml",
        "--ranks-per-node",
        "1",
        "--set",
        "target.max_steps=1",
        "--set",
        "model.arguments=null",
    )
    scaled = (
        "--set",
        "learning_rate.scaling=linear",
        "--set",
        "learning_rate.base_batch=2",
        "--set",
        "learning_rate.base=0.001",
    )
    for name, is_told in (("any", True), ("Normal", False)):
        done = firetrain(*words, *scaled, "--results", name, "--set", f"model.name=./nets.py:{name}", limit_s=60)
        assert done.returncode == 0, done.stderr
        (log,) = (net.parent / name).glob("*/attempt-0/logs/rank-0000.log")
        assert ("linear scaling over 32 times the batch fails on" in log.read_text()) == is_told


def test_layers_with_several_outputs_are_shown_and_what_needs_values_is_refused(net: Path, firetrain: Command) -> None:
    words = ("--classes", "10", "--image-size", "16")
    done = firetrain("model", "show", "./nets.py:Recurrent", *words)
    assert done.returncode == 0 and "LSTM" in done.stdout and "16x8" in done.stdout.replace(" ", ""), done.stdout
    done = firetrain("model", "show", "./nets.py:Branching", *words)
    assert done.returncode == 2 and "needs the values of images" in done.stderr and "nets.py:" in done.stderr, (
        done.stderr
    )


def test_its_layers_are_shown(net: Path, firetrain: Command) -> None:
    words = ("model", "show", "./nets.py:Net", "--classes", "10", "--image-size", "16")
    done = firetrain(*words, "--argument", "width=6")
    assert done.returncode == 0 and " 4,684 " in done.stdout.replace("  ", " "), done.stdout + done.stderr
    for option, value, told in (
        ("--stem", "small", "has no option stem, which only firetrain's models have"),
        ("--argument", "widht=6", "takes no argument widht, did you mean width?"),
        ("--argument", "width", "expected NAME=VALUE"), ("--argument", "width=[1]", "expected NAME=VALUE"),
    ):  # fmt: skip
        done = firetrain(*words, option, value)
        assert done.returncode == 2 and told in done.stderr, done.stderr
    done = firetrain("model", "show", "lenet", "--image-size", "28", "--argument", "width=6")
    assert done.returncode == 2 and "takes no arguments, which only models of your own have" in done.stderr


def test_an_output_that_is_no_class_for_each_image_is_refused_by_the_ranks(net: Path, firetrain: Command) -> None:
    done = firetrain("launch", "mine.yaml", "--set", "model.name=./nets.py:wrong", "--set", "model.arguments=null")
    assert done.returncode == 1 and "must return [images, classes] = [2, 10] for 2 images (got [2, 11])" in done.stderr


@pytest.mark.parametrize(
    ("name", "told"),
    [("Heads", ""), ("Features", "(got [2, 10], [2, 4] in training)"), ("Dictionary", "(got dict in training)")],
)
def test_outputs_in_training_are_scores_of_classes_too(name: str, told: str, net: Path) -> None:
    model = made(net, f"model.name=./nets.py:{name}", "model.arguments=null")
    before = torch.get_rng_state()
    with pytest.raises(UserError, match=re.escape(told)) if told else nullcontext():
        refuse_untrainable_output(model, name, 10, 16)
    assert model.training and torch.equal(before, torch.get_rng_state())


def test_dropout_in_place_changes_its_input_as_torchs_does() -> None:
    """A model may call it without using what it returns."""
    images, keys = torch.ones(3, 50), torch.tensor([5, 6, 7], dtype=torch.int32)
    found = []
    for inplace in (False, True):
        model, given = Dropout(0.9, inplace=inplace), images.clone()
        model.keys = keys
        found.append(model(given))
        assert torch.equal(given, found[-1]) == inplace
    assert torch.equal(*found) and 0 < int((found[0] == 0).sum()) < 150


def test_dropout_of_everything_leaves_nothing() -> None:
    model = Dropout(1.0).train()
    model.keys = torch.zeros(2, dtype=torch.int32)
    assert torch.equal(model(torch.ones(2, 5)), torch.zeros(2, 5))


@pytest.mark.parametrize("name", ["ResNet", "plain"])
def test_losses_are_the_same_on_one_rank_and_on_two(name: str, firetrain: Command, tmp_path: Path) -> None:
    losses = []
    for ranks in (1, 2):
        words = [
            f"model.name={STRANGER / 'nets.py'}:{name}",
            "model.stem=null",
            "reduction.name=ring",
            "target.max_steps=8",
        ]
        words += ["target.max_epochs=1", "target.top1=null", "log.every_steps=1"]
        options = [word for one in words for word in ("--set", one)]
        done = firetrain(
            "launch", "quickstart", "--ranks-per-node", str(ranks), "--results", str(ranks), *options, limit_s=120
        )
        assert done.returncode == 0, done.stderr
        (lines,) = (tmp_path / str(ranks)).glob("*/metrics.jsonl")
        rows = [json.loads(line) for line in lines.read_text().splitlines()]
        losses.append([row["loss"] for row in rows if row["kind"] == "step"])
        assert (lines.parent / "nets.py").read_text() == (STRANGER / "nets.py").read_text()
    # batch norm sees each rank's own images, and torch.nn.Dropout is the same on both
    assert len(losses[0]) == 8 and losses[0] == pytest.approx(losses[1], rel=0.2 if name == "ResNet" else 1e-4)


def test_a_model_that_cannot_be_placed_is_refused_with_the_strategy_that_trains_it(
    firetrain: Command, tmp_path: Path
) -> None:
    words = ("model.stem=null", f"model.name={STRANGER / 'nets.py'}:ResNet", "strategy.name=tensor-parallel")
    options = [word for one in words for word in ("--set", one)]
    done = firetrain("launch", "quickstart", "--ranks-per-node", "2", *options)
    told = "strategy tensor-parallel does not suit the model, which data-parallel trains: add (<built-in function add>) has 2"
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not (tmp_path / "results").exists()
