"""The gradient noise scale is correct for gradients whose noise is known."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command

from firetrain.parallel.noise import NoiseScale, estimate
from firetrain.records import Run


@pytest.mark.parametrize("scale", [10.0, 1000.0])
def test_it_is_the_trace_of_the_noise_over_the_squared_gradient(scale: float) -> None:
    """Per-image gradients G + noise in 50 dimensions, tr(S) / |G|^2 = scale; batches of 4 x 16."""
    draw, size, small, ranks = np.random.default_rng(1), 50, 16, 4
    gradient = np.ones(size) / math.sqrt(size)
    sums = []
    for _ in range(4000):
        parts = gradient + draw.normal(size=(ranks, size)) * math.sqrt(scale / size / small)
        sums.append(((parts**2).sum(1).mean(), (parts.mean(0) ** 2).sum()))
    found, signal, noise = estimate(*np.mean(sums, axis=0), small, ranks * small)
    assert signal == pytest.approx(1.0, rel=0.25) and noise == pytest.approx(scale, rel=0.05)
    assert found == pytest.approx(scale, rel=0.25)


def test_steps_whose_batch_cannot_be_divided_evenly_are_left_out() -> None:
    scale = NoiseScale(ranks=2)
    for images in (5.0, 8.0, torch.tensor(6.0, dtype=torch.float64), torch.tensor(8.0, dtype=torch.float64), 0.0):
        scale.add(torch.tensor(32.0, dtype=torch.float64), [torch.tensor([3.0])], images)
    assert scale.take().tolist() == [4.0, 18.0, 2.0], "two steps of 8 images: 32 / 4^2 and 3^2 each"
    assert scale.take().tolist() == [0.0, 0.0, 0.0]


def test_one_batch_size_says_nothing() -> None:
    assert all(map(math.isnan, estimate(1.0, 1.0, 8, 8)))


def test_a_run_tells_it_for_each_epoch_and_trains_alike(tmp_path: Path, firetrain: Command) -> None:
    options = (
        "--ranks-per-node",
        "2",
        "--set",
        "target.max_epochs=2",
        "--set",
        "batch.global_size=64",
        "--set",
        "target.top1=null",
    )
    for extra in ((), ("--set", "log.noise_scale=true")):
        assert firetrain("launch", "squeezenet-mini-digits", *options, *extra).returncode == 0
    runs = [Run(path) for path in (tmp_path / "results").iterdir()]
    plain, measured = sorted(runs, key=lambda run: run.config().log.noise_scale)
    rows = measured.metrics("noise")
    assert [row["epoch"] for row in rows] == [0, 1] and all(row["noise_scale"] > 0 for row in rows)
    assert not plain.metrics("noise")
    assert [row["loss"] for row in plain.metrics("step")] == [row["loss"] for row in measured.metrics("step")]
    alone = firetrain("train", "squeezenet-mini-digits", "--measure-noise-scale")
    assert alone.returncode == 2 and "it needs 2 or more" in alone.stderr
