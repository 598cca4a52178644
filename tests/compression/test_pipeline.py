"""The trainings of a compression: what each of them leaves of the weights, and how it goes on after an interruption."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command
from PIL import Image
from stand_in import OVERRIDES, Trainer, begun, recipe

from firetrain import checkpoint
from firetrain.cluster import SystemClock
from firetrain.coding.file import read
from firetrain.compression.pipeline import Compression, layer_of, weights_of
from firetrain.config import Loaded, load_config
from firetrain.config.compression import CompressionRecipe
from firetrain.errors import UserError
from firetrain.records import Run


def test_weights_are_pruned_in_rounds_by_the_same_factor_and_trained_after_each(tmp_path: Path) -> None:
    train = Trainer()
    chosen = recipe(retrain=["learning_rate.base=0.25"], finetune=["learning_rate.base=0.125", "target.max_epochs=2"])
    Compression(begun(tmp_path / "run"), chosen, "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    assert [name for name, _ in train.seen] == ["prune-1", "prune-2", "prune-3", "share"]
    densities = [kept["fc1.weight"] for _, kept in train.seen]
    assert densities == pytest.approx([0.08 ** (1 / 3), 0.08 ** (2 / 3), 0.08, 0.08], rel=1e-3)
    assert [kept["conv2.weight"] for _, kept in train.seen][2] == pytest.approx(0.64, rel=1e-2)
    assert [kept["fc2.weight"] for _, kept in train.seen] == [1.0] * 4, "which the recipe does not name"
    configs = [loaded.config for loaded in train.configs]
    assert [one.model.keep for one in configs] == ["zeros", "zeros", "zeros", "values"]
    assert [one.learning_rate.base for one in configs] == [0.25] * 3 + [0.125] and configs[3].target.max_epochs == 2
    assert all(one.target.top1 is None and one.model.name == "lenet" for one in configs)


def test_rates_and_lengths_of_the_run_are_not_those_of_its_trainings(tmp_path: Path) -> None:
    train, changed = Trainer(), ("learning_rate.peak=3", "learning_rate.warmup_epochs=5", "target.max_steps=7",
        "checkpoint.every_steps=1000", "target.top1=0.9", "target.train_on=true")  # fmt: skip
    chosen = recipe(retrain=["learning_rate.base=0.25", "target.max_epochs=2"], rounds=1)
    run = begun(tmp_path / "run", (*OVERRIDES, *changed))
    Compression(run, chosen, "prune", tmp_path / "train #1", train).run(tmp_path / "m.fire")
    (config,) = (loaded.config for loaded in train.configs)
    assert config.learning_rate.peak_for(32) == 0.25 and config.learning_rate.warmup_epochs == 0
    assert (config.target.max_steps, config.target.max_epochs, config.target.train_on) == (None, 2, False)
    assert (config.checkpoint.every_epochs, config.checkpoint.every_steps) == (1, None)


def test_weights_that_no_file_can_hold_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    run, train = begun(tmp_path / "run"), Trainer()
    state = {name: torch.from_numpy(array) for name, array in weights_of(run).items()}
    state["fc1.weight"][0, 0] = float("nan")
    checkpoint.save(run.path / "checkpoints", 2, {"model": state}, keep=1)
    with pytest.raises(UserError, match="weights that are not finite cannot be compressed: fc1.weight"):
        Compression(run, recipe(retrain=["seed=1"]), "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    state["fc1.weight"][0, 0] = 1e6
    checkpoint.save(run.path / "checkpoints", 3, {"model": state}, keep=1)
    with pytest.raises(UserError, match=r"dtype float16 cannot hold 1e\+06: use float32"):
        half = recipe(dtype="float16", retrain=["seed=1"])
        Compression(run, half, "prune", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    assert not train.seen and not (tmp_path / "m.fire").exists()


def test_weights_that_training_has_lost_are_told_with_its_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"prune-1/run: weights that are not finite cannot be compressed: conv1.weight"):
        Compression(
            begun(tmp_path / "run"), recipe(retrain=["seed=1"]), "deep", tmp_path / "trainings", Trainer(float("inf"))
        ).run(tmp_path / "m.fire")
    assert not (tmp_path / "m.fire").exists()


def test_a_mistake_of_the_recipe_is_told_as_one_of_it_and_not_of_an_option(tmp_path: Path) -> None:
    chosen, train = recipe(retrain=["learning_rate.bas=0.1"]), Trainer()
    with pytest.raises(UserError) as error:
        Compression(begun(tmp_path / "run"), chosen, "prune", tmp_path / "trainings", train, overrides=["sed=1"]).run(
            tmp_path / "m.fire"
        )
    told = str(error.value)
    assert "recipe mine, retrain: learning_rate.bas=0.1: learning_rate.bas: unknown key, did you mean base?" in told
    assert "--set sed=1: sed: unknown key" in told and not train.seen


def test_a_file_names_the_synthetic_images_of_its_run(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", [*OVERRIDES, "data.name=synthetic", "data.images=48"])
    Compression(run, recipe(), "quantise", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")
    assert read(tmp_path / "m.fire").data == {"name": "synthetic", "image_size": 28, "images": 48}


def test_the_file_has_the_values_that_training_has_left(tmp_path: Path) -> None:
    train = Trainer()
    chosen = recipe(bits=4, rounds=1, finetune=["learning_rate.base=0.1"])
    Compression(begun(tmp_path / "run"), chosen, "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    left = weights_of(Run(tmp_path / "trainings" / "share" / "run"))
    for name, array in read(tmp_path / "m.fire").state().items():
        assert (array == left[name]).all(), name
    assert len(np.unique(left["fc1.weight"])) <= 16


def test_pruning_and_then_sharing_make_the_file_that_both_together_make(tmp_path: Path) -> None:
    chosen = recipe(retrain=["learning_rate.base=0.25"], finetune=["learning_rate.base=0.1"])
    run = begun(tmp_path / "run")
    Compression(run, chosen, "deep", tmp_path / "both", Trainer()).run(tmp_path / "both.fire")
    Compression(run, chosen, "prune", tmp_path / "pruning", Trainer()).run(tmp_path / "pruned.fire")
    pruned = Run(tmp_path / "pruning" / "prune-3" / "run")
    Compression(pruned, chosen, "quantise", tmp_path / "sharing", Trainer()).run(tmp_path / "shared.fire")
    assert (tmp_path / "shared.fire").read_bytes() == (tmp_path / "both.fire").read_bytes()


def test_nothing_is_trained_without_overrides_for_it(tmp_path: Path) -> None:
    train = Trainer()
    Compression(begun(tmp_path / "run"), recipe(), "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    assert train.seen == [] and not (tmp_path / "trainings").exists()


def test_a_price_of_bits_makes_the_file_smaller_without_more_zeros(tmp_path: Path) -> None:
    run, states = begun(tmp_path / "run"), []
    for price in (0.0, 0.01):
        out = tmp_path / f"{price}.fire"
        Compression(run, recipe(bit_price=price), "deep", tmp_path / "trainings", Trainer()).run(out)
        states.append(read(out).state())
    assert (tmp_path / "0.01.fire").stat().st_size < 0.9 * (tmp_path / "0.0.fire").stat().st_size
    for name, array in states[0].items():
        assert ((states[1][name] != 0) == (array != 0)).all(), name


def test_a_training_begins_with_the_same_file_after_an_interruption(tmp_path: Path) -> None:
    train = Trainer()
    run, chosen = begun(tmp_path / "run"), recipe(retrain=["learning_rate.base=0.1"])

    def interrupted(loaded: Loaded, folder: Path) -> Run:
        if folder.name == "prune-2":
            raise KeyboardInterrupt
        return train(loaded, folder)

    with pytest.raises(KeyboardInterrupt):
        Compression(run, chosen, "prune", tmp_path / "trainings", interrupted).run(tmp_path / "m.fire")
    start = (tmp_path / "trainings" / "prune-2" / "start.fire").read_bytes()
    Compression(run, chosen, "prune", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    assert (tmp_path / "trainings" / "prune-2" / "start.fire").read_bytes() == start
    state = read(tmp_path / "m.fire").state()
    assert (state["fc1.weight"] != 0).mean() == pytest.approx(0.08, rel=1e-3)


def test_trainings_of_another_compression_are_not_taken_for_its_own(tmp_path: Path) -> None:
    run, train = begun(tmp_path / "run"), Trainer()
    trained = recipe(bits=4, rounds=1, finetune=["learning_rate.base=0.1"])
    Compression(run, trained, "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    other = trained.model_copy(update={"bits": 5})
    with pytest.raises(
        UserError, match=r"share/start.fire has other weights than this compression: give another --out"
    ):
        Compression(run, other, "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    assert len(np.unique(read(tmp_path / "m.fire").state()["fc1.weight"])) <= 16, "which is as it was"
    shutil.rmtree(tmp_path / "trainings" / "share")
    trainings = len(train.seen)
    Compression(run, other, "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    assert [name for name, _ in train.seen[trainings:]] == ["share"], "the pruning is not trained again"


def test_numbers_of_half_the_width_are_in_the_last_file_only(tmp_path: Path) -> None:
    """A training begins with what was trained, to the bit."""
    train = Trainer()
    chosen = recipe(dtype="float16", rounds=1, retrain=["learning_rate.base=0.1"])
    Compression(begun(tmp_path / "run"), chosen, "deep", tmp_path / "trainings", train).run(tmp_path / "m.fire")
    assert read(tmp_path / "trainings" / "prune-1" / "start.fire").dtype == "float32"
    assert read(tmp_path / "m.fire").dtype == "float16"


def test_a_threshold_keeps_what_is_larger(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    chosen = CompressionRecipe.model_validate({"name": "mine", "layers": {"fc1": {"threshold": 1.0}}})
    Compression(run, chosen, "prune", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")
    before, after = weights_of(run)["fc1.weight"], read(tmp_path / "m.fire").state()["fc1.weight"]
    kept = np.abs(before) > before.std()
    assert ((after != 0) == kept).mean() > 0.999 and 0.1 < kept.mean() < 0.6, "weights are drawn uniformly"


def test_the_file_says_what_it_is_without_paths_of_the_user(tmp_path: Path) -> None:
    Compression(begun(tmp_path / "run"), recipe(), "quantise", tmp_path / "trainings", Trainer()).run(
        tmp_path / "m.fire"
    )
    found = read(tmp_path / "m.fire")
    assert found.model == {"name": "lenet", "stem": "small"} and found.classes == 10
    assert found.data == {"name": "digits", "image_size": 28}


def test_the_data_of_a_run_may_have_moved(tmp_path: Path, firetrain: Command) -> None:
    before, now = tmp_path / "before", tmp_path / "now here"
    for number in range(20):
        folder = before / ("train" if number < 10 else "test") / f"class {number % 10}"
        folder.mkdir(parents=True)
        Image.new("RGB", (28, 28)).save(folder / "image.png")
    run = begun(tmp_path / "run", [*OVERRIDES, "data.name=folders", f"data.root={before}"])
    before.rename(now)
    words = ("compress", str(run.path), "--method", "quantise", "--out", "m.fire")
    lost = firetrain(*words)
    assert lost.returncode == 2 and str(before) in lost.stderr
    done = firetrain(*words, "--data", str(now))
    assert done.returncode == 0, done.stderr
    command = shlex.split(done.stdout.strip().splitlines()[-1])
    assert command == ["firetrain", "evaluate", "m.fire", "--data", str(now)]
    assert "on 10 test images" in firetrain(*command[1:]).stdout


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    loaded = load_config("squeezenet-digits", OVERRIDES)
    run = Run.prepare(tmp_path / "run", loaded, SystemClock().date(), {"state": "running", "ranks": 1})
    with pytest.raises(UserError, match="has no checkpoint: checkpoint.every_epochs and"):
        Compression(run, recipe(), "deep", tmp_path / "trainings", Trainer()).run(tmp_path / "m.fire")


def test_a_layer_is_named_without_its_tensor() -> None:
    assert layer_of("features.12.expand3x3.weight") == "features.12.expand3x3" and layer_of("weight") == ""
