"""Recipes of compressions: which layer each line is for, and mistakes with their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from firetrain.config.compression import CompressionRecipe, load_recipe
from firetrain.errors import UserError


def recipe(text: str, folder: Path) -> CompressionRecipe:
    (folder / "mine.yaml").write_text(text)
    return load_recipe(str(folder / "mine.yaml"))


def test_the_first_pattern_that_fits_a_layer_is_used(tmp_path: Path) -> None:
    layers = "fire9.expand3x3: {density: 0.3}", "fire*.expand3x3: {density: 0.33}", "fire?.*: {bits: 5}"
    found = recipe("name: mine\nlayers:\n" + "".join(f"  {line}\n" for line in layers), tmp_path)
    assert [found.of(layer).density for layer in ("fire9.expand3x3", "fire2.expand3x3", "fire2.squeeze")] == [
        0.3,
        0.33,
        None,
    ]
    assert found.of("fire2.squeeze").bits == 5 and found.of("conv1").bits is None
    assert (found.bits, found.gap_bits, found.rounds, found.retrain, found.finetune) == (6, 4, 1, (), ())


def test_bits_may_be_replaced_in_all_layers_at_once() -> None:
    changed = load_recipe("lenet-5").with_bits(3)
    assert {changed.of(layer).bits or changed.bits for layer in ("conv1", "conv2", "fc1", "fc2")} == {3}
    assert [changed.of(layer).density for layer in ("conv1", "fc1")] == [0.66, 0.08]
    plain = load_recipe(None)
    assert plain.bits == 6 and plain.layers == {} and plain.of("anything").density is None


def test_keys_that_a_method_does_not_use_are_known(tmp_path: Path) -> None:
    text = (
        "name: mine\nlayers: {fc1: {density: 0.5, low_rank_share: 0.2}}\nbits: 5\nbit_price: 0.01\nrounds: 3\n"
        "finetune: [target.max_epochs=1]\n"
    )
    found = recipe(text, tmp_path)
    unused = {method: found.without_effect(method) for method in ("deep", "prune", "quantise", "svd")}
    assert unused["deep"] == ["rounds", "low_rank_share"], "rounds without training in between are one"
    assert unused["prune"] == ["rounds", "bits", "bit_price", "finetune", "low_rank_share"]
    assert unused["quantise"] == ["density", "rounds", "low_rank_share"]
    assert unused["svd"] == ["density", "rounds", "bits", "bit_price", "finetune"]
    assert [found.trainings(method) for method in ("deep", "prune", "quantise", "svd")] == [
        ("finetune",), (), ("finetune",), (),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: mine\nbits: 9\n", "mine.yaml:2:1: bits: must be less than or equal to 8 (got 9)"),
        ("name: mine\nlayers:\n  fc1: {density: 0}\n", "mine.yaml:3:9: layers.fc1.density: must be greater than 0 (got 0)"),
        ("name: mine\nlayers:\n  fc1: {densty: 0.5}\n", "layers.fc1.densty: unknown key, did you mean density?"),
        ("name: mine\nlayers:\n  fc1: {density: 0.5, threshold: 1.0}\n", "layers.fc1: give either density or threshold"),
        ("name: mine\nround: 2\n", "mine.yaml:2:1: round: unknown key, did you mean rounds?"),
        ("bits: 5\n", "name: is required and not given"),
        ("name: mine\ndtype: int8\n", "dtype: must be one of float32, float16"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_line_and_column(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        recipe(text, tmp_path)
    assert told in str(caught.value)


def test_an_unknown_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(UserError, match=r"unknown recipe 'alexnett', did you mean alexnet\? .*\./my\.yaml"):
        load_recipe("alexnett")


def test_densities_of_the_published_squeezenet_leave_a_third_of_its_weights() -> None:
    """415,921 of 1,244,448 weights, by the file of its authors."""
    from firetrain.models.squeezenet import squeezenet1_0

    found, kept, whole = load_recipe("squeezenet-6bit"), 0.0, 0
    for name, parameter in squeezenet1_0().named_parameters():
        if parameter.dim() > 1:
            density = found.of(name.rpartition(".")[0]).density
            kept += parameter.numel() * (1.0 if density is None else density)
            whole += parameter.numel()
    assert whole == 1_244_448 and kept == pytest.approx(415_921, rel=0.02)
