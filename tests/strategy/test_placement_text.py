"""The drawing of a placement as text: a cell for every layer and rank, a legend of what occurs, and the traffic."""

from __future__ import annotations

from firetrain.cluster import World
from firetrain.strategy import Layer, Placement, find_strategy
from firetrain.strategy.text import draw
from firetrain.strategy.traffic import traffic

LAYERS = (
    Layer("conv", "weights", (), 3, 8, made_elements=100, output_elements=4, weights=9, biases=1, operations=900),
    Layer("fc", "weights", ("conv",), 8, 10, weights=4, biases=1, operations=320, is_linear=True),
    Layer("loss", "whole", ("fc",), 10, 10, is_loss=True),
)


def placed(strategy: str, ranks: int) -> Placement:
    return find_strategy(strategy)(LAYERS, World.even(1, ranks))


def cells(drawing: str, layer: str) -> list[str]:
    (line,) = (line for line in drawing.splitlines() if line.startswith(f"{layer} "))
    return line[28:].split("  ")


def test_every_rank_s_share_of_a_layer_is_in_its_column() -> None:
    lines = draw(placed("one-weird-trick", 3), 12).splitlines()
    assert lines[0].split() == ["rank", "0", "rank", "1", "rank", "2", "MB", "before"]
    for number in range(3):
        first = 28 + 13 * number
        assert [line[first : first + 13].strip() for line in lines[1:4]] == [
            f"i {number + 1}/3", f"o {number + 1}/3", f"i {number + 1}/3",
        ]  # fmt: skip


def test_a_rank_that_computes_nothing_of_a_layer_has_a_dash_and_one_that_computes_all_of_it_says_so() -> None:
    drawing = draw(placed("pipeline:stages=2", 2), 8)
    first, second = (line.split()[1:3] for line in drawing.splitlines()[1:3])
    assert first == ["all", "-"] and second[:2] == ["-", "all"]


def test_the_legend_has_only_what_occurs() -> None:
    images, outputs, inputs = "i 2/2: the second of 2 shares of the images", "o 2/2: ", "k 2/2: "
    whole = draw(placed("data-parallel", 2), 8)
    assert images in whole and outputs not in whole and inputs not in whole and "micro-batches" not in whole
    rows = draw(placed("tensor-parallel:split=inputs", 2), 8)
    assert inputs in rows and outputs not in rows
    assert "4 micro-batches, schedule 1f1b" in draw(placed("pipeline:stages=2,micro_batches=4,schedule=1f1b", 2), 8)


def test_only_sixteen_ranks_are_drawn_and_the_rest_is_not_forgotten() -> None:
    drawing = draw(placed("data-parallel", 20), 40)
    head = drawing.splitlines()[0]
    assert "rank 15" in head and "rank 16" not in head and " ..." in head
    assert "gradients summed over 20 ranks (0, 1, 2, 3, 4, 5, 6, 7, ...)" in drawing


def test_bytes_are_those_of_the_traffic() -> None:
    placement = placed("one-weird-trick", 2)
    found, drawing = traffic(placement, 100_000), draw(placement, 100_000)
    moved = f"{found.by_layer['fc'] / 1e6:.3g}"
    assert cells(drawing, "fc")[-1].strip() == moved and "conv" in drawing
    assert f"sent by a rank in a step of 100000 images: {found.sent[0] / 1e6:.3g} MB" in drawing


def test_parameters_of_ranks_that_hold_different_numbers_are_a_range() -> None:
    placement = placed("tensor-parallel:split=outputs", 3)
    held = [sum(placement.held(layer, rank) for layer in LAYERS) for rank in range(3)]
    assert len(set(held)) > 1
    assert f"parameters of a rank: {min(held):,} to {max(held):,} of {sum(one.parameters for one in LAYERS):,}" in draw(
        placement, 6
    )


def test_a_file_of_many_layers_has_names_that_do_not_push_the_columns() -> None:
    first, second = "a.very.long.name.of.the.first.layer", "a.very.long.name.of.the.second.layer"
    long = (
        Layer(first, "weights", (), 4, 4, weights=1, operations=4),
        Layer(second, "weights", (first,), 4, 4, weights=1, operations=4),
    )
    layers = (*long, Layer("loss", "whole", (long[-1].name,), 4, 4, is_loss=True))
    lines = draw(find_strategy("data-parallel")(layers, World.even(1, 2)), 4).splitlines()
    assert {line.index("i 1/2") for line in lines[1:4]} == {28}
