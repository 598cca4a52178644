"""A grid: into how many shares the images and the outputs of a layer are divided among all ranks."""

from __future__ import annotations

from typing import NamedTuple

from firetrain.cluster import World
from firetrain.strategy.split import Split


class Grid(NamedTuple):
    """Shares of the images times shares of the outputs; together they are all ranks.

    >>> [str(grid) for grid in grids_of(4)]
    ['4 x 1', '2 x 2', '1 x 4']
    """

    images: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.images} x {self.outputs}"

    def split(self, world: World) -> Split:
        """The split of a layer; ranks of a node have neighbouring shares of the outputs."""
        return Split(world.by_node, images=self.images, outputs=self.outputs)


def grids_of(ranks: int) -> list[Grid]:
    """All grids of a number of ranks; the first one divides only the images."""
    return [Grid(images, ranks // images) for images in range(ranks, 0, -1) if ranks % images == 0]
