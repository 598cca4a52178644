"""Replicas: groups of ranks that each hold a whole model."""

from __future__ import annotations

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.strategy.split import Split


def replica_size(strategy: str, world: World, replicas: int | None, *, inside: bool = False) -> int:
    """The number of ranks that share one copy of the model; UserError if the ranks cannot be divided like this.

    `replicas`: None if it was not given; then there is one. `inside`: each node has a replica, so that exchanges of activations
    stay on its fast links.
    """
    if inside:
        sizes = {len(ranks) for ranks in world.nodes}
        if len(sizes) > 1:
            raise UserError(f"{strategy}: inside=true needs nodes with equally many ranks ({world})")
        if replicas not in (None, len(world.nodes)):
            raise UserError(f"{strategy}: inside=true makes a replica of each node: omit replicas={replicas} ({world})")
        return sizes.pop()
    replicas = 1 if replicas is None else replicas
    if replicas < 1:
        raise UserError(f"{strategy}: replicas must be 1 or more (replicas: {replicas})")
    if world.size % replicas:
        raise UserError(f"{strategy}: replicas must divide the ranks (replicas: {replicas}, ranks: {world.size})")
    return world.size // replicas


def over_images(world: World) -> Split:
    """All ranks, each with a share of the images."""
    return Split(world.by_node, images=world.size)
