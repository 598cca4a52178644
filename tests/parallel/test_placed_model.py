"""A placed model has the gradients and the losses of one process, to the precision of float64, under every strategy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from exact import apart, curves, gradients, largest, make
from ranks import on_ranks
from torch import Tensor, nn

from firetrain.errors import UserError
from firetrain.models.graph import trace

CASES = [
    ("lenet", "data-parallel", 3), ("lenet", "one-weird-trick", 3), ("lenet", "tensor-parallel:split=outputs", 4),
    ("lenet", "tensor-parallel:split=inputs", 4), ("lenet", "tensor-parallel:split=alternate", 3),
    ("lenet", "grid:images=2,outputs=2", 4), ("lenet", "pipeline:stages=2,replicas=2", 4), ("lenet", "pipeline", 3),
    ("lenet", "pipeline:micro_batches=3", 3), ("lenet", "pipeline:micro_batches=4,schedule=1f1b", 4),
    ("lenet", "pipeline:stages=2,replicas=2,micro_batches=3,schedule=1f1b", 4),
    ("lenet", "one-weird-trick:inside=true", 4), ("lenet", "tensor-parallel:split=outputs,replicas=2", 4),
    ("lenet", "grid:images=4,outputs=2", 8),
    ("lenet+few", "one-weird-trick", 4), ("lenet+few", "tensor-parallel:split=inputs", 4),
    ("lenet+few", "grid:images=2,outputs=3", 6),
    ("sequential", "one-weird-trick", 3), ("sequential", "tensor-parallel:split=alternate", 4), ("sequential", "pipeline", 2),
    ("alexnet", "one-weird-trick", 2),
    ("squeezenet1_1", "branch-parallel", 2), ("squeezenet_mini", "branch-parallel:replicas=2", 4),
    ("squeezenet1_1", "tensor-parallel:split=outputs", 3),
    ("googlenet_paper", "branch-parallel", 3), ("googlenet_paper+heads", "one-weird-trick", 2),
    ("googlenet_paper+heads", "tensor-parallel:split=alternate", 2), ("nin", "tensor-parallel:split=inputs", 3),
]  # fmt: skip


def test_a_gradient_or_a_loss_that_is_no_number_is_no_small_difference() -> None:
    assert math.isnan(largest([1e-16, math.nan, 0.0])) and math.isnan(apart([1.0, math.nan], [1.0, 2.0]))
    assert largest([]) == 0.0 and largest([1e-16, 1e-13, 0.0]) == 1e-13


@pytest.mark.parametrize(("model", "strategy", "ranks"), CASES)
def test_gradients_are_those_of_one_process(model: str, strategy: str, ranks: int) -> None:
    counts = [8, 7, 2, 1] if model in ("lenet", "lenet+few", "sequential") else [3, 1]
    nodes = 2 if "inside" in strategy else 1
    assert max(on_ranks(ranks, gradients, model, strategy, counts, nodes=nodes)) < 1e-12


@pytest.mark.parametrize("layer", ["elu", "leaky_relu", "relu"])
def test_what_overwrites_its_input_leaves_that_of_others_as_it_is(layer: str, tmp_path: Path) -> None:
    """Rank 0 computes everything but half of the images of `layer`, whose input is a view of the whole."""
    path = tmp_path / "apart.yaml"
    path.write_text(f"ranks: 2\ndefault: {{ranks: [0]}}\nlayers: {{{layer}: {{images: 2}}}}\n")
    assert max(on_ranks(2, gradients, "in-place", str(path), [8, 7, 1])) < 1e-12


def test_a_layer_that_overwrites_a_view_of_its_input_has_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text('ranks: 2\ndefault: {ranks: [0]}\nlayers: {"0": {images: 2}, "3": {images: 2}}\n')
    assert max(on_ranks(2, gradients, "views", str(path), [8, 7, 1])) < 1e-12


@pytest.mark.parametrize("strategy", ["data-parallel", "one-weird-trick", "tensor-parallel:split=outputs"])
def test_concatenations_may_be_overwritten(strategy: str) -> None:
    assert max(on_ranks(2, gradients, "joined", strategy, [8, 7, 1])) < 1e-12


@pytest.mark.parametrize(
    ("model", "strategy", "ranks"),
    [("classic", "one-weird-trick", 3), ("classic", "tensor-parallel:split=alternate", 2), ("classic", "pipeline", 2),
     ("lines", "tensor-parallel:split=outputs", 4)],
)  # fmt: skip
def test_models_that_read_sizes_drop_twice_or_pool_over_channels_have_the_gradients_of_one_process(
    model: str, strategy: str, ranks: int
) -> None:
    assert max(on_ranks(ranks, gradients, model, strategy, [8, 7, 1])) < 1e-12


@pytest.mark.parametrize(
    ("strategy", "ranks"), [("pipeline:stages=2", 2), ("one-weird-trick", 2), ("tensor-parallel:split=alternate", 3)]
)
def test_what_a_model_computes_and_does_not_use_keeps_no_rank_waiting(strategy: str, ranks: int) -> None:
    """Its gradient never comes, so that ranks that sent its input would wait for it until the timeout."""
    assert max(on_ranks(ranks, gradients, "unused", strategy, [8, 7, 1], timeout_s=10)) < 1e-12


@pytest.mark.parametrize(("strategy", "ranks"), [("tensor-parallel:split=alternate", 2), ("one-weird-trick", 3)])
def test_batch_norm_normalises_the_images_of_each_rank(strategy: str, ranks: int) -> None:
    """As under data-parallel training, because layers with batch norm are shared by images."""
    assert max(on_ranks(ranks, gradients, "googlenet", strategy, [6], ranks, nodes=1)) < 1e-11


@pytest.mark.parametrize(
    ("model", "strategy", "ranks"),
    [
        ("lenet", "one-weird-trick", 3),
        ("lenet", "tensor-parallel:split=alternate", 2),
        ("lenet", "pipeline:stages=2,replicas=2", 4),
        ("lenet", "pipeline:stages=2,replicas=2,micro_batches=3,schedule=1f1b", 4),
        ("lenet", "grid:images=2,outputs=2", 4),
        ("squeezenet1_1", "branch-parallel", 2),
    ],
)
def test_twenty_steps_with_lars_have_the_losses_of_one_process(model: str, strategy: str, ranks: int) -> None:
    assert 0 < max(on_ranks(ranks, curves, model, strategy)) < 1e-9


def test_a_layer_that_cannot_be_placed_is_named() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = make("sequential")[0]  # type: ignore[index]

        def forward(self, x: Tensor) -> Tensor:
            y = self.body(x)
            return y + y.tanh()  # type: ignore[no-any-return]

    with pytest.raises(UserError, match=r"add \(.*\) has 2 inputs: such a layer cannot be placed"):
        trace(Residual(), 16)
