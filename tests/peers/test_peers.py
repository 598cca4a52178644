"""The models, data and training loops of other people's packages, where these are installed (`make peers`)."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Command

HERE = Path(__file__).parent
SHORT = ("batch.global_size=16", "target.max_steps=3", "target.top1=null", "data.image_size=32", "reduction.name=ring",
         "data.augmentation=none", "learning_rate.base=0.001")  # fmt: skip


def need_packages(*names: str) -> None:
    """Skip a test unless these are installed; the test command does not install them, because they are large."""
    if missing := [name for name in names if find_spec(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed: make peers")


def losses(firetrain: Command, tmp_path: Path, *overrides: str, ranks: int = 1) -> list[float]:
    """The losses of a short training of SqueezeNet's config with these overrides."""
    every = (*SHORT, f"cluster.ranks_per_node={ranks}", "log.every_steps=1", *overrides)
    out = tmp_path / f"runs-{len(list(tmp_path.iterdir()))}"
    words = [word for one in every for word in ("--set", one)]
    done = firetrain("launch", "squeezenet-digits", *words, "--results", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    (metrics,) = out.glob("*/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [one["loss"] for one in records if one["kind"] == "step"]


@pytest.mark.parametrize(
    ("model", "strategy"),
    [("squeezenet1_1", "data-parallel"), ("squeezenet1_1", "pipeline"), ("alexnet", "one-weird-trick")],
)
def test_torchvision_s_models_have_the_same_losses_on_one_rank_on_two_and_under_strategies(
    model: str, strategy: str, firetrain: Command, tmp_path: Path
) -> None:
    need_packages("torchvision")
    own = (
        f"model.name=torchvision.models:{model}", f"data.name={HERE}/images.py:hugging_faces", "model.stem=null",
        "data.image_size=64",
    )  # fmt: skip
    alone = losses(firetrain, tmp_path, *own)
    assert len(alone) == 3
    assert losses(firetrain, tmp_path, *own, f"strategy.name={strategy}", ranks=2) == pytest.approx(alone, rel=1e-4)


def test_timm_s_resnet_learns_a_dataset_of_hugging_face(firetrain: Command, tmp_path: Path) -> None:
    need_packages("torchvision", "timm", "datasets")
    own = (
        "model.name=timm:create_model", "model.arguments.model_name=resnet10t", "model.stem=null",
        f"data.name={HERE}/images.py:hugging_faces", "target.max_steps=16", "learning_rate.base=0.05",
        "learning_rate.warmup_epochs=0",
    )  # fmt: skip
    found = losses(firetrain, tmp_path, *own, ranks=2)
    assert sum(found[-4:]) < 0.5 * sum(found[:4])


def test_torchvision_s_fake_data_is_trained(firetrain: Command, tmp_path: Path) -> None:
    """Only trained: it draws its images from torch's global generator, which the threads of a process share."""
    need_packages("torchvision")
    assert len(losses(firetrain, tmp_path, f"data.name={HERE}/images.py:torchvisions", ranks=2)) == 3


@pytest.mark.parametrize(
    ("package", "script"),
    [("accelerate", "accelerated.py"), ("lightning", "lightened.py")],
)
def test_a_loop_of_accelerate_or_lightning_has_the_same_weights_with_the_hook(
    package: str, script: str, firetrain: Command, tmp_path: Path
) -> None:
    need_packages(package)
    weights: list[dict[str, Any]] = []
    for reduction in ("none", "ring"):
        out = tmp_path / f"{reduction}.pt"
        command = (sys.executable, str(HERE / script), reduction, str(out))
        done = firetrain("launch", "--ranks-per-node", "2", "--", *command)
        assert done.returncode == 0, done.stdout + done.stderr
        weights.append(torch.load(out, weights_only=True))
    first, second = weights
    for name, value in first.items():
        assert torch.allclose(value, second[name], rtol=0, atol=1e-6), name
