"""A run is compressed to one file, which a fresh process evaluates to the same bits, and from which a run can start."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command, run_command

from firetrain.coding.file import read
from firetrain.compression.pipeline import weights_of
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
    done = run_command(("launch", "squeezenet-digits", *LENET, "--set", "target.max_epochs=4"), folder, 240)
    assert done.returncode == 0, done.stderr
    return Run(next(folder.glob("results/*")))


def evaluated(firetrain: Command, what: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(firetrain("evaluate", str(what), "--json").stdout)
    return found


@pytest.fixture(scope="module")
def compressed(trained: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet pruned in two rounds, with shared values, trained under a strategy after each; beside its recipe."""
    folder = tmp_path_factory.mktemp("compressed")
    (folder / "small.yaml").write_text(RECIPE)
    assert "times smaller" in compress(trained, folder)
    return folder / "small.fire"


def compress(trained: Run, folder: Path) -> str:
    """What the command prints."""
    words = ("--recipe", "./small.yaml", "--out", "small.fire", "--set", "strategy.name=one-weird-trick")
    done = run_command(("compress", str(trained.path), *words), folder, 240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_has_what_its_recipe_says_and_what_training_has_left(compressed: Path, trained: Run) -> None:
    model, dense = read(compressed), 4 * sum(array.size for array in weights_of(trained).values())
    assert compressed.stat().st_size == sum(model.sizes.values()) < dense / 15
    state = model.state()
    for layer, density, values in (("conv1", 0.5, 64), ("conv2", 0.5, 64), ("fc1", 0.1, 32), ("fc2", 1.0, 32)):
        weights = state[f"{layer}.weight"]
        assert np.count_nonzero(weights) / weights.size == pytest.approx(density, abs=0.01)
        assert len(np.unique(weights)) <= values, layer
    last = Run(next(compressed.parent.glob("small.fire.trainings/share/*/run.json")).parent)
    assert all((state[name] == array).all() for name, array in weights_of(last).items())


def test_a_fresh_process_finds_the_accuracy_with_which_training_ended(
    compressed: Path, trained: Run, firetrain: Command
) -> None:
    last = Run(next(compressed.parent.glob("small.fire.trainings/share/*/run.json")).parent)
    before, after = evaluated(firetrain, trained.path), evaluated(firetrain, compressed)
    assert after["top1"] == last.summary()["top1"] and after["images"] == 360
    assert after["top1"] > before["top1"] - 0.05 and before["top1"] == trained.summary()["top1"]


def test_a_run_in_results_is_evaluated_by_its_name(trained: Run, firetrain: Command, tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(trained.path.parent)
    assert evaluated(firetrain, Path(trained.name))["top1"] == trained.summary()["top1"]


def test_a_compression_that_is_repeated_trains_nothing_again(compressed: Path, trained: Run) -> None:
    content = compressed.read_bytes()
    compressed.unlink()
    assert "epoch" not in compress(trained, compressed.parent) and compressed.read_bytes() == content


def test_the_bytes_of_a_file_are_shown_and_drawn(compressed: Path, firetrain: Command, tmp_path: Path) -> None:
    shown = firetrain("compress", "show", str(compressed), "--svg", "bytes.svg")
    assert "fc1 " in shown.stdout and f"{compressed.stat().st_size:,}" in shown.stdout
    assert (tmp_path / "bytes.svg").read_text().startswith("<?xml")
    parts = json.loads(firetrain("compress", "show", str(compressed), "--json").stdout)
    by_tensor = sum(sum(one["bytes"].values()) for one in parts["tensors"])
    others = parts["sizes"]["header"] + parts["sizes"]["tables"]
    assert 0 < parts["sizes"]["tables"] < 1000
    assert by_tensor + others == pytest.approx(compressed.stat().st_size, abs=3)


@pytest.mark.parametrize("name", ["small.fire", "weights.pt"])
def test_a_run_begins_with_the_weights_of_a_file(
    name: str, compressed: Path, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "small.fire").write_bytes(compressed.read_bytes())
    assert firetrain("compress", "open", "small.fire", "--out", "weights.pt").returncode == 0
    again = firetrain("compress", "open", "small.fire", "--out", "weights.pt")
    assert again.returncode == 2 and "weights.pt exists, and is not replaced" in again.stderr
    opened, state = torch.load(tmp_path / "weights.pt", weights_only=True), read(compressed).state()
    assert all((opened[name].numpy() == array).all() for name, array in state.items())
    begun = firetrain(
        "launch", "squeezenet-digits", *LENET, "--set", f"model.weights={name}", "--set", "model.keep=zeros", "--set",
        "target.max_steps=3", "--set", "learning_rate.base=0.0001", "--results", "r",
    )  # fmt: skip
    assert begun.returncode == 0, begun.stderr
    run = Run(next((tmp_path / "r").glob("*")))
    assert ((weights_of(run)["fc1.weight"] == 0) == (state["fc1.weight"] == 0)).all()
    assert run.summary()["top1"] > 0.5


@pytest.mark.parametrize(("method", "ratio"), [("quantise", 5), ("prune", 1.5), ("svd", 2)])
def test_every_method_alone_makes_a_smaller_file(
    method: str, ratio: float, trained: Run, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "plain.yaml").write_text("name: plain\nlayers: {fc1: {density: 0.2, low_rank_share: 0.2}}\nbits: 5\n")
    done = firetrain(
        "compress", str(trained.path), "--method", method, "--recipe", "./plain.yaml", "--out", "m.fire", "--json"
    )
    assert done.returncode == 0, done.stderr
    dense = 4 * sum(array.size for array in weights_of(trained).values())
    assert json.loads(done.stdout)["bytes"] == (tmp_path / "m.fire").stat().st_size < dense / ratio
    state, before = read(tmp_path / "m.fire").state(), weights_of(trained)["fc1.weight"]
    if method == "svd":
        rank = np.linalg.matrix_rank(state["fc1.weight"], tol=1e-4)
        assert rank == round(0.2 * 500 * 800 / 1300)
    if method == "prune":
        kept = state["fc1.weight"] != 0
        assert kept.mean() == pytest.approx(0.2, abs=1e-3) and (state["fc1.weight"][kept] == before[kept]).all()


@pytest.mark.parametrize(
    ("keep", "strategy", "then"),
    [("values", "one-weird-trick", "pipeline:stages=2"), ("values", "pipeline:stages=2", "parameter-server:policy=sync"),
     ("zeros", "parameter-server:policy=sync", "one-weird-trick")],
)  # fmt: skip
def test_zeros_stay_zero_and_values_shared_under_every_strategy(
    keep: str, strategy: str, then: str, trained: Run, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "plain.yaml").write_text("name: plain\nlayers: {fc1: {density: 0.2}, conv2: {density: 0.4}}\nbits: 5\n")
    method = "deep" if keep == "values" else "prune"
    compressed = ("compress", str(trained.path), "--method", method, "--recipe", "./plain.yaml", "--out", "m.fire")
    assert firetrain(*compressed).returncode == 0
    begun = firetrain(
        "launch", "squeezenet-digits", *LENET, "--set", "model.weights=m.fire", "--set", f"model.keep={keep}", "--set",
        "target.max_steps=4", "--set", f"strategy.name={strategy}", "--results", "r",
    )  # fmt: skip
    assert begun.returncode == 0, begun.stderr
    before, run = read(tmp_path / "m.fire").state(), Run(next((tmp_path / "r").glob("*")))
    after = weights_of(run)
    (tmp_path / "m.fire").unlink()
    on = firetrain("launch", "--resume", str(run.path), "--set", "target.max_steps=6", "--set", f"strategy.name={then}")
    assert on.returncode == 0, on.stderr
    later = weights_of(run)
    for name in ("fc1.weight", "conv2.weight"):
        assert ((after[name] == 0) == (before[name] == 0)).all() and (after[name] != before[name]).any()
        assert ((later[name] == 0) == (before[name] == 0)).all() and (later[name] != after[name]).any()
        if keep == "values":
            for value in np.unique(before[name]):
                assert all(len(np.unique(one[name][before[name] == value])) == 1 for one in (after, later))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("compress", "nowhere", "--out=m.fire"), "nowhere is not a run's directory"),
        (("compress", "RUN", "--recipe", "lenet5", "--out", "m.fire"), "unknown recipe 'lenet5', did you mean lenet-5?"),
        (("compress", "RUN", "--method", "svd", "--bits", "5", "--out", "m.fire"), "--bits: only with a method that"),
        (("compress", "RUN", "--method", "prune", "--bits", "5", "--out", "m.fire"), "--bits: only with a method that shares"),
        (("compress", "RUN", "--set", "seed=3", "--out", "m.fire"), "--set: only with a recipe that trains"),
        (("compress", "RUN", "--method", "svd", "--recipe", "svd-alexnet", "--set", "seed=3", "--out", "m.fire"),
         "--set: only with a recipe that trains"),
        (("compress", "RUN", "--method", "svd", "--recipe", "lenet-5", "--out", "m.fire"),
         "--method svd needs a recipe whose layers have low_rank_share (got lenet-5)"),
        (("compress", "RUN", "--method", "prune", "--out", "m.fire"), "needs a recipe whose layers have density or threshold"),
        (("compress", "RUN", "--recipe", "lenet-5", "--on", "slurm", "--site", "nowhere", "--out", "m.fire"), "nowhere"),
        (("compress", "RUN", "--recipe", "lenet-5", "--time", "1:00:00", "--out", "m.fire"), "--time: only with --on slurm"),
        (("compress", "RUN", "--on", "slurm", "--out", "m.fire"), "--on slurm: only with a recipe that trains"),
        (("compress", "RUN", "--recipe", "./wrong.yaml", "--out", "m.fire"), "unknown layer 'fc11', did you mean fc1?"),
        (("compress", "RUN", "--recipe", "./shadowed.yaml", "--out", "m.fire"), "layers.fc1 has no effect: earlier patterns fit"),
        (("compress", "RUN", "--out", "late.yaml"), "late.yaml is no compressed model, and is not replaced by one: give another"),
        (("compress", "RUN", "--out", "m.pth"), ".pth is the ending of torch's files; call it m.fire"),
        (("compress", "RUN", "--recipe", "lenet-5", "--set", "model.keep=null", "--out", "m.fire"),
         "a compression sets model.weights and model.keep of its trainings itself"),
        (("compress", "RUN", "--recipe", "lenet-5", "--set", "checkpoint.every_epochs=null", "--out", "m.fire"),
         "must save its last epoch: leave checkpoint.every_epochs as it is"),
        (("compress", "RUN", "--recipe", "lenet-5", "--set", "data.image_size=32", "--out", "m.fire"),
         "trains the network of its run on its images, and writes what they are to the file: leave data.image_size as it is"),
        (("compress", "RUN", "--recipe", "lenet-5", "--set", "precision=bfloat16", "--set", "model.batch_norm=true",
          "--out", "m.fire"), "leave model.batch_norm, precision as it is in the run"),
        (("compress", "RUN", "--recipe", "./text.yaml", "--out", "m.fire"), "retrain: must be a list (got 'seed=1')"),
        (("compress", "RUN", "--recipe", "./late.yaml", "--out", "m.fire"), "learning_rate.bsae: unknown key, did you mean"),
        (("compress", "x" * 300), "No such command"), (("compress", "opne", "m.fire", "--out", "m.pt"), "No such command 'opne'"),
        (("compress", "RUN", "--method", "quantise", "--set", "seed=2", "--out", "m.fire"), "--set: only with a recipe"),
        (("compress", "shwo", "m.fire"), "No such command 'shwo'"), (("compress", "no/run", "--out", "m.fire"), "no/run"),
        (("evaluate", "RUN", "--set", "reduction.name=tree"), "--set reduction.name: an evaluation has no settings but"),
        (("evaluate", "RUN", "--data", "there is none"), "root has no effect here"),
        (("compress", "show", "none.fire"), "none.fire"), (("evaluate", "none.fire"), "none.fire"),
        (("launch", "quickstart", "--set", "model.keep=zeros"), "keep has no effect here (only with weights)"),
        (("launch", "quickstart", "--set", "model.weights=none.fire"), "none.fire: cannot be read"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_words(
    words: tuple[str, ...], told: str, trained: Run, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "wrong.yaml").write_text("name: wrong\nlayers: {fc11: {density: 0.5}, conv*: {density: 0.5}}\n")
    (tmp_path / "shadowed.yaml").write_text("name: shadowed\nlayers: {fc*: {density: 0.5}, fc1: {density: 0.1}}\n")
    (tmp_path / "late.yaml").write_text(
        "name: late\nlayers: {fc1: {density: 0.1}}\nretrain: [target.max_epochs=1]\nfinetune: [learning_rate.bsae=1]\n"
    )
    (tmp_path / "text.yaml").write_text("name: text\nretrain: seed=1\n")
    done = firetrain(*(str(trained.path) if word == "RUN" else word for word in words))
    assert done.returncode == 2 and told in done.stderr and "traceback" not in done.stderr.lower(), done.stderr
    assert not list(tmp_path.glob("*.trainings")), "nothing was trained"
    assert (tmp_path / "late.yaml").read_text().startswith("name: late")


def test_no_folder_is_made_for_a_file_that_may_be_misnamed(trained: Run, firetrain: Command, tmp_path: Path) -> None:
    done = firetrain("compress", str(trained.path), "--out", "there/is/none/m.fire")
    assert done.returncode == 73 and "there is no folder" in done.stderr and not (tmp_path / "there").exists()


def test_bits_of_the_command_are_those_of_all_layers_and_unused_keys_are_told(
    trained: Run, firetrain: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nlayers: {fc1: {bits: 6, density: 0.5}, fc2: {bits: 7}}\nrounds: 2\n"
    )
    command = ("compress", str(trained.path), "--method", "quantise", "--recipe", "./mine.yaml", "--out", "m.fire")
    done = firetrain(*command, "--bits", "3", "--json")
    assert "note: no effect under --method quantise, of recipe mine: density, rounds" in done.stderr
    assert set(json.loads(done.stdout)) == {"file", "bytes", "sizes"}
    shown = json.loads(firetrain("compress", "show", "m.fire", "--json").stdout)["tensors"]
    assert {one["bits"] for one in shown if len(one["shape"]) > 1} == {3}
    firetrain(*command)
    shown = json.loads(firetrain("compress", "show", "m.fire", "--json").stdout)["tensors"]
    assert {one["name"]: one["bits"] for one in shown if one["name"].startswith("fc")} == {
        "fc1.weight": 6, "fc1.bias": 0, "fc2.weight": 7, "fc2.bias": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("imposed", "name"), [("imposed", "squeezenet-8bit"), ("imposed-alexnet", "alexnet")])
def test_densities_that_are_imposed_are_those_of_the_shipped_recipe(imposed: str, name: str) -> None:
    measured = load_recipe(str(Path(__file__).parents[2] / "results" / "compression" / f"{imposed}.yaml"))
    shipped = load_recipe(name)
    assert measured.layers == shipped.layers and measured.gap_bits == shipped.gap_bits and not measured.retrain
    six_bits = load_recipe("squeezenet-6bit")
    assert six_bits.layers == load_recipe("squeezenet-8bit").layers and six_bits.bits == 6


MEASURED = Path(__file__).parents[2] / "results" / "compression"


@pytest.mark.parametrize(
    ("one", "other"),
    [("lenet-5-5bit", "lenet-5-entropy"), ("lenet-300-100-5bit", "lenet-300-100-entropy"),
     (str(MEASURED / "digits.yaml"), str(MEASURED / "digits-entropy.yaml")),
     (str(MEASURED / "cifar10.yaml"), str(MEASURED / "cifar10-entropy.yaml")),
     (str(MEASURED / "imposed.yaml"), str(MEASURED / "imposed-entropy.yaml"))],
)  # fmt: skip
def test_recipes_that_are_measured_from_one_pruning_prune_alike(one: str, other: str) -> None:
    first, second = load_recipe(one), load_recipe(other)
    assert {name: layer.density for name, layer in first.layers.items()} == {
        name: layer.density for name, layer in second.layers.items()
    }
    assert (first.rounds, first.retrain) == (second.rounds, second.retrain)
    assert not first.bit_price and second.bit_price


def test_shipped_recipes_name_layers_that_their_models_have(tmp_path: Path) -> None:
    models = {
        "lenet-300-100": "lenet_300_100", "lenet-300-100-5bit": "lenet_300_100", "lenet-5": "lenet", "lenet-5-5bit": "lenet",
        "lenet-300-100-entropy": "lenet_300_100", "lenet-5-entropy": "lenet",
        "alexnet": "alexnet", "svd-alexnet": "alexnet",
    }  # fmt: skip
    assert set(shipped_recipes()) == {*models, "squeezenet-8bit", "squeezenet-6bit"}
    for name in shipped_recipes():
        recipe, model = load_recipe(name), MODELS[models.get(name, "squeezenet1_0")]()
        layers = {layer for layer, module in model.named_modules() if hasattr(module, "weight")}
        assert recipe.provenance is not None
        for pattern in recipe.layers:
            assert any(recipe.of(layer) is recipe.layers[pattern] for layer in layers), (name, pattern)
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlayers: {fc1: {density: 0.5, threshold: 1.0}}\n")
    with pytest.raises(UserError, match="give either density or threshold"):
        load_recipe(str(path))
