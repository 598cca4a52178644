"""A run is compressed to one file, which a fresh process evaluates to the same bits, and from which a run can start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command

from firetrain.compress.pipeline import state_of
from firetrain.compression.file import read
from firetrain.config.compression import load_recipe, shipped_recipes
from firetrain.errors import UserError
from firetrain.models.catalogue import MODELS
from firetrain.records import Run

LENET = (
    "--set", "model.name=lenet", "--set", "data.image_size=28", "--ranks-per-node", "2", "--set", "target.top1=null", "--set",
    "learning_rate.warmup_epochs=0", "--set", "checkpoint.every_epochs=1",
)  # fmt: skip
RECIPE = """\
name: small
layers:
  conv*: {density: 0.5, bits: 6}
  fc1: {density: 0.1}
bits: 5
gap_bits: 4
rounds: 2
retrain: [target.max_epochs=2, learning_rate.base=0.005]
finetune: [target.max_epochs=1, learning_rate.base=0.0002]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """LeNet after four epochs on digits."""
    folder = tmp_path_factory.mktemp("trained")
    command = [sys.executable, "-m", "firetrain", "launch", "squeezenet-digits", *LENET, "--set", "target.max_epochs=4"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return Run(next(folder.glob("results/*")))


def evaluated(firetrain: Command, what: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(firetrain("evaluate", str(what), "--json").stdout)
    return found


def test_a_run_becomes_a_file_that_a_fresh_process_evaluates_and_goes_on_from(
    trained: Run, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    command = ("compress", str(trained.path), "--recipe", "./small.yaml", "--out", "small.fire")
    done = firetrain(*command)
    assert done.returncode == 0, done.stderr + done.stdout
    path = tmp_path / "small.fire"
    model, dense = read(path), 4 * sum(array.size for array in state_of(trained).values())
    assert path.stat().st_size == sum(model.sizes.values()) < dense / 15
    assert f"{dense / path.stat().st_size:.1f} times smaller" in done.stdout
    state = model.state()
    for layer, density, values in (("conv1", 0.5, 64), ("conv2", 0.5, 64), ("fc1", 0.1, 32), ("fc2", 1.0, 32)):
        weights = state[f"{layer}.weight"]
        assert np.count_nonzero(weights) / weights.size == pytest.approx(density, abs=0.01)
        assert len(np.unique(weights)) <= values, layer
    # what training has left is in the file, bit for bit
    last = Run(next((tmp_path / "small.fire.stages" / "share").glob("*/run.json")).parent)
    assert all((state[name] == array).all() for name, array in state_of(last).items())
    before, after = evaluated(firetrain, trained.path), evaluated(firetrain, path)
    assert after["top1"] == last.summary()["top1"] and after["images"] == 360
    assert after["top1"] > before["top1"] - 0.05 and before["top1"] == trained.summary()["top1"]
    # repeated, it trains nothing again
    content = path.read_bytes()
    path.unlink()
    assert "epoch" not in firetrain(*command).stdout and path.read_bytes() == content

    shown = firetrain("compress", "show", "small.fire", "--svg", "bytes.svg")
    assert "fc1.weight" in shown.stdout and f"{path.stat().st_size:,}" in shown.stdout
    assert (tmp_path / "bytes.svg").read_text().startswith("<?xml")
    parts = json.loads(firetrain("compress", "show", "small.fire", "--json").stdout)
    by_tensor = sum(sum(one["bytes"].values()) for one in parts["tensors"])
    assert by_tensor + parts["sizes"]["header"] == pytest.approx(path.stat().st_size, abs=3)

    assert firetrain("compress", "open", "small.fire", "--out", "weights.pt").returncode == 0
    opened = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert all((opened[name].numpy() == array).all() for name, array in state.items())
    for weights in ("small.fire", "weights.pt"):
        begun = firetrain(
            "launch", "squeezenet-digits", *LENET, "--set", f"model.weights={weights}", "--set", "model.keep=zeros", "--set",
            "target.max_steps=3", "--set", "learning_rate.base=0.0001", "--results", f"from-{weights}",
        )  # fmt: skip
        assert begun.returncode == 0, begun.stderr
        run = Run(next((tmp_path / f"from-{weights}").glob("*")))
        assert ((state_of(run)["fc1.weight"] == 0) == (state["fc1.weight"] == 0)).all()
        assert run.summary()["top1"] > 0.5


@pytest.mark.parametrize(("method", "ratio"), [("quantise", 5), ("prune", 1.5), ("svd", 2)])
def test_every_method_alone_makes_a_smaller_file(
    method: str, ratio: float, trained: Run, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "plain.yaml").write_text("name: plain\nlayers: {fc1: {density: 0.2, rank: 0.2}}\nbits: 5\n")
    done = firetrain(
        "compress", str(trained.path), "--method", method, "--recipe", "./plain.yaml", "--out", "m.fire", "--json"
    )
    assert done.returncode == 0, done.stderr
    dense = 4 * sum(array.size for array in state_of(trained).values())
    assert json.loads(done.stdout)["bytes"] == (tmp_path / "m.fire").stat().st_size < dense / ratio
    state, before = read(tmp_path / "m.fire").state(), state_of(trained)["fc1.weight"]
    if method == "svd":
        rank = np.linalg.matrix_rank(state["fc1.weight"], tol=1e-4)
        assert rank == round(0.2 * 500 * 800 / 1300)
    if method == "prune":
        kept = state["fc1.weight"] != 0
        assert kept.mean() == pytest.approx(0.2, abs=1e-3) and (state["fc1.weight"][kept] == before[kept]).all()


@pytest.mark.parametrize("strategy", ["one-weird-trick", "pipeline:stages=2", "parameter-server:policy=sync"])
def test_zeros_stay_zero_under_every_strategy(strategy: str, trained: Run, firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text("name: plain\nlayers: {fc1: {density: 0.2}, conv2: {density: 0.4}}\n")
    compressed = ("compress", str(trained.path), "--method", "prune", "--recipe", "./plain.yaml", "--out", "m.fire")
    assert firetrain(*compressed).returncode == 0
    begun = firetrain(
        "launch", "squeezenet-digits", *LENET, "--set", "model.weights=m.fire", "--set", "model.keep=zeros", "--set",
        "target.max_steps=4", "--set", f"strategy.name={strategy}", "--results", "r",
    )  # fmt: skip
    assert begun.returncode == 0, begun.stderr
    before, after = read(tmp_path / "m.fire").state(), state_of(Run(next((tmp_path / "r").glob("*"))))
    for name in ("fc1.weight", "conv2.weight"):
        assert ((after[name] == 0) == (before[name] == 0)).all() and (after[name] != before[name]).any()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("compress", "nowhere", "--out", "m.fire"), "nowhere"),
        (("compress", "RUN", "--recipe", "lenet5", "--out", "m.fire"), "unknown recipe 'lenet5', did you mean lenet-5?"),
        (("compress", "RUN", "--method", "svd", "--bits", "5", "--out", "m.fire"), "--bits: only with a method that"),
        (("compress", "RUN", "--method", "prune", "--bits", "5", "--out", "m.fire"), "--bits: only with a method that shares"),
        (("compress", "RUN", "--set", "seed=3", "--out", "m.fire"), "--set: only with a recipe that trains"),
        (("compress", "RUN", "--method", "svd", "--recipe", "lenet-5", "--set", "seed=3", "--out", "m.fire"),
         "--set: only with a recipe that trains"),
        (("compress", "show", "none.fire"), "none.fire"), (("evaluate", "none.fire"), "none.fire"),
        (("launch", "quickstart", "--set", "model.keep=zeros"), "keep has no effect here (only with weights)"),
        (("launch", "quickstart", "--set", "model.weights=none.fire"), "none.fire: cannot be read"),
        (("launch", "quickstart", "--set", "model.weights=m.pt", "--set", "model.keep=values", "--set",
          "strategy.name=one-weird-trick"), "keep: values needs whole layers on every rank"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_words(words: tuple[str, ...], told: str, trained: Run, firetrain: Command) -> None:
    done = firetrain(*(str(trained.path) if word == "RUN" else word for word in words))
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_shipped_recipes_name_layers_that_their_models_have() -> None:
    models = {"lenet-300-100": "lenet_300_100", "lenet-5": "lenet", "alexnet": "alexnet", "svd-alexnet": "alexnet"}
    assert set(shipped_recipes()) == {*models, "squeezenet-8bit", "squeezenet-6bit"}
    for name in shipped_recipes():
        recipe, model = load_recipe(name, {}), MODELS[models.get(name, "squeezenet1_0")]()
        layers = {layer for layer, module in model.named_modules() if hasattr(module, "weight")}
        assert recipe.provenance is not None
        for pattern in recipe.layers:
            assert any(recipe.of(layer) is recipe.layers[pattern] for layer in layers), (name, pattern)
    with pytest.raises(UserError, match="give either density or threshold"):
        load_recipe("lenet-5", {"layers": {"fc1": {"density": 0.5, "threshold": 1.0}}})
