"""Draws a placement as SVG: layers from top to bottom, ranks from left to right, and what travels between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from firetrain.strategy.placement import Placement
from firetrain.strategy.region import Region
from firetrain.strategy.text import megabytes, summary
from firetrain.strategy.traffic import Traffic, message_bytes, traffic
from firetrain.svg import render_svg

_LEFT, _TOP, _ROW, _CELL, _HIGH, _MARGIN = 200.0, 96.0, 40.0, 74.0, 14.0, 24.0
_THINNEST, _THICKEST = 0.8, 5.0
_MEANING = (
    "filled: the images (top to bottom) and outputs (left to right) that a rank computes",
    "arrows: what it sends in the forward pass, by bytes; +: what it receives there for a layer",
    "sent before: all ranks, forward and backward",
)


def draw(placement: Placement, images: int) -> str:
    """The placement as the text of an SVG file, with the traffic of the forward pass of a batch of `images`.

    In each cell the filled part is what the rank computes: its images from top to bottom, its channels from left to right. Above
    it stand the bytes that the rank receives for it. An arrow is what one rank sends another, as thick as its bytes; a browser
    shows them when the pointer is on it.
    """
    found = traffic(placement, images)
    words = [*_MEANING, *summary(placement, found, images)]
    if placement.micro_batches > 1:
        words.append(
            f"{placement.micro_batches} micro-batches, schedule {placement.schedule}; drawn as if there were one"
        )
    bottom = _TOP + _ROW * len(placement.layers)
    return render_svg(
        "firetrain.strategy", "placement.svg.j2",
        name=placement.strategy, numbers=f"{placement.ranks} ranks, a batch of {images} images", words=words,
        width=max(_LEFT + _CELL * placement.ranks + 110, 720.0), height=bottom + 20 * len(words) + _MARGIN, margin=_MARGIN,
        left=_LEFT, bottom=bottom, ranks=[(_x(rank) + _CELL / 2 - 6, rank) for rank in range(placement.ranks)],
        cell=_CELL - 12, high=_HIGH, right=_LEFT + _CELL * placement.ranks + 8, rows=list(_rows(placement, found)),
        cells=list(_cells(placement, images)), arrows=list(_arrows(placement, images)),
    )  # fmt: skip


def _x(rank: int) -> float:
    return _LEFT + _CELL * rank


def _y(number: int) -> float:
    """The top of the cells of a layer."""
    return _TOP + _ROW * number


def _rows(placement: Placement, found: Traffic) -> Iterator[dict[str, Any]]:
    for number, layer in enumerate(placement.layers):
        moved = found.by_layer[layer.name]
        yield {"y": _y(number) + _HIGH - 2, "name": layer.name, "moved": f"{megabytes(moved)} MB" if moved else ""}


def _cells(placement: Placement, images: int) -> Iterator[dict[str, Any]]:
    """For each layer and rank, the share of the batch's images and of the layer's outputs that the rank computes."""
    received = Counter[tuple[str, int]]()
    for message in placement.messages(images):
        received[message.layer, message.receiver] += message_bytes(placement, message)
    for number, layer in enumerate(placement.layers):
        for rank, region in enumerate(placement.makes(layer, images)):
            wide, high = (_CELL - 12) / max(1, layer.outputs), _HIGH / images
            yield {
                "x": _x(rank), "y": _y(number), "empty": not region.size, "left": _x(rank) + wide * region.first_channel,
                "top": _y(number) + high * region.first_image, "wide": wide * region.channels, "high": high * region.images,
                "title": f"{layer.name}, rank {rank}: {_in_words(region)}; receives {received[layer.name, rank]:,} bytes",
                "received": f"+{megabytes(received[layer.name, rank])} MB" if received[layer.name, rank] else "",
            }  # fmt: skip


def _in_words(region: Region) -> str:
    if not region.size:
        return "nothing"
    return f"images {region.first_image} to {region.end_image - 1}, outputs {region.first_channel} to {region.end_channel - 1}"


def _arrows(placement: Placement, images: int) -> Iterator[dict[str, Any]]:
    """What travels before each layer in the forward pass; arrows into partial sums begin and end at the same layer."""
    row = {layer.name: number for number, layer in enumerate(placement.layers)}
    messages = [(message, message_bytes(placement, message)) for message in placement.messages(images)]
    most = max((size_bytes for _, size_bytes in messages), default=1)
    for message, size_bytes in messages:
        top = _y(row[message.source]) + _HIGH
        within = message.source == message.layer
        bottom = top if within else _y(row[message.layer])
        yield {
            "x1": _x(message.sender) + _CELL / 2 - 6, "y1": top, "x2": _x(message.receiver) + _CELL / 2 - 6, "y2": bottom,
            "bend1": top + _ROW / 2, "bend2": bottom + (_ROW / 2 if within else -_ROW / 2),
            "thick": max(_THINNEST, _THICKEST * size_bytes / most),
            "title": f"{message.source} to {message.layer}: rank {message.sender} sends {size_bytes:,} bytes to rank "
            f"{message.receiver}",
        }  # fmt: skip
