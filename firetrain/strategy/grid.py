"""Grid: every layer is divided by images and by outputs at once."""

from __future__ import annotations

from collections.abc import Sequence

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.strategy.group import over_images, replica_size
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.split import Split


def grid(layers: Sequence[Layer], world: World, images: int = 0, outputs: int = 0, inside: bool = False) -> Placement:
    """Every layer is divided by images and by outputs at once (Dryden et al. 2019).

    Layers that need all channels are divided by images among all ranks. `inside`: outputs are divided among the ranks of a node,
    and images between nodes. UserError unless images x outputs is the number of ranks.
    """
    if inside:
        if images or outputs:
            raise UserError(
                f"grid: inside=true decides images and outputs: omit them (images: {images}, outputs: {outputs})"
            )
        outputs = replica_size("grid", world, 1, inside=True)
        images = world.size // outputs
    images, outputs = images or 1, outputs or 1
    if images * outputs != world.size or images < 1:
        raise UserError(
            f"grid: images x outputs must be the number of ranks (images: {images}, outputs: {outputs}, ranks: {world.size})"
        )
    divided = Split(world.by_node, images=images, outputs=outputs)
    splits = {layer.name: over_images(world) if layer.kind == "whole" else divided for layer in layers}
    return Placement("grid", world.size, tuple(layers), splits)
