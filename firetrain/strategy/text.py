"""A placement as text: layers from top to bottom, ranks from left to right, and the bytes that travel before each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.traffic import Traffic, traffic

_NAME, _CELL, _MOST_RANKS = 28, 13, 16


def draw(placement: Placement, images: int) -> str:
    """The placement as lines of text, with the traffic of a step on a batch of `images`.

    Each cell shows the share of a rank: of the images, and of the outputs or inputs if these are divided.
    """
    found = traffic(placement, images)
    shown = range(min(placement.ranks, _MOST_RANKS))
    rest = "  ..." if placement.ranks > _MOST_RANKS else ""
    lines = [f"{'':<{_NAME}}" + "".join(f"{f'rank {rank}':<{_CELL}}" for rank in shown) + rest + "   MB before"]
    for layer in placement.layers:
        cells = "".join(f"{_cell(placement, layer, rank):<{_CELL}}" for rank in shown)
        moved = found.by_layer[layer.name]
        lines.append(f"{layer.name[: _NAME - 1]:<{_NAME}}{cells}{rest}   {megabytes(moved) if moved else ''}".rstrip())
    return "\n".join([*lines, "", *legend(placement), *summary(placement, found, images)])


def summary(placement: Placement, found: Traffic, images: int) -> Iterator[str]:
    """The traffic of a step in a few lines."""
    held = [sum(placement.held(layer, rank) for layer in placement.layers) for rank in range(placement.ranks)]
    whole = sum(layer.parameters for layer in placement.layers)
    yield f"parameters of a rank: {_range([f'{one:,}' for one in held])} of {whole:,}"
    sent = _range([megabytes(size_bytes) for size_bytes in found.sent])
    yield f"activations and their gradients, sent by a rank in a step of {images} images: {sent} MB"
    for group, size_bytes in sorted(found.reduced.items(), key=lambda pair: -pair[1])[:4]:
        yield f"gradients summed over {len(group)} ranks ({_ranks(group)}): {megabytes(size_bytes)} MB"


def legend(placement: Placement) -> Iterator[str]:
    """What the cells mean; only what occurs."""
    splits = placement.splits.values()
    if (images := max(split.images for split in splits)) > 1:
        yield f"i 2/{images}: the second of {images} shares of the images"
    if (outputs := max(split.outputs for split in splits)) > 1:
        yield f"o 2/{outputs}: the second of {outputs} shares of the outputs"
    if (inputs := max(split.inputs for split in splits)) > 1:
        yield f"k 2/{inputs}: the second of {inputs} shares of the inputs, whose partial sums are summed"
    if placement.micro_batches > 1:
        yield f"{placement.micro_batches} micro-batches, schedule {placement.schedule}"


def _cell(placement: Placement, layer: Layer, rank: int) -> str:
    split = placement.splits[layer.name]
    if rank not in split.ranks:
        return "-"
    image, output, inner = split.coordinates(rank)
    counts: Sequence[tuple[str, int, int]] = (
        ("i", image, split.images), ("o", output, split.outputs), ("k", inner, split.inputs),
    )  # fmt: skip
    return " ".join(f"{letter} {number + 1}/{count}" for letter, number, count in counts if count > 1) or "all"


def megabytes(size_bytes: int) -> str:
    """Megabytes with three digits that count, without an exponent.

    >>> megabytes(40), megabytes(1_234_567), megabytes(3_290_000_000)
    ('0.00004', '1.23', '3,290')
    """
    return f"{Decimal(f'{size_bytes / 1e6:.3g}'):,f}"


def _range(values: Sequence[str]) -> str:
    """The values if they are alike, else the first and the last by size."""
    different = list(dict.fromkeys(values))
    if len(different) == 1:
        return different[0]
    ordered = sorted(different, key=lambda text: float(text.replace(",", "")))
    return f"{ordered[0]} to {ordered[-1]}"


def _ranks(group: Sequence[int]) -> str:
    return ", ".join(map(str, group[:8])) + (", ..." if len(group) > 8 else "")
