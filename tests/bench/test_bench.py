"""Benchmarks verify their results and compare with a reference implementation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from needs import HOROVOD, need
from PIL import Image

from firetrain.bench import input as bench_input
from firetrain.errors import FiretrainError, UserError

REFERENCES = {"ddp": "DistributedDataParallel", "horovod": "horovod.DistributedOptimizer"}


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_step_is_timed_beside_a_peer_with_the_same_gradients(reference: str, firetrain: Callable[..., Any]) -> None:
    need(None if reference == "ddp" or HOROVOD else "Horovod is not installed (make horovod)")
    options = ("--ranks", "2", "--steps", "2", "--repeats", "2", "--reductions", "native,ring", "--against", reference)
    options += () if reference == "ddp" else ("--set", "channels_last=false")
    options += ("--profile", "uncalibrated")
    done = firetrain("bench", "step", "squeezenet-digits", *options, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["step_s"]) == {"firetrain native", "firetrain ring", REFERENCES[reference]}
    predicted = result["predicted_s"]["firetrain ring"]
    measured = result["step_s"]["firetrain ring"]["median"]
    assert predicted["value"] / measured - 1 == pytest.approx(predicted["error"]) and predicted["value"] > 0
    assert result["gradient_difference"] < 1e-4 and result["ratio"]["firetrain native"]["count"] == 2
    assert result["ratio"]["firetrain native"]["median"] > 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--reductions", "ring,ring"], "one is listed twice"),
        (["--reductions", "rign"], "did you mean ring?"),
        (
            ["--set", "strategy.name=pipeline"],
            "bench step times data-parallel training, and strategy.name is pipeline: use",
        ),
        (["--profile", "titan-k20"], "has no steps of squeezenet1_1+small@16"),
        (["--profile", "uncalibrated", "--reductions", "auto"], "unknown formula for the reduction 'auto'"),
    ],
)
def test_what_cannot_be_timed_or_predicted_is_told_before_anything_is_measured(
    options: list[str], told: str, firetrain: Callable[..., Any]
) -> None:
    done = firetrain("bench", "step", "squeezenet-digits", "--repeats", "100000", *options)
    assert done.returncode == 2 and told in done.stderr and not done.stdout, done.stderr


def test_a_profile_of_another_strategy_is_refused(firetrain: Callable[..., Any], tmp_path: Path) -> None:
    done = firetrain("bench", "profile", "squeezenet-digits", "--set", "strategy.name=branch-parallel")
    assert done.returncode == 2 and "bench profile times data-parallel training" in done.stderr
    assert not list(tmp_path.iterdir())


def photographs(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for number in range(3):
        soft = Image.fromarray(draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)).resize((150, 100))
        soft.save(folder / f"{number}.jpg", quality=90)


def test_input_is_timed_beside_pillow_with_the_same_pixels(firetrain: Callable[..., Any], tmp_path: Path) -> None:
    photographs(tmp_path)
    done = firetrain("bench", "input", ".", "--size", "32", "--repeats", "2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["images"] == 3 and result["mean_difference_grey_levels"] < 0.5
    assert set(result["images_per_s"]) == {"firetrain", "Pillow"}


def test_a_pipeline_with_other_pixels_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photographs(tmp_path)
    monkeypatch.setattr(bench_input, "_ours", lambda data, draw, out: out.copy_(torch.zeros_like(out)))
    with pytest.raises(FiretrainError, match="pixels differ by .* not timed"):
        bench_input.bench_input(tmp_path, 32, 3, 2)


def test_a_folder_without_images_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no images in it or below it"):
        bench_input.bench_input(tmp_path, 32, 3, 2)


def test_a_profile_is_printed_as_it_is_written(firetrain: Callable[..., Any], tmp_path: Path) -> None:
    options = ("--set", "batch.global_size=8", "--batches", "2,4", "--steps", "3", "--repeats", "3", "--ranks", "1")
    done = firetrain("bench", "profile", "squeezenet-mini-digits", *options, "--save", "profile.json", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "profile.json").read_text())
    assert [step["batch_per_rank"] for step in json.loads(done.stdout)["steps"]] == [2, 4]
