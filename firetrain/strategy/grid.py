"""Grid: every layer is divided by images and by outputs at once."""

from __future__ import annotations

from collections.abc import Sequence

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.strategy.group import over_images, replica_size
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.split import Split


def grid(
    layers: Sequence[Layer], world: World, images: int | None = None, outputs: int | None = None, inside: bool = False
) -> Placement:
    """Every layer is divided by images and by outputs at once (Dryden et al. 2019).

    `images`, `outputs`: the number of shares; if only one is given, the other is what the ranks leave. `inside`: outputs are
    divided among the ranks of a node, and images between nodes. Layers that need all channels are divided by images among all
    ranks. UserError unless images x outputs is the number of ranks.
    """
    if inside:
        if given := {"images": images, "outputs": outputs}.items() - {("images", None), ("outputs", None)}:
            numbers = ", ".join(f"{name}: {number}" for name, number in sorted(given))
            raise UserError(f"grid: inside=true decides images and outputs: omit them ({numbers})")
        outputs = replica_size("grid", world, None, inside=True)
        images = world.size // outputs
    for name, number in (("images", images), ("outputs", outputs)):
        if number is not None and number < 1:
            raise UserError(f"grid: {name} must be 1 or more ({name}: {number})")
    if images is None:
        images = max(1, world.size // outputs) if outputs else 1
    if outputs is None:
        outputs = max(1, world.size // images)
    if images * outputs != world.size:
        raise UserError(
            f"grid: images x outputs must be the number of ranks (images: {images}, outputs: {outputs}, ranks: {world.size})"
        )
    divided = Split(world.by_node, images=images, outputs=outputs)
    splits = {layer.name: over_images(world) if layer.kind == "whole" else divided for layer in layers}
    return Placement("grid", world.size, tuple(layers), splits)
