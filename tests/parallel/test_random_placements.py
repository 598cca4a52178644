"""Whatever a placement file says, gradients are those of one process: random splits, on some or all ranks, in any order."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
import yaml
from exact import Placed, make, size_of, whole_gradients
from ranks import on_ranks

from firetrain.models.graph import trace
from firetrain.strategy.layer import Layer
from firetrain.transport.transport import Transport

COUNTS = [7, 3, 1]
PLACEMENTS = 10


def split(draw: random.Random, layer: Layer, ranks: int) -> dict[str, object]:
    """A split of a layer among all ranks, or some of them, in any order."""
    count = draw.choice([ranks, draw.randint(1, ranks)])
    chosen = draw.sample(range(ranks), count)
    ways = [
        (images, outputs, count // images // outputs)
        for images in range(1, count + 1)
        for outputs in range(1, count // images + 1)
        if count % (images * outputs) == 0
    ]
    if layer.kind == "whole":
        ways = [(count, 1, 1)]
    elif layer.kind == "channels":
        ways = [way for way in ways if way[2] == 1]
    images, outputs, inputs = draw.choice(ways)
    return {"images": images, "outputs": outputs, "inputs": inputs, "ranks": chosen}


def inexact(transport: Transport, model: str, seed: int) -> list[str]:
    """The random placements whose gradients are not those of one process."""
    truth = whole_gradients(model, COUNTS) if transport.rank == 0 else []
    draw, layers = random.Random(seed), trace(make(model), size_of(model)).layers
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(PLACEMENTS):
            splits = {layer.name: split(draw, layer, transport.size) for layer in layers}
            pieces = draw.choice([1, 1, 2, 3])
            text = yaml.safe_dump({"ranks": transport.size, "micro_batches": pieces, "layers": splits})
            path = Path(folder) / f"{number}.yaml"
            path.write_text(text)
            placed = Placed(transport, model, str(path))
            found += [text] if placed.gradients(COUNTS, truth) > 1e-12 else []
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("model", ["sequential", "squeezenet_mini"])
def test_gradients_of_random_placements_are_those_of_one_process(model: str, ranks: int) -> None:
    assert on_ranks(ranks, inexact, model, 10 * ranks, timeout_s=20) == [[]] * ranks
