"""The search command: tables, explanations, a placement file that trains, and mistakes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from command import Command

from firetrain.cluster import World
from firetrain.config import load_config
from firetrain.config.label import model_label
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.records.profile import Profile
from firetrain.strategy import find_strategy
from firetrain.strategy.file import bucket_bytes_of

LENET = ("squeezenet-digits", "--set", "model.name=lenet", "--set", "data.image_size=28")


def test_what_is_written_is_what_was_found_and_trains(firetrain: Command, tmp_path: Path) -> None:
    among_grids = (
        "search",
        *LENET,
        "--ranks",
        "2",
        "--memory-gib",
        "8",
        "--margin",
        "0",
    )  # memory leaves out pipelines
    done = firetrain(*among_grids, "--explain", "--out", "my placement.yaml")
    assert done.returncode == 0, done.stderr
    assert "UNCALIBRATED" in done.stdout and "2 ranks on 1 node" in done.stdout and "proven" in done.stdout
    assert "conv1" in done.stdout and "summed MB" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("written to")]
    options = shlex.split(line.partition("firetrain launch ")[2])
    layers = trace(model_by_name("lenet", classes=10, stem="small"), 28).layers
    placement = find_strategy(str(tmp_path / "my placement.yaml"))(layers, World.even(1, 2))
    found = json.loads(firetrain(*among_grids, "--json").stdout)
    assert {layer["name"]: layer["grid"]["outputs"] for layer in found[0]["layers"]} == {
        name: split.outputs for name, split in placement.splits.items()
    }
    same = [
        "model.name=lenet",
        "data.image_size=28",
        f"strategy.name={tmp_path / 'my placement.yaml'}",
        "cluster.nodes=1",
    ]
    free = load_config("squeezenet-digits", [*same, "cluster.ranks_per_node=2", "reduction.bucket_mib=null"]).config
    assert bucket_bytes_of(free, World.even(1, 2)) == 2 << 20, "the size that was searched"
    few = ("--set", "target.max_steps=2", "--set", "target.top1=null")
    trained = firetrain("launch", *options, *few)
    assert trained.returncode == 0, trained.stderr
    for other, told in (
        ("batch.global_size=16", "a batch of 32 images, not 16"), ("model.name=squeezenet_mini", "the model lenet+small@28"),
        ("cluster.ranks_per_node=1", "2 ranks on 1 node, not 1 rank"), ("reduction.name=ring", "reduction.name tree, not ring"),
        ("reduction.bucket_mib=1", "reduction.bucket_mib 2, not 1"),
        ("reduction.wire_dtype=bfloat16", "reduction.wire_dtype float32, not bfloat16"),
        ("data.image_size=32", "the model lenet+small@28, not lenet+small@32"),
    ):  # fmt: skip
        kept = [
            option for option in options if not other.startswith("cluster") or option not in ("--ranks-per-node", "2")
        ]
        refused = firetrain("launch", *kept, "--set", other)
        assert refused.returncode == 2 and told in refused.stderr, refused.stderr
        assert "was searched for" in refused.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--set", "reduction.bucket_mib=0.3", "--set", "strategy.name=pipeline", "--set", "strategy.parameters.stages=2"),
        ("--set", "reduction.bucket_mib=1e-7"),
    ],
)  # fmt: skip
def test_the_printed_command_trains_also_with_odd_buckets_and_where_another_strategy_was_set(
    options: tuple[str, ...], firetrain: Command
) -> None:
    done = firetrain("search", *LENET, "--ranks", "2", *options, "--out", "found.yaml")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("written to")]
    few = ("--set", "target.max_steps=1", "--set", "target.top1=null")
    trained = firetrain("launch", *shlex.split(line.partition("firetrain launch ")[2]), *few)
    assert trained.returncode == 0, trained.stderr


TWO_READERS = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(torch.cat([self.a(x), self.b(x)], 1).mean((2, 3)))
"""


def test_a_model_whose_images_two_layers_read_is_refused_before_anything_is_started(
    firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "nets.py").write_text(TWO_READERS)
    own = ("squeezenet-digits", "--set", "model.name=./nets.py:Net", "--set", "model.stem=null")
    config = load_config("squeezenet-digits", [f"model.name={tmp_path}/nets.py:Net", "model.stem=null"]).config
    assumed = Profile.find("uncalibrated")
    step = assumed.steps[0].model_copy(update={"model": model_label(config.model, config.data)})
    assumed.model_copy(update={"steps": (step,)}).save(tmp_path / "mine.json")
    auto = ("--set", "strategy.name=auto:profile=mine.json", "--ranks-per-node", "2")
    for words in (("search", *own, "--ranks", "2", "--profile", "mine.json"), ("launch", *own, *auto)):
        done = firetrain(*words)
        told = "a, b read the images: only one layer can; use data-parallel"
        assert done.returncode == 2 and told in done.stderr, done.stdout + done.stderr
    assert not (tmp_path / "results").exists()


def test_numbers_of_ranks_are_compared_and_one_rank_is_an_answer(firetrain: Command) -> None:
    done = firetrain("search", "squeezenet-digits", "--ranks", "2,4", "--ranks-per-node", "2", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["ranks"], row["nodes"]) for row in rows] == [(2, 1), (4, 2)]
    for row in rows:
        assert row["proven"] and row["bound_s"] == row["step_s"] <= min(row["known_s"].values())
    told = firetrain("search", *LENET, "--ranks", "8", "--ranks-per-node", "4")
    assert "one rank alone is as fast; use one" in told.stdout, told.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--ranks", "1"], "1 rank: placements are searched for 2 to 128 ranks"),
        (["--ranks", "256"], "256 ranks: placements are searched for 2 to 128 ranks"),
        (["--ranks", "2,4", "--out", "a.yaml"], "--out writes a file for one number of ranks"),
        (["--ranks", "64"], "64 ranks: more ranks than images in the batch (32)"),
        (["--memory-gib", "0.0001"], "fits into 107,374 bytes for each rank"),
        (["--profile", "titan-k20"], "the profile has no steps of squeezenet1_1+small@16"),
        (["--set", "batch.per_rank_max=7"], "searches do not support: set batch.per_rank_max to null (is 7)"),
        (["--what-if", "oversubscription=4"], "exchanges of activations are not priced on oversubscribed switches"),
        (["--what-if", "bandwidth=0"], "expected a number above 0"),
        (["--json", "--explain"], "--explain: not with --json"),
        (["--set", "reduction.name=auto"], "unknown formula for the reduction 'auto'"),
        (["--set", "compile=true", "--out", "found.yaml"], "placements do not support compile: true"),
        (
            ["--set", "batch.per_rank=8", "--ranks", "2", "--out", "found.yaml"],
            "8 x 2 = 16, but batch.global_size is 32",
        ),
    ],
)
def test_mistakes_are_told_in_words(options: list[str], told: str, firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("search", "squeezenet-digits", *options)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())


def test_what_a_config_cannot_train_with_placements_is_told(firetrain: Command) -> None:
    words = ("search", "squeezenet-digits", "--ranks", "2", "--set", "compile=true")
    assert "note: training with a placement file would be refused" in firetrain(*words).stdout
    for given, refused in ((words, [True]), (words[:4], [False])):
        assert [bool(one["placements_refused"]) for one in json.loads(firetrain(*given, "--json").stdout)] == refused
    several = ("search", *LENET, "--ranks", "2,4", "--set", "batch.per_rank=8", "--json")
    assert [bool(one["placements_refused"]) for one in json.loads(firetrain(*several).stdout)] == [True, False]
    automatic = ("--set", "strategy.name=auto", "--set", "strategy.parameters.profile=uncalibrated")
    done = firetrain("search", *LENET, "--ranks", "2", *automatic, "--out", "found.yaml")
    assert done.returncode == 0 and "would be refused" not in done.stdout, done.stderr


def test_a_slower_network_takes_longer(firetrain: Command) -> None:
    words = ("search", "squeezenet-digits", "--ranks", "4", "--ranks-per-node", "1", "--json")
    as_it_is, slower = (json.loads(firetrain(*words, *more).stdout) for more in ((), ("--what-if", "bandwidth=x0.1")))
    assert slower[0]["known_s"]["data-parallel"] > 2 * as_it_is[0]["known_s"]["data-parallel"]


def test_two_placements_are_compared_and_what_cannot_be_is_refused_before_anything_is_printed(
    firetrain: Command,
) -> None:
    compared = ("search", *LENET, "--ranks", "2", "--compare")
    done = firetrain(*compared, "one-weird-trick", "data-parallel")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fc1")]
    assert "1 x 2 in place of 2 x 1" in line and "gradients to sum -" in line
    Path("pieces.yaml").write_text("ranks: 2\nmicro_batches: 4\ndefault: {images: 2}\n")
    refused = firetrain(*compared, "pieces.yaml", "data-parallel")
    assert refused.returncode == 2 and "pieces.yaml cuts batches: its time is predicted by" in refused.stderr
    same = firetrain(*compared, "data-parallel", "data-parallel")
    assert "they divide all layers alike" in same.stdout
    refused = firetrain(*compared, "pipeline:stages=2", "data-parallel")
    assert refused.returncode == 2 and not refused.stdout and "firetrain predict --strategies" in refused.stderr
    assert firetrain(*compared, "data-parallel", "data-parallel", "--json").returncode == 2


def test_the_timeline_is_drawn_for_one_number_of_ranks(firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("search", *LENET, "--ranks", "2", "--explain", "--svg", "step.svg")
    assert done.returncode == 0, done.stderr
    assert "ranks on 1 node" in (tmp_path / "step.svg").read_text()
    assert "s, S: buckets" in done.stdout or "micro-batches" in done.stdout
    assert firetrain("search", *LENET, "--ranks", "2,4", "--svg", "step.svg").returncode == 2
