"""Data-parallel: every rank has the whole model and a share of the images."""

from __future__ import annotations

from collections.abc import Sequence

from firetrain.cluster import World
from firetrain.strategy.group import over_images
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement


def data_parallel(layers: Sequence[Layer], world: World) -> Placement:
    """Every rank has the whole model and a share of the images; gradients are summed over all ranks."""
    return Placement("data-parallel", world.size, tuple(layers), {layer.name: over_images(world) for layer in layers})
