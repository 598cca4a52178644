"""The bytes that a placement sends in a training step."""

from __future__ import annotations

from dataclasses import dataclass

from firetrain.cluster.shares import share_bounds
from firetrain.strategy.placement import Placement, RegionMessage

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Traffic:
    """Bytes of one training step.

    - `sent`: activations, and their gradients, that each rank sends.
    - `by_layer`: activations and gradients that all ranks send for each layer's input, or to sum its partial sums.
    - `reduced`: for each group of sharers, the bytes of the gradients that they sum.
    """

    sent: tuple[int, ...]
    by_layer: dict[str, int]
    reduced: dict[tuple[int, ...], int]


def traffic(placement: Placement, images: int) -> Traffic:
    """The traffic of a step on a batch of `images`: forward and backward passes of all micro-batches, and sums of gradients."""
    sent, by_layer = [0] * placement.ranks, dict.fromkeys((layer.name for layer in placement.layers), 0)
    for number in range(placement.micro_batches):
        first, end = share_bounds(images, number, placement.micro_batches)
        for message in placement.messages(end - first):
            size_bytes = message_bytes(placement, message)
            # the gradient travels the other way
            sent[message.sender] += size_bytes
            sent[message.receiver] += size_bytes
            by_layer[message.layer] += 2 * size_bytes
    reduced: dict[tuple[int, ...], int] = {}
    for layer in placement.layers:
        for group in placement.sharers(layer):
            if len(group) > 1:
                reduced[group] = reduced.get(group, 0) + placement.held(layer, group[0]) * FLOAT_BYTES
    return Traffic(tuple(sent), by_layer, reduced)


def message_bytes(placement: Placement, message: RegionMessage) -> int:
    """The bytes of a message in float32; partial sums travel before the operations that follow their layer."""
    source = placement.by_name[message.source]
    elements = source.made_elements if message.layer == message.source else source.output_elements
    return message.region.size * elements * FLOAT_BYTES
