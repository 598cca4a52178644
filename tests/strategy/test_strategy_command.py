"""The commands about strategies: what they print, for people and for scripts, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Command

LENET = ("--model", "lenet", "--image-size", "28")
SHIPPED = ("branch-parallel", "data-parallel", "grid", "one-weird-trick", "pipeline", "tensor-parallel")


def test_all_shipped_strategies_are_listed_with_their_first_sentence(firetrain: Command) -> None:
    shown, for_scripts = firetrain("strategy", "list"), firetrain("strategy", "list", "--json")
    assert shown.returncode == for_scripts.returncode == 0, shown.stderr + for_scripts.stderr
    listed = json.loads(for_scripts.stdout)
    assert tuple(listed) == SHIPPED
    for name, function in listed.items():
        assert (
            function == f"firetrain.strategy.{name.replace('-', '_')}:{name.replace('-', '_')}" and name in shown.stdout
        )


def test_a_check_counts_the_worlds_that_a_strategy_suits(firetrain: Command) -> None:
    names = ("one-weird-trick", "grid:images=2,outputs=2", "pipeline:stages=9")
    done = firetrain("strategy", "check", *names, *LENET, "--ranks", "6")
    assert done.returncode == 0, done.stderr
    trick, grid, pipeline = done.stdout.splitlines()
    # 6 worlds on one node, and 3 on two nodes
    assert trick == "one-weird-trick: correct on 9 worlds of 1 to 6 ranks"
    assert grid == "grid:images=2,outputs=2: correct on 2 worlds of 1 to 6 ranks (7 others do not suit it)"
    assert pipeline.startswith("pipeline:stages=9: suits no world of 1 to 6 ranks: pipeline: ")
    for_scripts = firetrain("strategy", "check", *names, *LENET, "--ranks", "6", "--json")
    found = json.loads(for_scripts.stdout)
    assert [(row["worlds"], row["refused"], row["faults"]) for row in found.values()] == [
        (9, 0, []),
        (2, 7, []),
        (0, 9, []),
    ]


def test_a_check_without_names_includes_splits_of_both_kinds_and_replicas(firetrain: Command) -> None:
    done = firetrain("strategy", "check", *LENET, "--ranks", "4", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {*SHIPPED, "grid:images=2", "tensor-parallel:split=inputs", "one-weird-trick:replicas=2"} < found.keys()
    assert found["grid:images=2"]["worlds"] == 4  # of 2 and of 4 ranks, on one and on two nodes


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("ranks: 2\ndefault: {outputs: 2}\n", "loss needs all channels of an image in one place"),
        ("ranks: 2\nlayers:\n  conv1: {images: 2}\n", "conv2, fc1, fc2, loss: not placed"),
        ("ranks: 2\ndefault: {ranks: [0]}\n", "rank 1 would have no weights"),
        (
            "ranks: 2\nschedule: 1f1b\nmicro_batches: 2\ndefault: {images: 2}\n",
            "mine.yaml:2:1: schedule: 1f1b orders the passes of several stages, and these layers are one",
        ),
    ],
)
@pytest.mark.parametrize("command", ["show", "check"])
def test_a_file_that_launch_would_refuse_is_refused(
    command: str, content: str, told: str, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    done = firetrain("strategy", command, "mine.yaml", *LENET, "--ranks", "2")
    assert done.returncode == 2 and told in done.stderr, done.stdout + done.stderr


def test_what_a_placement_sends_is_told_for_scripts(firetrain: Command) -> None:
    options = (*LENET, "--ranks", "4", "--nodes", "2", "--batch", "10", "--json")
    done = firetrain("strategy", "show", "one-weird-trick", *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ranks"] == 4 == len(found["sent_bytes"]) and found["splits"]["fc1"]["outputs"] == 4
    assert sum(found["sent_bytes"]) == sum(found["sent_bytes_by_layer"].values()) > 0
    (convolutions,) = found["reduced_bytes"]
    assert convolutions["ranks"] == [0, 1, 2, 3] and convolutions["bytes"] > 0


def test_a_model_of_the_users_own_is_placed_with_its_arguments(firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def perceptron(classes, width): return nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.Linear(width, classes))\n"
    )
    of_it = ("--model", f"{tmp_path / 'nets.py'}:perceptron", "--image-size", "8", "--classes", "10")
    done = firetrain("strategy", "check", "tensor-parallel", *of_it, "--argument", "width=6", "--ranks", "4")
    assert done.returncode == 0 and "correct on" in done.stdout, done.stderr
    shown = firetrain("strategy", "show", "tensor-parallel", *of_it, "--argument", "width=6", "--ranks", "2")
    assert shown.returncode == 0 and "of 1,228" in shown.stdout, shown.stderr
    wrong = firetrain("strategy", "show", "tensor-parallel", *of_it, "--argument", "width", "--ranks", "2")
    assert wrong.returncode == 2 and "--argument width: expected NAME=VALUE" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("show", "one-weird-tric", *LENET), "unknown strategy 'one-weird-tric', did you mean one-weird-trick?"),
        (("show", "pipeline:stage=2", *LENET), "pipeline: unknown parameter 'stage', did you mean stages?"),
        (("show", "pipeline:stages=two", *LENET), "pipeline: stages is 'two', expected int"),
        (("show", "grid:images=2", *LENET, "--ranks", "3"), "images x outputs must be the number of ranks"),
        (
            ("show", "pipeline:micro_batches=9", *LENET, "--ranks", "2", "--batch", "8"),
            "a batch of 8 images cannot be cut into 9 micro-batches",
        ),
        (("show", "data-parallel", "--model", "lenett"), "unknown model 'lenett', did you mean lenet?"),
        (
            ("show", "data-parallel", *LENET, "--ranks", "2", "--nodes", "3"),
            "every node needs a rank (ranks: 2, nodes: 3)",
        ),
        (("show", "./mine.yaml", *LENET), "mine.yaml"),
        (("check", "one-weird-trick:outside=true", *LENET), "one-weird-trick: unknown parameter 'outside'"),
    ],
)
def test_mistakes_are_told_in_words(arguments: tuple[str, ...], told: str, firetrain: Command) -> None:
    done = firetrain("strategy", *arguments)
    assert done.returncode == 2 and told in done.stderr and not done.stdout, done.stderr
    assert "Traceback" not in done.stderr
