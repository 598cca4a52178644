"""Tensor-parallel: every layer is divided by its outputs, its inputs, or both in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from firetrain.cluster import World
from firetrain.strategy.group import over_images, replica_size
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.split import Split

Way = Literal["outputs", "inputs", "alternate"]


def tensor_parallel(
    layers: Sequence[Layer], world: World, split: Way = "outputs", replicas: int | None = None, inside: bool = False
) -> Placement:
    """Every layer is divided among the ranks of a replica by outputs, by inputs, or by both in turn.

    `split`: `outputs`: each rank has some outputs, and gathers all inputs (Dryden et al. 2019, filter parallelism); `inputs`:
    each rank has some inputs, and partial sums are summed (channel parallelism); `alternate`: outputs and inputs in turn, which
    exchanges once per two layers (Shoeybi et al. 2019, section 3). Layers that need all channels are divided by images.
    """
    size = replica_size("tensor-parallel", world, replicas, inside=inside)
    copies = world.size // size
    by = {
        "outputs": Split(world.by_node, images=copies, outputs=size),
        "inputs": Split(world.by_node, images=copies, inputs=size),
    }
    ways = _in_turn(split)
    splits = {}
    for layer in layers:
        if layer.kind == "weights":
            splits[layer.name] = by[next(ways)]
        else:
            splits[layer.name] = over_images(world) if layer.kind == "whole" else by["outputs"]
    return Placement("tensor-parallel", world.size, tuple(layers), splits)


def _in_turn(split: Way) -> Iterator[str]:
    while True:
        yield from ("outputs", "inputs") if split == "alternate" else (split,)
