"""One Weird Trick: convolutions data-parallel, fully connected layers divided by their outputs."""

from __future__ import annotations

from collections.abc import Sequence

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.strategy.group import over_images, replica_size
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.split import Split


def one_weird_trick(
    layers: Sequence[Layer], world: World, replicas: int | None = None, inside: bool = False
) -> Placement:
    """Convolutions are data-parallel; fully connected layers are divided by outputs.

    This is scheme a of Krizhevsky (2014, section 4). Convolutions have most of the work and few weights, fully connected layers
    most of the weights and little work: the activations between them are far fewer bytes than these weights. `replicas`: fully
    connected layers are divided within each of as many groups of ranks, and data-parallel between the groups; `inside`: the
    groups are the nodes. UserError if the model has no fully connected layer.
    """
    if not any(layer.is_linear for layer in layers):
        raise UserError("one-weird-trick divides fully connected layers, and this model has none: use data-parallel")
    size = replica_size("one-weird-trick", world, replicas, inside=inside)
    divided = Split(world.by_node, images=world.size // size, outputs=size)
    splits = {layer.name: divided if layer.is_linear else over_images(world) for layer in layers}
    return Placement("one-weird-trick", world.size, tuple(layers), splits)
