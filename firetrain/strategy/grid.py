"""Grid: every layer is divided by images and by outputs at once."""

from __future__ import annotations

from collections.abc import Sequence

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.strategy.group import over_images
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.split import Split


def grid(layers: Sequence[Layer], world: World, images: int = 1, outputs: int = 1) -> Placement:
    """Every layer is divided by images and by outputs at once (Dryden et al. 2019).

    Layers that need all channels are divided by images among all ranks. UserError unless images x outputs is the number of ranks.
    """
    if images * outputs != world.size or images < 1:
        raise UserError(
            f"grid: images x outputs must be the number of ranks (images: {images}, outputs: {outputs}, ranks: {world.size})"
        )
    divided = Split(world.by_node, images=images, outputs=outputs)
    splits = {layer.name: over_images(world) if layer.kind == "whole" else divided for layer in layers}
    return Placement("grid", world.size, tuple(layers), splits)
