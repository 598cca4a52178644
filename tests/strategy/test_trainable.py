"""Placements that are right but cannot be trained are refused with the reason; stages are only those that can overlap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from firetrain.bench import sent_bytes
from firetrain.cluster import World
from firetrain.config import ConfigError, load_config
from firetrain.config.load import with_strategy
from firetrain.errors import UserError
from firetrain.models.catalogue import MODELS, model_by_name
from firetrain.models.graph import trace
from firetrain.strategy import Layer, Placement, Split, faults, find_strategy
from firetrain.strategy.check import prove, untrainable
from firetrain.strategy.pipeline import balanced

A, B, C = (
    Layer(name, "weights", before, 4, 4, weights=1, biases=1, operations=16)
    for name, before in (("a", ()), ("b", ("a",)), ("c", ("b",)))
)
STRATEGIES = (
    "data-parallel", "one-weird-trick", "one-weird-trick:replicas=2", "tensor-parallel:split=outputs",
    "tensor-parallel:split=inputs", "tensor-parallel:split=alternate,replicas=2", "grid:images=2", "branch-parallel",
    "pipeline:stages=2", "pipeline:stages=2,replicas=2,micro_batches=3,schedule=1f1b",
)  # fmt: skip
LOSS = Layer("loss", "whole", ("c",), 4, 4, is_loss=True)


def on(*ranks: tuple[int, ...]) -> Placement:
    """Three layers and a loss, each on these ranks, which share its images."""
    layers = (A, B, C, LOSS)
    splits = {layer.name: Split(some, images=len(some)) for layer, some in zip(layers, ranks, strict=True)}
    return Placement("mine", 1 + max(max(some) for some in ranks), layers, splits, micro_batches=2, schedule="1f1b")


def test_layers_on_disjoint_ranks_are_stages() -> None:
    placement = on((0, 2), (0, 2), (1, 3), (1, 3))
    assert [placement.stage(rank) for rank in range(4)] == [(0, 2), (1, 2), (0, 2), (1, 2)]


@pytest.mark.parametrize("ranks", [((0,), (1,), (0,), (0,)), ((0, 1), (0,), (0, 1), (0, 1))])
def test_ranks_that_come_again_make_one_stage_because_they_cannot_overlap(ranks: tuple[tuple[int, ...], ...]) -> None:
    """With two stages, 1f1b would let rank 0 wait for rank 1's next output, and rank 1 for rank 0's first gradient."""
    placement = on(*ranks)
    assert not faults(placement, 4) and placement.stage(0) == placement.stage(1) == (0, 1)


def test_a_rank_without_weights_is_named() -> None:
    assert [*untrainable(on((0,), (0,), (1,), (2,)))] == [
        "rank 2 would have no weights: use fewer ranks, or give it some (ranks: 3)"
    ]
    assert not [*untrainable(on((0,), (0,), (1,), (1,)))]


def test_losses_that_are_divided_differently_and_two_layers_that_read_images_are_refused() -> None:
    layers = (A, Layer("d", "weights", (), 4, 4, weights=1), LOSS, Layer("loss1", "whole", ("d",), 4, 4, is_loss=True))
    both, one = Split((0, 1), images=2), Split((0,))
    splits = {"a": both, "d": both, "loss": both, "loss1": one}
    told = [*untrainable(Placement("mine", 2, layers, splits))]
    assert told == [
        "a, d read the images: only one layer can; use data-parallel",
        "loss, loss1 must be divided alike: they have the same labels",
    ]


def test_every_stage_has_work_also_if_the_first_layers_have_none() -> None:
    flatten = Layer("flatten", "channels", (), 4, 4)
    large = Layer("a", "weights", ("flatten",), 4, 4, weights=9, operations=900)
    stages = balanced([flatten, large, B, C], 3)
    assert [[layer.name for layer in some] for some in stages] == [["flatten", "a"], ["b"], ["c"]]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_in_16_bits_are_half_as_many_bytes(dtype: str) -> None:
    sections = (
        load_config("squeezenet-digits", [f"reduction.wire_dtype={one}"]).config.reduction for one in ("float32", dtype)
    )
    placement = on((0, 1), (0, 1), (0, 1), (0, 1))
    whole, half = (
        sent_bytes.expected_bytes(placement, World.even(1, 2), 8, "ring", one.wire_bytes) for one in sections
    )
    assert whole == [2 * one for one in half] and whole[0] > 0  # type: ignore[index,union-attr]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("compile=true", "compile: true"), ("log.noise_scale=true", "log.noise_scale: true"),
        ("reduction.name=horovod", "reduction.name: horovod, which sums over all ranks only"),
    ],
)  # fmt: skip
def test_a_strategy_that_the_rest_of_a_config_does_not_suit_is_refused(override: str, told: str) -> None:
    config = load_config("squeezenet-digits", [override]).config
    with pytest.raises(ConfigError, match=f"strategy one-weird-trick does not support {told}"):
        with_strategy(config, "one-weird-trick")


def test_a_pipeline_of_a_model_with_auxiliary_heads_is_refused() -> None:
    layers = trace(model_by_name("googlenet_paper", classes=10, stem="small", auxiliary_heads=True).train(), 32).layers
    with pytest.raises(UserError, match="auxiliary heads are not supported: set model.auxiliary_heads to false"):
        find_strategy("pipeline:stages=2")(layers, World.even(1, 2))


def test_a_strategy_that_suits_a_config_is_its_strategy() -> None:
    assert str(with_strategy(load_config("squeezenet-digits").config, "grid:images=2").strategy.spec) == "grid:images=2"


def test_a_placement_file_is_found_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text("ranks: 2\ndefault: {images: 2}\n")
    config = load_config("squeezenet-digits", ["strategy.name=mine.yaml"]).config
    assert config.strategy.name == str(tmp_path / "mine.yaml") and config.strategy.is_file


class Twice(nn.Module):
    """Uses its layers twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer = nn.Conv2d(3, 3, 1), layer

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, 3]."""
        return self.layer(self.layer(self.first(x)).relu()).mean((2, 3))  # type: ignore[no-any-return]


class Calls(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.first, self.function = nn.Conv2d(3, 3, 1), function

    def forward(self, x: Tensor) -> object:
        """What the function makes of [images, 3, h, w]."""
        return self.function(self.first(x))


class WithImages(nn.Module):
    """Reads its images again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(11, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, 4, h, w]."""
        return self.second(torch.cat([x, self.first(x)], 1))  # type: ignore[no-any-return]


class Dense(nn.Module):
    """Two layers read the first one's outputs, one of them after a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[images, 3, h, w] to [images, 8, h, w]."""
        a = self.first(x)
        return torch.cat([self.second(torch.cat([a], 1).relu()), self.third(a)], 1).mean((2, 3))


def test_a_concatenation_of_one_tensor_leaves_it_to_others_as_it_is() -> None:
    graph = trace(Dense(), 8)
    assert not graph.units["first"].operations, "the ReLU is not part of the layer that both read"
    sources = {name: unit.layer.sources for name, unit in graph.units.items()}
    assert sources["third"] == ("first",) and sources["second"] == ("relu",) and sources["relu"] == ("first",)


@pytest.mark.parametrize(
    ("model", "told"),
    [(Twice(nn.Conv2d(3, 3, 1)), "layer is used twice: a layer whose weights are shared cannot be placed"),
     (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5)), "torch's Dropout draws other numbers on each rank"),
     (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout2d(0.5)), "torch's Dropout2d draws other numbers on each rank"),
     (nn.Sequential(nn.Conv2d(3, 4, 1), nn.RReLU()), "torch's RReLU draws other numbers on each rank"),
     (Calls(lambda x: nn.functional.dropout(x, 0.5)), "torch's dropout draws other numbers on each rank"),
     (Calls(lambda x: x.sigmoid().bernoulli()), "torch's bernoulli draws other numbers on each rank"),
     (Calls(torch.rand_like), "torch's rand_like draws other numbers on each rank"),
     (Calls(lambda x: torch.cat(tensors=[x, x], dim=2)), "concatenates along dimension 2: only channels"),
     (Calls(lambda x: x.chunk(3, 1)[0]), "does not make one tensor of images and channels"),
     (WithImages(), "concatenates the images with something else: only outputs of layers can be placed"),
     (Calls(lambda x: {"logits": x}), "the model's output is neither a tensor nor a tuple of tensors"),
     (Calls(lambda x: x if x.sum() > 0 else -x), "so that its layers cannot be placed: symbolically traced"),
     (nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), "the model cannot be traced for images of 8 pixels, so that"),
     (nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), "its layers cannot be placed: 1 (Linear): a and b must have"),
     (nn.Sequential(nn.Conv2d(3, 4, 9)), "its layers cannot be placed: 0 (Conv2d): Calculated padded input size"),
     (Calls(lambda x: x.view(5, 5, -1)), "its layers cannot be placed: view: "),
     (nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(2), nn.Linear(64, 5)), "flatten it first")],
)  # fmt: skip
def test_what_cannot_be_computed_in_parts_is_refused_with_its_name(
    model: nn.Module, told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as error:
        trace(model, 8)
    assert told in str(error.value) and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_strategies_cover_every_model_or_tell_why_not(name: str) -> None:
    layers = trace(model_by_name(name, classes=10, stem="small"), 64).layers
    for strategy in STRATEGIES:
        proof = prove(strategy, layers, 6)
        assert proof.faults == [], strategy
        assert proof.worlds > 0 or "this model has none" in proof.reason, f"{strategy}: {proof.reason}"


def test_channels_may_be_counted_from_the_end() -> None:
    model = nn.Sequential(Calls(lambda x: torch.cat(tensors=[x, x], dim=-3)), nn.Flatten(), nn.Linear(384, 5))
    assert ("0.first", "0.first") in [layer.sources for layer in trace(model, 8).layers]


def test_a_layer_without_weights_may_be_used_twice() -> None:
    layers = trace(Twice(nn.LocalResponseNorm(2)), 8).layers
    assert len({layer.name for layer in layers}) == len(layers)
