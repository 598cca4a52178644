"""What ranks compute of a layer, and how its gradients come into buckets."""

from __future__ import annotations

import pytest

from firetrain.cluster import World
from firetrain.models.catalogue import model_by_name
from firetrain.models.graph import trace
from firetrain.strategy import Layer, Placement, find_strategy
from firetrain.strategy.buckets import fill, shared_runs
from firetrain.strategy.slice import slice_of, slices_of
from firetrain.strategy.split import Split

STRATEGIES = (
    "data-parallel",
    "one-weird-trick",
    "tensor-parallel:split=alternate",
    "grid:images=2,outputs=2",
    "pipeline",
)


def layers_of(name: str) -> tuple[Layer, ...]:
    return trace(model_by_name(name, classes=10, stem="small"), 32).layers


@pytest.mark.parametrize("model", ["alexnet", "googlenet_mini"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_slices_of_all_ranks_are_the_work_of_the_layer(strategy: str, model: str) -> None:
    layers = layers_of(model)
    placement = find_strategy(strategy)(layers, World.even(2, 2))
    for layer in layers:
        split = placement.splits[layer.name]
        parts = [slice_of(layer, split, rank, images=7) for rank in range(4)]
        found = [part for part in parts if part is not None]
        assert sum(part.operations(layer) for part in found) == pytest.approx(7 * layer.operations)
        assert set(found) <= slices_of(placement, 7) or placement.micro_batches > 1
        for rank, part in enumerate(parts):
            if part is not None and layer.kind != "channels" and split.inputs == 1:
                assert part.parameters(layer) == placement.held(layer, rank)


def test_micro_batches_have_slices_of_their_own_sizes() -> None:
    layers = layers_of("alexnet")
    placement = find_strategy("pipeline:stages=2,micro_batches=3")(layers, World.even(1, 2))
    assert {part.images for part in slices_of(placement, 8)} == {2, 3}
    assert {part.images for part in slices_of(placement, 2)} == {1}, "an empty micro-batch is no work"


def test_a_rank_without_images_has_no_slice() -> None:
    (layer, *_) = layers_of("alexnet")
    assert slice_of(layer, Split((0, 1), images=2), 0, images=1) is None


def test_buckets_have_at_most_their_size_and_the_first_a_quarter() -> None:
    sizes = [3, 3, 10, 3, 3, 3, 30, 1]
    counts = fill(sizes, limit_bytes=12)
    assert counts == [1, 1, 1, 3, 1, 1] and fill([], 12) == []
    assert fill([3, 3, 3, 3], limit_bytes=24) == [2, 2] and fill([1] * 9, limit_bytes=4) == [1, 4, 4]


def test_gradients_of_layers_between_which_other_ranks_sum_are_in_different_buckets() -> None:
    names = ("a", "b", "relu", "c", "d", "e")
    layers = tuple(
        Layer(name, "channels" if name == "relu" else "weights", (), 4, 4, weights=int(name != "relu"))
        for name in names
    )
    everybody = Split((0, 1, 2, 3), images=4)
    splits = dict.fromkeys(names, everybody) | {
        "c": Split((0, 1, 2, 3), outputs=4), "d": Split((0, 1, 2, 3), images=2, outputs=2),
    }  # fmt: skip
    runs = shared_runs(Placement("mine", 4, layers, splits))
    assert [(group, [layer.name for layer in run]) for group, run in runs] == [
        ((0, 1, 2, 3), ["a", "b"]), ((0, 2), ["d"]), ((1, 3), ["d"]), ((0, 1, 2, 3), ["e"]),
    ]  # fmt: skip
    alone = {**splits, "d": Split((0, 1, 2, 3), outputs=4)}
    (run,) = shared_runs(Placement("mine", 4, layers, alone))
    assert [layer.name for layer in run[1]] == ["a", "b", "e"], "what each rank has alone is in no bucket"
