"""Branch-parallel: the branches of inception and fire modules on different ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from firetrain.cluster import World
from firetrain.errors import UserError
from firetrain.strategy.group import over_images, replica_size
from firetrain.strategy.layer import Layer
from firetrain.strategy.placement import Placement
from firetrain.strategy.split import Split


def branch_parallel(
    layers: Sequence[Layer], world: World, replicas: int | None = None, inside: bool = False
) -> Placement:
    """The branches of a module are on different ranks of a replica; the rest is data-parallel.

    The rank of a branch sees all images of the replica. Branches are given to ranks by work, the largest first. The largest
    branch of an inception module has more than half of its work, so that any number of ranks is at most 1.5 times faster.
    UserError if the model has no branches.
    """
    modules = list(_modules(layers))
    if not modules:
        raise UserError("branch-parallel needs modules with branches, and this model has none: use data-parallel")
    size = replica_size("branch-parallel", world, replicas, inside=inside)
    splits = {layer.name: over_images(world) for layer in layers}
    for branches in modules:
        busy = [0] * size
        for branch in sorted(branches, key=_work, reverse=True):
            member = busy.index(min(busy))
            busy[member] += _work(branch)
            ranks = world.by_node[member::size]
            splits |= {layer.name: Split(ranks, images=len(ranks)) for layer in branch}
    return Placement("branch-parallel", world.size, tuple(layers), splits)


def _modules(layers: Sequence[Layer]) -> Iterator[list[list[Layer]]]:
    """The branches of each module: chains of layers from one that several need to one that needs several."""
    by_name = {layer.name: layer for layer in layers}
    readers = Counter(source for layer in layers for source in layer.sources)
    seen: set[tuple[str, ...]] = set()
    for join in layers:
        if len(join.sources) > 1 and join.sources not in seen:
            seen.add(join.sources)
            branches = [list(_chain(by_name[name], by_name, readers)) for name in join.sources]
            yield [branch for branch in branches if branch]


def _chain(layer: Layer, by_name: dict[str, Layer], readers: Counter[str]) -> Iterator[Layer]:
    """The layers of a branch, from its last to its first."""
    while len(layer.sources) == 1:
        yield layer
        (source,) = layer.sources
        if readers[source] > 1:
            return
        layer = by_name[source]


def _work(branch: Sequence[Layer]) -> int:
    return sum(layer.operations for layer in branch)
