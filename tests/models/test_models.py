"""Models have the sizes of the literature, and torchvision's parameter names."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from command import Command
from torch import nn

from firetrain.config.sections.model import ModelSection, refuse_small_images
from firetrain.errors import UserError
from firetrain.models.batch_norm import add_batch_norm
from firetrain.models.catalogue import MODELS, make_model, model_by_name
from firetrain.models.dropout import Dropout, set_dropout_keys
from firetrain.models.inventory import inventory, shares


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_thesis_alexnet_has_its_parameters() -> None:
    for options, size, count in (
        ({"classes": 200, "stem": "small"}, 56, 29_045_248),
        ({"classes": 2, "stem": "imagenet"}, 128, 62_401_482),
    ):
        model = model_by_name("alexnet_thesis", **options)
        assert parameters(model) == count
        assert model(torch.zeros(1, 3, size, size)).shape == (1, options["classes"]), "also one image in training"


def test_the_list_of_models_tells_their_parameters(firetrain: Command) -> None:
    listed = re.findall(r"^(\S+) .* ([0-9,]+) parameters at ([0-9]+) classes", firetrain("model", "list").stdout, re.M)
    assert [name for name, *_ in listed] == list(MODELS)
    for name, count, classes in listed:
        stem = "imagenet" if classes == "1000" else "small"
        assert f"{parameters(model_by_name(name, classes=int(classes), stem=stem)):,}" == count, name


@pytest.mark.parametrize(("name", "count"), [("googlenet_mini", 11_658), ("squeezenet_mini", 14_506)])
def test_small_models_for_trying_recipes(name: str, count: int) -> None:
    model = model_by_name(name)
    assert sum(p.numel() for p in model.parameters()) == count
    for size in (16, 28, 32):
        assert model(torch.zeros(2, 3, size, size)).shape == (2, 10)


@pytest.mark.parametrize(
    "name", ["alexnet", "googlenet_mini", "googlenet_paper", "lenet", "nin", "squeezenet1_1", "squeezenet_mini"]
)
def test_batch_norm_after_every_convolution_but_the_classifier_s(name: str) -> None:
    plain, normalised = model_by_name(name), add_batch_norm(model_by_name(name))
    convolutions = [m for m in plain.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in normalised.modules() if isinstance(m, nn.BatchNorm2d)]
    without_linear = not any(isinstance(m, nn.Linear) for m in plain.modules())
    assert len(norms) == len(convolutions) - without_linear
    channels = [m.out_channels for m in convolutions]
    assert [m.num_features for m in norms] == (channels[:-1] if without_linear else channels)
    norms = [sum(isinstance(module, nn.BatchNorm2d) for module in net.modules()) for net in (plain, normalised)]
    assert norms[0] == 0 and norms[1] > 0


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("alexnet", {}, 61_100_840),
        ("googlenet", {}, 6_624_904),
        ("googlenet", {"auxiliary_heads": True}, 13_004_888),
        ("googlenet_paper", {}, 6_998_552),
        ("googlenet_paper", {"auxiliary_heads": True}, 13_378_280),
        ("nin", {}, 7_595_176),
        ("squeezenet1_0", {}, 1_248_424),
        ("squeezenet1_1", {}, 1_235_496),
    ],
)
def test_parameter_counts_at_1000_classes(name: str, options: dict[str, bool], count: int) -> None:
    assert parameters(model_by_name(name, classes=1000, **options)) == count


def torchvision_s_squeezenet(fires: list[int]) -> set[str]:
    layers = [f"features.{fire}.{part}" for fire in fires for part in ("squeeze", "expand1x1", "expand3x3")]
    return {f"{layer}.{kind}" for layer in ("features.0", *layers, "classifier.1") for kind in ("weight", "bias")}


def torchvision_s_googlenet(heads: bool) -> set[str]:
    branches = ("branch1", "branch2.0", "branch2.1", "branch3.0", "branch3.1", "branch4.1")
    blocks = ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b")
    units = ["conv1", "conv2", "conv3", *(f"inception{block}.{branch}" for block in blocks for branch in branches)]
    dense = ["fc"]
    if heads:
        units += ["aux1.conv", "aux2.conv"]
        dense += [f"aux{n}.fc{m}" for n in (1, 2) for m in (1, 2)]
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return (
        {f"{unit}.conv.weight" for unit in units}
        | {f"{unit}.bn.{part}" for unit in units for part in norm}
        | {f"{layer}.{kind}" for layer in dense for kind in ("weight", "bias")}
    )


@pytest.mark.parametrize(
    ("name", "options", "keys"),
    [
        ("squeezenet1_0", {}, torchvision_s_squeezenet([3, 4, 5, 7, 8, 9, 10, 12])),
        ("squeezenet1_1", {}, torchvision_s_squeezenet([3, 4, 6, 7, 9, 10, 11, 12])),
        ("googlenet", {}, torchvision_s_googlenet(False)),
        ("googlenet", {"auxiliary_heads": True}, torchvision_s_googlenet(True)),
        (
            "alexnet",
            {},
            {
                f"{layer}.{kind}"
                for layer in (*(f"features.{n}" for n in (0, 3, 6, 8, 10)), *(f"classifier.{n}" for n in (1, 4, 6)))
                for kind in ("weight", "bias")
            },
        ),
    ],
)
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_state_dict_keys_are_torchvision_s(name: str, options: dict[str, bool], keys: set[str], stem: str) -> None:
    assert set(model_by_name(name, stem=stem, **options).state_dict()) == keys


def test_entry_counts_are_torchvision_s() -> None:
    counts = [len(model_by_name("googlenet", auxiliary_heads=heads).state_dict()) for heads in (False, True)]
    assert counts == [344, 364]


@pytest.mark.parametrize(
    ("name", "giga_multiply_adds"),
    [
        ("alexnet", 0.71),
        ("googlenet", 1.50),
        ("googlenet_paper", 1.58),
        ("squeezenet1_0", 0.82),
        ("squeezenet1_1", 0.35),
    ],
)
def test_operations_per_image(name: str, giga_multiply_adds: float) -> None:
    layers = inventory(model_by_name(name), 224)
    assert sum(layer.flops for layer in layers) / 2e9 == pytest.approx(giga_multiply_adds, abs=0.006)


def test_the_inventory_of_a_layer_is_its_formula() -> None:
    first = inventory(model_by_name("alexnet"), 224)[0]
    assert (first.name, first.kind, first.shape) == ("features.0", "Conv2d", (64, 55, 55))
    assert first.parameters == 64 * 3 * 11 * 11 + 64
    assert first.flops == 2 * 64 * 3 * 11 * 11 * 55 * 55
    assert first.activation_bytes == 4 * 64 * 55 * 55


def test_alexnet_s_parameters_are_dense_and_its_operations_are_not() -> None:
    share = shares(inventory(model_by_name("alexnet"), 224))
    assert share["fully connected"]["parameters"] > 0.95 and share["convolution"]["flops"] > 0.9


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_images_are_refused_exactly_where_the_model_cannot_take_them(name: str, stem: str) -> None:
    model = model_by_name(name, classes=2, stem=stem).to("meta")
    least = next(size for size in range(8, 80) if not refused(name, stem, size))
    model(torch.zeros(2, 3, least, least, device="meta"))
    if least > 8:
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 3, least - 1, least - 1, device="meta"))


def refused(name: str, stem: str, image_size: int) -> bool:
    try:
        refuse_small_images(name, stem, image_size)
    except ValueError:
        return True
    return False


def test_commands_refuse_images_that_are_too_small() -> None:
    with pytest.raises(UserError, match="alexnet with stem imagenet needs images of 63 pixels or more"):
        model_by_name("alexnet", 62)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"alexnet_thesis"}))
@pytest.mark.parametrize("size", [16, 28, 32, 64])
def test_small_stems_take_small_images(name: str, size: int) -> None:
    model = model_by_name(name, classes=7, stem="small").eval()
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", ["googlenet", "googlenet_paper"])
def test_auxiliary_heads_speak_in_training_only(name: str) -> None:
    model = model_by_name(name, classes=5, stem="small", auxiliary_heads=True)
    images = torch.zeros(2, 3, 32, 32)
    assert [output.shape for output in model.train()(images)] == [(2, 5)] * 3
    assert model.eval()(images).shape == (2, 5)


def test_the_same_seed_gives_the_same_bits_and_leaves_torch_s_generator_alone() -> None:
    section = ModelSection(name="squeezenet1_1", stem="small")
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    first, second, other = (make_model(section, 10, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_dropout_belongs_to_the_image_and_not_to_the_batch() -> None:
    layer, images = nn.Sequential(Dropout(0.5)), torch.ones(6, 4, 5, 5)
    keys = torch.arange(6) * 7919

    def dropped(chosen: slice) -> torch.Tensor:
        set_dropout_keys(layer, keys[chosen])
        return layer(images[chosen])

    whole = dropped(slice(0, 6))
    assert torch.equal(torch.cat([dropped(slice(0, 2)), dropped(slice(2, 6))]), whole)
    assert len({tuple(image.flatten().tolist()) for image in whole}) == 6
    assert torch.equal(layer.eval()(images), images)


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    for share in (0.2, 0.7):
        layer = nn.Sequential(Dropout(share), Dropout(share))
        set_dropout_keys(layer, torch.arange(200))
        out = layer[0](torch.ones(200, 1000))
        assert (out == 0).float().mean().item() == pytest.approx(share, abs=0.005)
        assert out.mean().item() == pytest.approx(1, abs=0.02)
        assert not torch.equal(out, layer[1](torch.ones(200, 1000)))


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"nets\.py is a file: give the name .* as in nets\.py:MyNet"):
        model_by_name("nets.py")
    with pytest.raises(UserError, match="unknown model 'squeezenet', did you mean squeezenet1_"):
        model_by_name("squeezenet")


def test_masks_are_those_of_the_hash_in_unsigned_arithmetic() -> None:
    """The same hash in numpy, whose uint32 wraps; int32 has to hold its words."""

    def mix(words: np.ndarray) -> np.ndarray:
        words = words ^ (words >> np.uint32(16))
        words = words * np.uint32(0x7FEB352D)
        words = words ^ (words >> np.uint32(15))
        words = words * np.uint32(0x846CA68B)
        return words ^ (words >> np.uint32(16))

    keys = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF], np.uint32)
    layers = nn.Sequential(Dropout(0.3), Dropout(0.3))
    set_dropout_keys(layers, torch.from_numpy(keys.view(np.int32)))
    for number, layer in enumerate(layers):
        positions = np.arange(50, dtype=np.uint32) + np.uint32(number << 24)
        kept = mix(mix(positions)[None, :] ^ keys[:, None]) >= np.uint32(int(0.3 * 2**32))
        assert np.array_equal(layer(torch.ones(6, 50)).numpy() != 0, kept) and 0.5 < kept.mean() < 0.9
